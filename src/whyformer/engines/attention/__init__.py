"""The relevance engine: from one attention map per layer to one map for the whole model.

``maps.py`` one stream · ``streams.py`` several · ``windows.py`` attention inside windows · ``folded.py`` and
``fold_pass.py`` the same without storing a map · ``value_vectors.py`` what each token's value adds to each position.
"""
