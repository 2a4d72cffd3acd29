"""Explanations that have learned a model: scores close to Shapley values from one forward and one backward pass."""

from whyformer.learned.certificate import Certificate, CertifiedMethod
from whyformer.learned.learned import Learned
from whyformer.learned.learning import learn

__all__ = ["Certificate", "CertifiedMethod", "Learned", "learn"]
