"""Turn raw inputs into tensors and name their units: one kind of input per file, and what these files share.

Shared: ``base.py`` (interface of a modality), ``modalities.py`` (choose one), ``checkpoint.py`` (load a model, call its
processor), ``batch.py``, ``decoding.py``, ``units.py``, ``output.py`` (logits and the explained scalar),
``families.py`` (names of model families), ``stream_inputs.py``. Kinds: ``tokens.py``, ``text.py``, ``token_heads.py``,
``answers.py``, ``exchanges.py``, ``multi_input.py``, ``image.py``, ``detection.py``,
``image_text.py``, ``audio.py``, ``table_schema.py``, ``table.py``, ``table_model.py``, ``table_reference.py``,
``tensors.py``, ``video_and_series.py``; functions and models behind an API: ``predict_functions.py``, ``prompt.py``,
``completions.py``, ``connection.py``; prompts with images: ``vision_language.py``, ``scenes.py``,
``media.py``.
"""
