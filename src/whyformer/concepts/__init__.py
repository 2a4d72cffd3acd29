"""Concepts: does a layer know them, does the output use them, and what does a unit like best?

>>> model, image_processor = wf.demo.load_pets()
>>> wf.concepts.activation_maximization(model, "dog", processor=image_processor, steps=4).show()
"""

from whyformer.concepts.activation_maximization import Maximized as Maximized
from whyformer.concepts.activation_maximization import activation_maximization as activation_maximization
from whyformer.concepts.concept_vectors import ConceptScore as ConceptScore
from whyformer.concepts.concept_vectors import TCAVResult as TCAVResult
from whyformer.concepts.concept_vectors import tcav as tcav

__all__ = ["ConceptScore", "Maximized", "TCAVResult", "activation_maximization", "tcav"]
