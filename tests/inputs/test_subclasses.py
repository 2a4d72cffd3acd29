"""What a model is: a subclass is taken for what its parent is, a causal model is found by running it."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

import whyformer as wf
from tests.models import CASES
from tests.models.hf import ENCODER
from tests.support.processors import tokenizer
from whyformer import Explainer
from whyformer.errors import NotOffered
from whyformer.inputs.families import says_tokens, task_of
from whyformer.inputs.language import ENOUGH, is_causal
from whyformer.loan.borrow import borrowed


def renamed(model: nn.Module, name: str) -> nn.Module:
    """The same model under a class of one's own."""
    model.__class__ = type(name, (type(model),), {})
    return model


@pytest.mark.parametrize("name", ["gpt2", "detr"])
def test_a_subclass_gives_what_its_parent_gives(name: str) -> None:
    case = CASES[name]
    target: Any = (0, 1) if name == "detr" else 1

    def explained(model: nn.Module) -> list[wf.Explanation]:
        found = wf.explain(model, case.inputs(), method="generic_attention", target=target)
        return [e for one in found for e in (one if isinstance(one, list) else [one])]

    plain = explained(case.build(None))
    for own, parent in zip(explained(renamed(case.build(None), "Mine")), plain, strict=True):
        assert own.target == parent.target
        np.testing.assert_array_equal(own.scores, parent.scores)


def test_the_nearest_name_that_says_it_decides() -> None:
    model = CASES["gpt2"].build(None)
    assert says_tokens(renamed(model, "MyLM"))
    assert task_of(model) == "GPT2LMHeadModel"
    assert not says_tokens(renamed(model, "MyForSequenceClassification"))
    assert task_of(nn.Linear(1, 1)) == ""


def test_a_subclass_that_chooses_the_position_itself() -> None:
    model = CASES["llama"].build(None)

    class Last(type(model)):  # type: ignore[misc]
        def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
            logits: Tensor = super().forward(input_ids, attention_mask=attention_mask).logits
            return logits[:, -1]

    ids = torch.tensor([[5, 6, 7, 8]])
    plain = wf.explain(model, {"input_ids": ids}, target=3, method="occlusion", replace=4)[0]
    model.__class__ = Last
    own = wf.explain(model, {"input_ids": ids}, target=3, method="occlusion", replace=4)[0]
    np.testing.assert_allclose(own.scores, plain.scores, atol=1e-6)


@pytest.mark.parametrize("kind", ["Bert", "GPT2"])
def test_a_model_without_a_head_is_told_where_to_get_one(kind: str) -> None:
    import transformers

    sizes = (
        ENCODER if kind == "Bert" else {"vocab_size": ENCODER["vocab_size"], "n_embd": 32, "n_layer": 1, "n_head": 4}
    )
    model = getattr(transformers, f"{kind}Model")(getattr(transformers, f"{kind}Config")(**sizes)).eval()
    with pytest.raises(NotOffered, match=f"{kind}Model has no head.*AutoModelForSequenceClassification"):
        wf.explain(model, "a cat on the mat", processor=tokenizer())


# Whether a model looks ahead is tried on the beginning of a long text


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


@pytest.mark.parametrize("later", [1, ENOUGH // 2, ENOUGH - 1])
def test_it_is_seen_however_far_ahead(later: int) -> None:
    torch.manual_seed(0)
    model = Ahead(copy.deepcopy(CONFIG)).eval()
    model.later = later
    modality, batch, _ = Explainer(model).prepare({"input_ids": torch.randint(1, 40, (1, 3 * ENOUGH))})
    with borrowed(model):
        assert not is_causal(modality, batch)
