"""A model that attends to padding by design: its rows are right, and the share that belongs to no unit is said."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from tests.models.case import randint
from whyformer.errors import BadInput, CaptureError

IDS = torch.tensor([[5, 6, 7, 8, 9], [9, 10, 3, 0, 0]])
PADDED = {"input_ids": IDS, "attention_mask": (IDS > 0).long()}


class MasksWhenPooling(nn.Module):
    """The mask is used in pooling only, or in attention as well."""

    def __init__(self, hides: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.hides, self.embed, self.head = hides, nn.Embedding(50, 16), nn.Linear(16, 3)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = ~attention_mask.bool() if self.hides else None
        states = self.encoder(self.embed(input_ids), src_key_padding_mask=hidden)
        real = attention_mask[..., None].float()
        logits: Tensor = self.head((states * real).sum(1) / real.sum(1))
        return logits


def by_hand(model: nn.Module, method: str) -> Tensor:
    """(2, N) scores over all positions, padding among them, as the model computes with it."""
    record = wf.Explainer(model).record(PADDED, grad=True, target=0)
    eye = whole = torch.eye(IDS.shape[1]).expand(2, -1, -1)
    for site in record.sites:
        attention = site.attention_BHQK.mean(1)
        if method == "raw_attention":
            whole = attention
        elif method == "attention_rollout":
            whole = (attention + eye) / 2 @ whole
        else:
            assert site.attention_grad_BHQK is not None
            raised = (site.attention_BHQK * site.attention_grad_BHQK).clamp(min=0).mean(1)
            whole = whole + raised @ whole
    real = PADDED["attention_mask"].float()
    return torch.einsum("bq,bqk->bk", real / real.sum(1, keepdim=True), whole)


@pytest.mark.parametrize("method", ["raw_attention", "attention_rollout", "generic_attention"])
def test_rows_keep_what_goes_to_padding(method: str) -> None:
    model = MasksWhenPooling(hides=False).eval()
    whole, padded = wf.explain(model, PADDED, method=method, target=0)
    expected = by_hand(model, method)
    np.testing.assert_allclose(whole.scores, expected[0], rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(padded.scores, expected[1, :3], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("method", ["raw_attention", "generic_attention", "alti", "value_zeroing"])
def test_the_share_is_said_where_there_is_one(method: str) -> None:
    whole, padded = wf.explain(MasksWhenPooling(hides=False).eval(), PADDED, method=method, target=0)
    assert not any("padding" in warning for warning in whole.warnings)
    maps = wf.Explainer(MasksWhenPooling(hides=False).eval()).record(PADDED).sites
    share = float(torch.stack([site.attention_BHQK[1, :, :3, 3:].sum(-1).mean() for site in maps]).mean())
    assert any(f"{share:.0%} of this input's attention goes to padding" in warning for warning in padded.warnings)
    for explanation in wf.explain(MasksWhenPooling(hides=True).eval(), PADDED, method=method, target=0):
        assert not any("padding" in warning for warning in explanation.warnings)


@pytest.mark.parametrize("method", ["generic_attention", "value_zeroing"])
@pytest.mark.parametrize(("name", "side"), [("bert", "left"), ("xlnet", "right")])
def test_a_head_that_reads_padding_is_refused(name: str, side: str, method: str) -> None:
    """BERT's reads its first position and XLNet's its last, whatever stands there."""
    case = CASES[name]
    ids, real = randint(8, 90, 2, 6, seed=3), torch.ones(2, 6, dtype=torch.long)
    real[1, slice(2) if side == "left" else slice(4, 6)] = 0
    inputs = {"input_ids": ids * real, "attention_mask": real}
    other = {name: tensor[:, torch.arange(6).roll(2 if side == "right" else -2)] for name, tensor in inputs.items()}
    model = case.build(case.implementations[0])
    with pytest.raises(CaptureError, match=r"is padding here.*Pad on the (right|left) side"):
        wf.explain(model, {name: tensor[1:] for name, tensor in inputs.items()}, method=method, target=1)
    model = case.build(case.implementations[0])  # which is studied on the first input
    with pytest.raises(BadInput, match=r"is padding here.*Pad on the (right|left) side"):
        wf.explain(model, inputs, method=method, target=1)
    assert len(wf.explain(model, inputs, method="occlusion", target=1)) == 2
    assert len(wf.explain(model, {n: t[1:] for n, t in other.items()}, method=method, target=1)) == 1
