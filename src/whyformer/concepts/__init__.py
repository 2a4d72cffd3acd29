"""Concepts: does a layer know them, does the output use them, and what does a unit like best?

>>> model, image_processor = wf.demo.load_pets()
>>> wf.concepts.activation_maximization(model, "dog", processor=image_processor, steps=4).show()
"""

from whyformer.concepts.activation_maximization import Maximized, activation_maximization
from whyformer.concepts.concept_vectors import ConceptScore, TCAVResult, tcav

__all__ = ["ConceptScore", "Maximized", "TCAVResult", "activation_maximization", "tcav"]
