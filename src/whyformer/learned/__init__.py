"""Explanations that have learned a model: Shapley quality in one pass."""
