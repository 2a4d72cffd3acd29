"""Combine the attention maps of all layers into one map for the whole model.

``maps.py`` one stream of tokens, and attention inside windows · ``streams.py`` several streams · ``folded.py`` the same
without storing a map · ``value_vectors.py`` what the value of each token adds to each position.
"""
