"""The report: one page with a prediction, its explanations, and their evaluation.

>>> explainer = wf.Explainer(*wf.demo.load_sentiment())
>>> explainer.report("I like the movie", method=["grad_sam", "saliency"], checks=[]).save("report.html")
"""
