"""Tiny seeded models of every family, for tests that run over all of them. Nothing is built on import."""

from tests.models import handwritten, multimodal, negative, tabular, text, torch_nn, vision
from tests.models.case import Case, Inputs, run

CASES: dict[str, Case] = {
    case.name: case for family in (text, vision, multimodal, torch_nn, handwritten, tabular) for case in family.CASES
}

WITHOUT_ATTENTION: dict[str, Case] = {case.name: case for case in negative.WITHOUT_ATTENTION}
LEAKY: dict[str, Case] = {case.name: case for case in negative.LEAKY}

__all__ = ["CASES", "LEAKY", "WITHOUT_ATTENTION", "Case", "Inputs", "run"]
