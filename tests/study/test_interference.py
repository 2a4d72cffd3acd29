"""Models that answer differently while observed or beside other inputs, or that attend out of sight."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.test_contracts import QUICK
from whyformer.errors import MixedInputs, NotOffered, PartlyCaptured
from whyformer.study.interference import SINGLY, rounding_step

IDS = torch.tensor([[5, 6, 7, 8, 9], [9, 10, 3, 0, 0]])
PADDED = {"input_ids": IDS, "attention_mask": (IDS > 0).long()}
TEXTS = {"input_ids": torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12], [13, 3, 14, 5, 15]])}
LOOKING = ["attention_rollout", "value_norms", "input_x_gradient"]


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
    """Also of a model that was fine without padding."""
    explainer = wf.Explainer(model)
    whole = {name: tensor[:1] for name, tensor in PADDED.items()}
    (explanation,) = explainer.explain(whole, method=method, target=0)
    assert explanation.value == pytest.approx(float(values(model, whole)[0]), abs=1e-5)
    with pytest.raises(NotOffered, match=r"output changes under interception.*class 0 of input 1"):
        explainer.explain(PADDED, method=method, target=0)


class Odd(nn.Module):
    """One layer of attention. ``how``: what it does that no classifier should."""

    def __init__(self, how: str = "") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.calls, self.embed, self.head = how, 0, nn.Embedding(20, 16), nn.Linear(16, 3)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        if self.how == "mean":  # over all rows of the batch
            x = x - x.mean(0, keepdim=True) / 2
        if self.how == "maximum":  # one row has it, and is not changed by the others
            x = x / x.abs().amax((0, 2), keepdim=True)
        if self.how == "room":  # for so many tokens of a batch, as experts have it
            x = x * (torch.arange(input_ids.numel()) < 20).view(*input_ids.shape, 1)
        logits: Tensor = self.head(self.layer(x)[:, 0])
        if self.how == "asks for gradients":
            return logits + 0.1 * torch.is_grad_enabled()
        self.calls += self.how == "another answer each time"
        return logits + 0.1 * self.calls


@pytest.mark.parametrize(
    ("how", "method", "words"),
    [
        ("asks for gradients", "generic_attention", "is_grad_enabled"),
        ("asks for gradients", "attention_rollout", "is_grad_enabled"),  # the head is differentiated
        ("another answer each time", "attention_rollout", "output is random"),
        ("another answer each time", None, "output is random"),
    ],
)
def test_a_model_that_goes_another_way_is_refused(how: str, method: str | None, words: str) -> None:
    explainer = wf.Explainer(Odd(how).eval())
    with pytest.raises(NotOffered, match=words):
        explainer.record(TEXTS) if method is None else explainer.explain(TEXTS, method=method, target=0)


def test_the_pass_is_counted_once_for_each_form_of_a_batch(model: nn.Module) -> None:
    explainer = wf.Explainer(model)
    short = {name: tensor[:1] for name, tensor in PADDED.items()}
    two = {name: tensor.repeat(2, 1) for name, tensor in short.items()}
    asked = (explainer.explain(inputs, method="generic_attention", target=0) for inputs in (short, short, two, two))
    spent = [explanations[0].cost.setup_forwards for explanations in asked]
    assert spent[0] >= spent[2] == 2
    assert spent[1] == spent[3] == 0


@pytest.mark.parametrize("precision, step", [("highest", 2.0**-23), ("high", 2.0**-10), ("medium", 2.0**-7)])
def test_rounding_inside_products_is_what_the_user_allows(precision: str, step: float) -> None:
    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(precision)
        assert rounding_step(nn.Linear(2, 2), torch.zeros(1)) == step
    finally:
        torch.set_float32_matmul_precision(before)


# Inputs of a batch that change each other's answers are run singly, and the results say so.

METHODS = ["generic_attention", "integrated_gradients", "occlusion"]
ONE = {"input_ids": TEXTS["input_ids"][:1]}


def explained(model: nn.Module, inputs: dict[str, Tensor], method: str, **how: int) -> list[wf.Explanation]:
    options = QUICK.get(method, {}) | ({"replace": 1} if method in {"occlusion", "two_ended"} else {})
    return wf.explain(model, inputs, method=method, target=0, **options, **how)


@pytest.mark.parametrize("how", ["mean", "maximum"])
@pytest.mark.parametrize("method", METHODS)
def test_each_is_explained_as_it_is_by_itself(method: str, how: str) -> None:
    model = Odd(how).eval()
    for row, explanation in enumerate(explained(model, TEXTS, method)):
        one = {"input_ids": TEXTS["input_ids"][row : row + 1]}
        (alone,) = explained(Odd(how).eval(), one, method, batch_size=1)
        assert explanation.value == pytest.approx(float(values(model, one)), abs=1e-5)
        np.testing.assert_allclose(explanation.scores, alone.scores, atol=1e-6)
        assert SINGLY in explanation.warnings


@pytest.mark.parametrize("method", ["occlusion", "smooth_grad"])
def test_variants_of_a_single_input_are_run_singly(method: str) -> None:
    (explanation,) = explained(Odd("mean").eval(), ONE, method)
    (alone,) = explained(Odd("mean").eval(), ONE, method, batch_size=1)
    np.testing.assert_allclose(explanation.scores, alone.scores, atol=1e-6)
    assert SINGLY in explanation.warnings
    assert SINGLY not in alone.warnings, "nothing was beside it, and nothing is known"


def test_it_is_known_of_the_model_from_then_on() -> None:
    model = Odd("mean").eval()
    explained(model, TEXTS, "attention_rollout")
    (explanation,) = explained(model, ONE, "occlusion")
    assert SINGLY in explanation.warnings
    assert explanation.cost.setup_forwards == 0


class Price(nn.Module):
    """What the other rows of a batch change is small beside its numbers, and beside how far they are apart."""

    def __init__(self, mixes: float, biases: tuple[float, ...] = (500.0,)) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.odd, self.head, self.mixes = Odd(""), nn.Linear(3, len(biases)), mixes
        self.head.bias.data = torch.tensor(biases)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.odd(input_ids)
        return self.head(hidden + self.mixes * hidden.mean(0) if self.mixes else hidden)


@pytest.mark.parametrize("method", ["generic_attention", "occlusion"])
def test_classes_that_are_far_apart_hide_no_mixing(method: str) -> None:
    for explanation in explained(Price(0.01, (20.0, -20.0)).eval(), TEXTS, method):
        assert SINGLY in explanation.warnings


@pytest.mark.parametrize("mixes", [0.3, 0.0])
@pytest.mark.parametrize("method", ["generic_attention", "occlusion", "integrated_gradients"])
def test_a_number_far_from_zero_hides_no_mixing(method: str, mixes: float) -> None:
    for row, explanation in enumerate(explained(Price(mixes).eval(), TEXTS, method)):
        one = {"input_ids": TEXTS["input_ids"][row : row + 1]}
        (alone,) = explained(Price(mixes).eval(), one, method, batch_size=1)
        assert explanation.value == pytest.approx(alone.value, abs=1e-4)
        np.testing.assert_allclose(explanation.scores, alone.scores, atol=2e-4)
        assert (SINGLY in explanation.warnings) is bool(mixes)


def test_halves_of_a_batch_that_have_the_same_mean_hide_no_mixing() -> None:
    twice = {"input_ids": TEXTS["input_ids"][:2].repeat(2, 1)}
    for explanation in explained(Price(0.3).eval(), twice, "generic_attention"):
        assert SINGLY in explanation.warnings


@pytest.mark.parametrize("method", ["integrated_gradients", "occlusion", "two_ended", "smooth_grad"])
def test_larger_batches_are_tried_again(method: str) -> None:
    model, long = Odd("room").eval(), {"input_ids": torch.arange(1, 13)[None]}
    assert not any(SINGLY in explanation.warnings for explanation in explained(model, TEXTS, "generic_attention"))
    (explanation,) = explained(model, long, method)
    (alone,) = explained(Odd("room").eval(), long, method, batch_size=1)
    np.testing.assert_allclose(explanation.scores, alone.scores, atol=1e-6)
    assert SINGLY in explanation.warnings


def test_verbs_that_run_inputs_together_refuse_or_run_them_singly() -> None:
    model, how = Odd("mean").eval(), {"kind": "gradient", "target": 0}
    each = [wf.head_importance(model, {"input_ids": row[None]}, **how).scores for row in TEXTS["input_ids"]]
    together = wf.head_importance(Odd("mean").eval(), TEXTS, **how)
    np.testing.assert_allclose(together.scores, np.mean(each, 0), atol=1e-6)
    with pytest.raises(MixedInputs, match="batch_size=1"):
        wf.Explainer(Odd("mean").eval()).record(TEXTS, grad=True, target=0)


# Attention that runs out of sight beside attention that is seen: refused, never a map of a part.

WORDS = {"x": torch.tensor([[3, 4, 5, 6, 7], [8, 9, 10, 11, 12]])}
VECTORS = {"x": torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.qkv(x).chunk(3, -1))
        out = (q @ k.transpose(-1, -2) / 2).softmax(-1) @ v
        return x + self.out(out.transpose(1, 2).flatten(2))


class InThread(Block):
    def forward(self, x: Tensor) -> Tensor:
        with ThreadPoolExecutor(1) as threads:
            return threads.submit(Block.forward, self, x).result()


class Three(nn.Module):
    def __init__(self, at: int | None, kind: str, pool: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.pool, self.embed, self.head = pool, nn.Embedding(20, 16), nn.Linear(16, 3)
        self.blocks = nn.ModuleList(Block() for _ in range(3))
        if at is not None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # TorchScript is deprecated
                self.blocks[at] = InThread() if kind == "thread" else torch.jit.script(Block())

    def forward(self, x: Tensor) -> Tensor:
        x = x if x.is_floating_point() else self.embed(x)
        for block in self.blocks:
            x = block(x)
        logits: Tensor = self.head(x[:, 0] if self.pool == "first" else x.mean(1))
        return logits


@pytest.mark.parametrize(("inputs", "pool"), [(WORDS, "first"), (VECTORS, "mean")], ids=["ids", "vectors"])
@pytest.mark.parametrize("at", [0, 2])
@pytest.mark.parametrize("kind", ["script", "thread"])
def test_a_block_out_of_sight_is_refused_and_named(kind: str, at: int, pool: str, inputs: dict[str, Tensor]) -> None:
    model = Three(at, kind, pool).eval()
    for method in ("attention_rollout", "generic_attention"):
        with pytest.raises(PartlyCaptured, match=rf"blocks\.{at}.*(TorchScript|thread)"):
            wf.explain(model, inputs, method=method, target=0)


@pytest.mark.parametrize("kind", ["script", "thread"])
def test_what_the_error_advises_works(kind: str) -> None:
    model = Three(2, kind, "mean").eval()
    for method in ("integrated_gradients", "occlusion"):
        assert len(wf.explain(model, WORDS, method=method, target=0)) == 2
    with pytest.raises(NotOffered, match="need a captured model"):
        wf.explain(model, WORDS, method="attn_lrp", target=0)


def test_somebody_else_who_runs_the_model_meanwhile_hides_nothing() -> None:
    model, over = Three(None, "", "first").eval(), threading.Event()

    @torch.no_grad()
    def predict() -> None:
        while not over.is_set():
            model(**WORDS)

    with ThreadPoolExecutor(1) as threads:
        threads.submit(predict)
        try:
            assert len(wf.explain(model, WORDS, method="attention_rollout", target=0)) == 2
        finally:
            over.set()
