"""Single heads: their weights, gates on their results, their direct way to the logits."""
