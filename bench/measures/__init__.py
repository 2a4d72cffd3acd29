"""Public benchmarks of explanations: XAI-Units, HateXplain in ERASER form."""
