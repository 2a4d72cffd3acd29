"""Datasets: explain a dataset part by part, write each part to disk, and resume after a stop.

>>> model, tokenizer = wf.demo.load_sentiment()
>>> wf.explain_dataset(model, "reviews.csv", column="text", out="jobs", tokenizer=tokenizer)
>>> wf.load("jobs").show()
"""

from whyformer.jobs.dataset import DatasetSummary as DatasetSummary
from whyformer.jobs.dataset import ExplainedDataset as ExplainedDataset
from whyformer.jobs.job import explain_dataset as explain_dataset

__all__ = ["DatasetSummary", "ExplainedDataset", "explain_dataset"]
