"""A model that says something else while it is looked into is never explained by that."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from whyformer.errors import NotOffered
from whyformer.study.interference import rounding_step

IDS = torch.tensor([[5, 6, 7, 8, 9], [9, 10, 3, 0, 0]])
PADDED = {"input_ids": IDS, "attention_mask": (IDS > 0).long()}
LOOKING = ["attention_rollout", "generic_attention", "value_norms", "input_x_gradient", "integrated_gradients"]


class PoolsPadding(nn.Module):
    """Torch's own encoder under a head that pools padded rows, which its fused path sets to zero."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 3)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True), 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        hidden = self.encoder(self.embed(input_ids), src_key_padding_mask=~attention_mask.bool())
        return self.head(hidden.mean(1))


@pytest.fixture
def model() -> Iterator[nn.Module]:
    torch.manual_seed(0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # nested tensors are a prototype
        yield PoolsPadding().eval()


def values(model: nn.Module, inputs: dict[str, Tensor] = PADDED) -> Tensor:
    with torch.no_grad():
        return model(**inputs)[:, 0]


@pytest.mark.parametrize("method", LOOKING)
def test_a_padded_batch_that_would_be_explained_by_another_value_is_refused(model: nn.Module, method: str) -> None:
    with pytest.raises(NotOffered, match="says something else while it is looked into"):
        wf.explain(model, PADDED, method=method, target=0)


@pytest.mark.parametrize("method", LOOKING)
def test_a_model_that_was_fine_without_padding_is_looked_at_again_with_it(model: nn.Module, method: str) -> None:
    explainer = wf.Explainer(model)
    whole = {name: tensor[:1] for name, tensor in PADDED.items()}
    (explanation,) = explainer.explain(whole, method=method, target=0)
    assert explanation.value == pytest.approx(float(values(model, whole)[0]), abs=1e-5)
    with pytest.raises(NotOffered, match="class 0 of input 1"):
        explainer.explain(PADDED, method=method, target=0)


def test_what_the_error_advises_works(model: nn.Module) -> None:
    plain = values(model)
    for explanation, value in zip(wf.explain(model, PADDED, method="occlusion", target=0), plain, strict=True):
        assert explanation.value == pytest.approx(float(value), abs=1e-5)
    for method in LOOKING:
        for row, count in enumerate((5, 3)):
            alone = {name: tensor[row : row + 1, :count] for name, tensor in PADDED.items()}
            (explanation,) = wf.explain(model, alone, method=method, target=0)
            assert explanation.value == pytest.approx(float(values(model, alone)[0]), abs=1e-5)
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        for method in LOOKING:
            explained = wf.explain(model, PADDED, method=method, target=0)
            assert [e.value for e in explained] == pytest.approx(values(model).tolist(), abs=1e-5)
    finally:
        torch.backends.mha.set_fastpath_enabled(True)


class Asking(nn.Module):
    """Takes another way when it is asked for gradients; or another one each time."""

    def __init__(self, about: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.about, self.calls = about, 0
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 3)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, input_ids: Tensor) -> Tensor:
        self.calls += 1
        logits: Tensor = self.head(self.layer(self.embed(input_ids))[:, 0])
        if self.about == "gradients":
            return logits + 0.1 * torch.is_grad_enabled()
        return logits + 0.1 * self.calls


def test_a_model_that_asks_for_gradients_is_refused_where_they_are_on() -> None:
    model = Asking("gradients").eval()
    with pytest.raises(NotOffered, match="is_grad_enabled"):
        wf.explain(model, {"input_ids": IDS}, method="generic_attention", target=0)
    assert wf.explain(model, {"input_ids": IDS}, method="attention_rollout", target=0)


@pytest.mark.parametrize("grad", [False, True])
def test_a_record_is_held_to_a_plain_pass(model: nn.Module, grad: bool) -> None:
    with pytest.raises(NotOffered, match="says something else while it is looked into"):
        wf.Explainer(model).record(PADDED, grad=grad)
    whole = {name: tensor[:1] for name, tensor in PADDED.items()}
    assert len(wf.Explainer(model).record(whole, grad=grad).sites) == 2


def test_a_record_of_a_model_that_answers_differently_each_time_is_refused() -> None:
    with pytest.raises(NotOffered, match="differently each time"):
        wf.Explainer(Asking("calls").eval()).record({"input_ids": IDS})


def test_a_model_that_answers_differently_each_time_is_refused() -> None:
    with pytest.raises(NotOffered, match="differently each time"):
        wf.explain(Asking("calls").eval(), {"input_ids": IDS}, method="attention_rollout", target=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("method", ["attention_rollout", "generic_attention", "input_x_gradient"])
def test_rounding_of_half_precision_is_no_difference(dtype: torch.dtype, method: str) -> None:
    model: Any = Asking("gradients").eval().to(dtype)
    model.about = ""
    model.calls = 0
    model.forward = lambda input_ids: model.head(model.layer(model.embed(input_ids))[:, 0])
    assert len(wf.explain(model, {"input_ids": IDS}, method=method, target=0)) == 2


def test_the_pass_is_counted_once_for_each_form_of_a_batch(model: nn.Module) -> None:
    explainer = wf.Explainer(model)
    short = {name: tensor[:1] for name, tensor in PADDED.items()}
    two = {name: tensor.repeat(2, 1) for name, tensor in short.items()}
    spent = [explainer.explain(inputs, target=0)[0].cost.setup_forwards for inputs in (short, short, two, two)]
    assert spent[0] > spent[2] == 1
    assert spent[1] == spent[3] == 0


@pytest.mark.parametrize("precision, step", [("highest", 2.0**-23), ("high", 2.0**-10), ("medium", 2.0**-7)])
def test_rounding_inside_products_is_what_the_user_allows(precision: str, step: float) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        assert rounding_step(nn.Linear(2, 2), torch.zeros(1)) == step
    finally:
        torch.set_float32_matmul_precision(before)
