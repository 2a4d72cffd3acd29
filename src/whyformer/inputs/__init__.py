"""Turn raw inputs into tensors and name their units: one kind of input per file, on ``base.py``.

``modalities.py`` chooses the kind, ``batch.py`` and ``units.py`` are what all kinds return, ``output.py`` is the score.
"""
