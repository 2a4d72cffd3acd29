"""Language models: what only they are asked. Why one answer rather than another, and which documents one rests on.

>>> explainer = wf.Explainer("language-model")  # a folder or a name
>>> explainer.explain("the capital of france is", target=("paris", "london")).show()
"""
