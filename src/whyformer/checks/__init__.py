"""Sanity checks of an explanation method on a given model and inputs.

>>> explainer = wf.Explainer(*wf.demo.load_sentiment())
>>> explainer.check("I like the movie", checks=["class_dependence"]).show()
"""
