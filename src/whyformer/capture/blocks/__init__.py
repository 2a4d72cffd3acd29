"""The block around an attention: what was projected, added and normed, and how to finish it again."""
