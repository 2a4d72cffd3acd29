"""Concepts: sensitivity of the output to concepts (TCAV), and inputs that maximise a unit's activation.

>>> model, image_processor = wf.demo.load_pets()
>>> wf.concepts.activation_maximization(model, "dog", processor=image_processor, steps=4).show()
"""

from whyformer.concepts.activation_maximization import Maximized, activation_maximization
from whyformer.concepts.concept_vectors import ConceptScore, TCAVResult, tcav

__all__ = ["ConceptScore", "Maximized", "TCAVResult", "activation_maximization", "tcav"]
