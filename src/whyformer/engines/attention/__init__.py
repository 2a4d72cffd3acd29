"""Combine the attention maps of all layers into one map for the whole model.

``chain.py`` chooses the route by the layout of the model, and reads the result · ``maps.py`` formulas for one stream of
tokens, for attention inside windows, and for several streams.
"""
