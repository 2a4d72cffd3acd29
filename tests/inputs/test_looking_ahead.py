"""Whether a model that says tokens looks ahead is tried out on the beginning of a long text."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

from whyformer import Explainer
from whyformer.inputs.language import ENOUGH, is_causal
from whyformer.loan.borrow import borrowed

CONFIG = GPT2Config(n_layer=2, n_head=2, n_embd=16, vocab_size=40, n_positions=128)


class Ahead(GPT2LMHeadModel):
    """What comes some tokens later is part of what is said."""

    later = 3

    def forward(self, input_ids: Tensor, **how: object) -> object:  # type: ignore[override]
        how.pop("logits_to_keep", None)
        out = super().forward(input_ids, **how)  # type: ignore[arg-type]
        out.logits = out.logits + 0.1 * out.logits.roll(-self.later, 1)
        return out


@pytest.mark.parametrize("length", [8, ENOUGH, 3 * ENOUGH])
@pytest.mark.parametrize(("kind", "causal"), [(GPT2LMHeadModel, True), (Ahead, False)], ids=["gpt2", "ahead"])
def test_a_long_text_tells_what_a_short_one_tells(kind: type[GPT2LMHeadModel], causal: bool, length: int) -> None:
    torch.manual_seed(0)
    model, rows = kind(copy.deepcopy(CONFIG)).eval(), []
    model.register_forward_pre_hook(
        lambda module, args, kwargs: rows.append(kwargs["input_ids"].shape), with_kwargs=True
    )
    modality, batch, _ = Explainer(model).prepare({"input_ids": torch.randint(1, 40, (1, length))})
    with borrowed(model):
        assert is_causal(modality, batch) is causal
    assert [tuple(shape) for shape in rows] == [(2, min(length, ENOUGH))]


@pytest.mark.parametrize("later", range(1, ENOUGH))
def test_it_is_seen_however_far_ahead(later: int) -> None:
    torch.manual_seed(0)
    model = Ahead(copy.deepcopy(CONFIG)).eval()
    model.later = later
    modality, batch, _ = Explainer(model).prepare({"input_ids": torch.randint(1, 40, (1, 3 * ENOUGH))})
    with borrowed(model):
        assert not is_causal(modality, batch)
