"""head_importance against its twins and the golden numbers."""

from __future__ import annotations

import numpy as np
import pytest

import whyformer as wf
from tests.heads.importances import TARGET, found
from tests.methods.properties import FAMILY, close, golden, model_of
from tests.models import CASES
from tests.models.case import LAYERS
from tests.references import head_importance as twin
from tests.references.head_lrp import lrp_relevance
from whyformer.heads import head_importance

# The authors' numbers


@pytest.mark.parametrize("normalize", [None, "l2"])
def test_meets_michels_code_on_the_logit(normalize: str | None) -> None:
    case = golden()
    key = f"head_importance.michel_token.logit.{normalize or 'raw'}"
    got = head_importance(case.model, case.inputs, target=case.target, per="token", normalize=normalize)
    close(got.scores, case.expected[key], case.meta["arrays"][key]["tol"])


@pytest.mark.parametrize("normalize", [None, "l2"])
def test_meets_michels_code_on_the_loss(normalize: str | None) -> None:
    case = golden()
    key = f"head_importance.michel_token.loss.{normalize or 'raw'}"
    got = head_importance(
        case.model, case.inputs, labels=case.target, scalar="loss", per="token", normalize=normalize
    ).scores
    if normalize is None:  # their loss is the mean over a batch, here of two, which divides every gradient by two
        got = got / 2
    close(got, case.expected[key], case.meta["arrays"][key]["tol"])


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("scalar", ["logit", "loss"])
def test_meets_the_golden_mask_gradient(scalar: str, row: int) -> None:
    case = golden()
    one = {k: v[row : row + 1] for k, v in case.inputs.items()}
    how = {"labels": [case.target[row]]} if scalar == "loss" else {"target": case.target[row]}
    got = head_importance(case.model, one, scalar=scalar, **how)
    want = case.expected[f"head_importance.signed_xi_grad.{scalar}.b{row}"]
    close(got.direction, want, case.meta["arrays"][f"head_importance.signed_xi_grad.{scalar}"]["tol"])
    close(got.scores, np.abs(want), 1e-4)


def test_meets_the_golden_ablation() -> None:
    case = golden()
    got = head_importance(case.model, case.inputs, kind="ablation", target=case.target)
    close(got.samples[0], case.expected["head_ablation.logit_drop.b0"], 1e-4)


# The twins


@pytest.mark.parametrize("name", FAMILY)
def test_gradient_is_that_of_a_mask(name: str) -> None:
    want = np.array([twin.mask_gradient(name, row, twin.logit(TARGET)) for row in range(2)])
    got = found(name, kind="gradient")
    close(got.samples, np.abs(want))
    close(got.direction, want.mean(0))
    close(got.scores, np.abs(want).mean(0))


@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_loss_gradient_is_that_of_a_mask(name: str) -> None:
    labels = [2, 0]
    want = np.array([twin.mask_gradient(name, row, twin.loss(labels[row])) for row in range(2)])
    got = head_importance(model_of(name), CASES[name].inputs(), labels=labels, scalar="loss")
    close(got.samples, np.abs(want))


@pytest.mark.parametrize("name", FAMILY)
def test_token_importance(name: str) -> None:
    sums = sum(twin.token_sums(name, row, twin.logit(TARGET)) for row in range(2))
    counts = np.full(LAYERS, sum(twin.tokens(name, row) for row in range(2)), float)
    counts[-1] = 2  # one row per input is read
    close(found(name, kind="gradient", per="token").scores, sums / counts[:, None])


@pytest.mark.parametrize("name", FAMILY)
@pytest.mark.parametrize("ablate", ["one", "all_but_one"])
def test_ablation_is_a_mask_at_zero(name: str, ablate: str) -> None:
    got = found(name, kind="ablation", ablate=ablate)
    for row in range(2):
        close(got.samples[row], twin.ablation(name, row, twin.logit(TARGET), ablate == "all_but_one"))


def test_ablation_of_the_loss_counts_what_it_adds() -> None:
    labels = [2, 0]
    got = head_importance(model_of("bert"), CASES["bert"].inputs(), kind="ablation", labels=labels, scalar="loss")
    for row in range(2):
        close(got.samples[row], -twin.ablation("bert", row, twin.loss(labels[row])))


@pytest.mark.parametrize("name", FAMILY)
def test_confidence(name: str) -> None:
    got = found(name, kind="confidence")
    units = [e.units for e in wf.explain(model_of(name), CASES[name].inputs(), method="raw_attention")]
    for row in range(2):
        close(got.samples[row], twin.confidence(name, row, list(units[row].special)))


@pytest.mark.parametrize("name", FAMILY)
def test_generic_relevance(name: str) -> None:
    got = found(name, kind="relevance", rule="generic")
    for row in range(2):
        want = twin.generic_relevance(name, row, TARGET)
        close(got.samples[row], want / want.sum(1, keepdims=True))


def test_lrp_relevance_is_what_the_linearised_model_loses() -> None:
    got = found("llama", kind="relevance")
    for row in range(2):
        want, _ = lrp_relevance(row, TARGET)
        close(got.samples[row], np.abs(want) / np.abs(want).sum(1, keepdims=True))
