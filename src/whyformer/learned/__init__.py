"""Explanations that have learned a model: scores close to Shapley values from one forward and one backward pass."""

from whyformer.learned.learned import Certificate, CertifiedMethod, Learned
from whyformer.learned.learning import learn

__all__ = ["Certificate", "CertifiedMethod", "Learned", "learn"]
