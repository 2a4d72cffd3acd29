"""Methods, grouped by what they are computed from. A method has one name: function, test, docs page, command line.

>>> model, tokenizer = wf.demo.load_sentiment()
>>> wf.explain(model, "I like the movie", tokenizer, method="attention_rollout", start_layer=1).show()
"""
