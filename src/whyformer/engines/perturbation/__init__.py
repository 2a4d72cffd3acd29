"""Inputs with parts away, and what the model says then.

``players.py`` who joins and leaves · ``variants.py`` the tensors of it · ``prefix.py`` variants of a prompt that share
its beginning · ``game.py`` each variant asked once · ``ranking.py`` from scores to an order of parts ·
``regression.py`` Shapley values from the answers.
"""
