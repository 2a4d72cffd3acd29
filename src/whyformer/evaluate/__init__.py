"""Is the explanation to be believed? Metrics, comparison, choice of a method, checks.

>>> explainer = wf.Explainer(*wf.demo.load_sentiment())
>>> explainer.compare(list(wf.demo.SENTENCES), method=["grad_sam", "saliency"]).show()
"""
