"""Evaluation of explanations: metrics, comparison of methods, choice of a method.

>>> explainer = wf.Explainer(*wf.demo.load_sentiment())
>>> explainer.compare(list(wf.demo.SENTENCES), method=["grad_sam", "saliency"]).show()
"""
