"""One method per file; file name = registry name = test = docs page = command-line value.

>>> model, tokenizer = wf.demo.load_sentiment()
>>> wf.explain(model, "I like the movie", tokenizer, method="attention_rollout", start_layer=1).show()
"""
