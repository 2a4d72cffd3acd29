"""The test models: they run, repeat, and attend as the tests rely on; who changes a shared one is found out."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from tests.models import CASES, LEAKY, WITHOUT_ATTENTION, Case, model_of, run
from tests.models.case import softmax_outputs
from tests.models.handwritten import PackedAttention
from tests.models.hf import LENGTHS
from tests.support.sharing import Shared

NEGATIVE = WITHOUT_ATTENTION | LEAKY

pytestmark = [  # nn.TransformerEncoder on a padded batch; DeBERTa
    pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning"),
]


def each(cases: dict[str, Case]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("case", cases.values(), ids=cases)


def head(case: Case, model: nn.Module) -> Tensor:
    with torch.no_grad():
        output = run(model, case.inputs())
    assert case.logits is not None
    return case.logits(output)


@each(CASES | NEGATIVE)
def test_runs_repeatably_and_alike_with_every_attention_implementation(case: Case) -> None:
    build = partial(model_of, case.name) if case.name in CASES else case.build
    outputs = [head(case, build(implementation)) for implementation in case.implementations]
    assert outputs[0].shape[0] == 2 and outputs[0].ndim == 2
    assert outputs[0].isfinite().all()
    assert not torch.equal(outputs[0][0], outputs[0][1])
    assert torch.equal(head(case, case.build(case.implementations[0])), outputs[0])
    for other in outputs[1:]:
        torch.testing.assert_close(other, outputs[0], atol=1e-4, rtol=1e-4)


@each(CASES | LEAKY)
def test_reference_attention_is_complete_and_far_from_uniform(case: Case) -> None:
    maps = case.reference()
    assert sorted(maps) == list(range(case.sites))
    for probabilities in maps.values():
        assert probabilities.ndim == 4
        torch.testing.assert_close(probabilities.sum(-1), torch.ones(probabilities.shape[:-1]))
        choice = probabilities[(probabilities > 0).sum(-1) > 1].amax(-1)  # rows that have a choice
        assert choice.mean() > 0.3
        assert choice.max() < 1


HIDDEN = {name for name in CASES if name.startswith("nn_")} | {"timm_fused"}  # fused: no softmax to be seen


@each({name: case for name, case in CASES.items() if case.readout is not None and name not in HIDDEN})
def test_readout_is_the_row_that_feeds_the_head(case: Case) -> None:
    assert case.logits is not None
    model = model_of(case.name, case.implementations[-1])  # which runs it once, if it is new
    with softmax_outputs() as found:
        scores = case.logits(run(model, case.inputs()))
    gradients = torch.autograd.grad(scores.square().sum(), found, allow_unused=True)
    last = [gradient for gradient in gradients if gradient is not None][-1]  # LXMERT: the text side
    fed = last.reshape(2, -1, *last.shape[-2:]).abs().sum((1, 3)) > 0
    for row, length in zip(fed, LENGTHS, strict=True):
        rows = row.nonzero().flatten().tolist()
        places = {"last": length - 1, "eos": length - 1, "before_last": length - 2}
        if case.readout == "mean":
            assert len(rows) > 1
        else:
            assert rows == [places.get(case.readout, case.readout) % len(row)]  # type: ignore[arg-type, operator]


@each(LEAKY | {name: (CASES | WITHOUT_ATTENTION)[name] for name in ("xcit", "timm_unfused")})
def test_leaky_models_mix_tokens_even_when_every_token_attends_to_itself(case: Case) -> None:
    (image,) = case.inputs()
    changed = image.clone()
    changed[:, :, :8, :8] = 0  # one patch; the head reads the class token
    alone = patch.object(PackedAttention, "weights", lambda module, x: torch.eye(x.shape[1]).expand(2, 4, -1, -1))
    with alone, torch.no_grad():
        model = case.build(None)
        assert torch.equal(model(image), model(changed)) == (case.name == "timm_unfused")


CHANGES: dict[str, Callable[[Any], Any]] = {
    "a weight": lambda model: model.classifier.weight.data.add_(1e-3),
    "precision": lambda model: model.half(),
    "mode": lambda model: model.train(),
    "a hook": lambda model: model.bert.register_forward_hook(lambda *_: None),
    "a gradient": lambda model: setattr(model.classifier.weight, "grad", torch.ones_like(model.classifier.weight)),
    "what is trained": lambda model: model.bert.requires_grad_(False),
    "settings": lambda model: setattr(model.config, "pad_token_id", 7),
    "a part": lambda model: setattr(model, "classifier", nn.Sequential(model.classifier)),
}


@pytest.fixture(scope="module")
def shared() -> Shared:
    return Shared(lambda name: CASES[name].build("sdpa"), lambda model, name: run(model, CASES[name].inputs()))


@pytest.mark.parametrize("what", CHANGES)
def test_a_change_is_found_out_and_not_handed_on(shared: Shared, what: str) -> None:
    with pytest.raises(AssertionError, match=r"shared with other tests: \[\('bert',\)\]"), shared.handed_back():
        changed = shared("bert")
        CHANGES[what](changed)
    with shared.handed_back():
        assert shared("bert") is not changed and shared("bert") is shared("bert")
