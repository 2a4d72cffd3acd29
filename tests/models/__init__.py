"""Tiny seeded models of every family, for tests that run over all of them. Nothing is built on import."""

from tests.models import handwritten, multimodal, negative, tabular, text, torch_nn, vision, vision_language
from tests.models.case import Case, Inputs, run

CASES: dict[str, Case] = {
    case.name: case
    for family in (text, vision, multimodal, vision_language, torch_nn, handwritten, tabular)
    for case in family.CASES
}
UNUSUAL: dict[str, Case] = {case.name: case for case in vision_language.UNUSUAL}

WITHOUT_ATTENTION: dict[str, Case] = {case.name: case for case in negative.WITHOUT_ATTENTION}
LEAKY: dict[str, Case] = {case.name: case for case in negative.LEAKY}

__all__ = ["CASES", "LEAKY", "UNUSUAL", "WITHOUT_ATTENTION", "Case", "Inputs", "run"]
