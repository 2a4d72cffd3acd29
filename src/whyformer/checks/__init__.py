"""A check-up of an explanation: what is known to go wrong, tried out on this model and these inputs.

>>> explainer = wf.Explainer(*wf.demo.load_sentiment())
>>> explainer.check("I like the movie", checks=["class_dependence"]).show()
"""
