"""Relevance rules: AttnLRP and CP-LRP as changed gradients, alpha-beta rules for transformer attribution."""
