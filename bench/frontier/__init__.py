"""Faithfulness against passes: what every method reaches, and for how many forwards and backwards."""
