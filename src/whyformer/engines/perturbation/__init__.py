"""Mask parts of an input and compute the score of what remains.

``players.py`` which parts are masked together, and their order by score · ``variants.py`` the masked tensors ·
``game.py`` the score of each variant, computed once; variants of a prompt share its beginning · ``regression.py``
Shapley values from these scores · ``maskings.py`` methods of few passes, averaged over random maskings, or as guides
that choose what is measured.
"""
