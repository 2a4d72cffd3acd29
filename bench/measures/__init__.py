"""Public benchmarks of explanations: XAI-Units, HateXplain in ERASER form, YELP-HAT, shapiq, RULER."""
