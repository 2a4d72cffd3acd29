"""Tiny seeded models of every family, for tests that run over all of them. Nothing is built on import."""

from torch import nn

from tests.models import handwritten, multimodal, text_image_table, torch_nn
from tests.models.case import Case, Inputs, run
from tests.support.sharing import Shared

CASES: dict[str, Case] = {
    case.name: case for family in (text_image_table, multimodal, torch_nn, handwritten) for case in family.CASES
}
UNUSUAL: dict[str, Case] = {case.name: case for case in multimodal.UNUSUAL}

WITHOUT_ATTENTION: dict[str, Case] = {case.name: case for case in handwritten.WITHOUT_ATTENTION}
LEAKY: dict[str, Case] = {case.name: case for case in handwritten.LEAKY}

SHARED = Shared(
    lambda name, implementation: (CASES | UNUSUAL)[name].build(implementation),
    lambda model, name, _: run(model, (CASES | UNUSUAL)[name].inputs()),
)


def model_of(name: str, *implementation: str | None) -> nn.Module:
    """One model for all tests of a process, built and studied once. None changes it: tests/conftest.py sees to that."""
    return SHARED(name, *(implementation or (CASES | UNUSUAL)[name].implementations[:1]))


__all__ = ["CASES", "LEAKY", "SHARED", "UNUSUAL", "WITHOUT_ATTENTION", "Case", "Inputs", "model_of", "run"]
