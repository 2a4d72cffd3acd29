"""Combine the attention maps of all layers into one map for the whole model.

``chain.py`` choose the route by the layout of the model, and read the result · ``maps.py`` formulas for one stream of
tokens, and for attention inside windows · ``stream_maps.py`` rules for several streams · ``value_vectors.py`` what the
value of each token adds to each position.
"""
