"""A class of one's own that inherits from a known one is taken for what its parent is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from tests.models.hf import ENCODER
from tests.support.processors import tokenizer
from whyformer.errors import NotOffered
from whyformer.inputs.families import says_tokens, task_of


def renamed(model: nn.Module, name: str) -> nn.Module:
    """The same model under a class of one's own."""
    model.__class__ = type(name, (type(model),), {})
    return model


@pytest.mark.parametrize("name", ["gpt2", "llama", "detr"])
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
