"""Language models: why one answer rather than another, and which documents support an answer.

>>> explainer = wf.Explainer("language-model")  # a folder or a name
>>> explainer.explain("the capital of france is", target=("paris", "london")).show()
"""
