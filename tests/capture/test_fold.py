"""Folded explanations: equal to those from stored maps, and nothing of size heads × queries × keys is ever there."""

from __future__ import annotations

from functools import partial
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

import whyformer as wf
from tests.models import CASES, model_of
from tests.models.case import randint
from tests.study.test_slopes import IDS, Layers
from tests.support.language import model as language_model
from tests.support.language import tokenizer
from tests.support.released import BEFORE_FIVE
from whyformer.capture import fold, functions
from whyformer.capture.fold import FoldedSite, summed_map
from whyformer.capture.functions import FusedCall, HeadFusion, all_gradients, all_weights
from whyformer.engines.attention.chain import attention_heads
from whyformer.engines.attention.maps import over_heads
from whyformer.errors import NotOffered, NotOverUnits, WhyformerError

WAYS: dict[str, list[dict[str, Any]]] = {
    "generic_attention": [{}, {"heads": "max"}, {"heads": [0, -1], "start_layer": 1}],
    "grad_sam": [{}, {"reduce": "key"}, {"layers": "last"}],
    "value_x_gradient": [{}, {"layers": "last"}],
    "attention_x_gradient": [{}, {"layers": "mean", "read": "column_sum"}, {"layers": "product"}, {"read": "diagonal"}],
    "raw_attention": [{}, {"layers": "product", "read": "column_mean"}, {"read": "column", "layers": "mean"}],
    "attention_rollout": [{}, {"normalize": False, "residual": 0.3}, {"heads": "max", "start_layer": -1}],
    "gradient_rollout": [{}],
}
# Torch's own kernel with and without grouped heads, a causal mask, a bias; attention written out, also with heads in
# the batch; several streams; a layer of one row.
MODELS = ["bert", "llama", "gemma2", "t5", "lxmert", "deberta_v2", "detr", "nn_transformer_encoder"]
MODELS += ["rtdl_ft_transformer"]


@pytest.fixture(autouse=True)
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 16 rows at most, so that there are several."""
    monkeypatch.setattr(fold, "TILE_BYTES", {"cpu": 1})
    monkeypatch.setattr(fold, "FEWEST_ROWS", 3)


def close(folded: list[Any], full: list[Any], tolerance: float = 1e-5) -> None:
    for one, other in zip(folded, full, strict=True):
        assert np.abs(one.scores - other.scores).max() <= tolerance * np.abs(other.scores).max()
        assert one.value == pytest.approx(other.value, rel=1e-4, abs=1e-5)
        assert (one.cost.forwards, one.cost.backwards) == (other.cost.forwards, other.cost.backwards)


@pytest.mark.parametrize("name", MODELS)
def test_folded_is_full(name: str) -> None:
    """Each method on each model, and in turn on each of its implementations of attention."""
    case, compared = CASES[name], 0
    explainers, inputs = [wf.Explainer(model_of(name, way)) for way in case.implementations], case.inputs()
    turn = count(MODELS.index(name))
    for method, choices in WAYS.items():
        for options in choices if name in {"bert", "rtdl_ft_transformer"} else choices[:1]:
            explainer = explainers[next(turn) % len(explainers)]
            how = {"method": method, "target": 1, **options}
            try:
                full = explainer.explain(inputs, memory="full", **how)
            except (NotOffered, NotOverUnits) as refusal:  # with several streams, many readings have no meaning
                with pytest.raises(type(refusal)):
                    explainer.explain(inputs, memory="fold", **how)
                continue
            if name == "rtdl_ft_transformer" and options.get("read", "row") != "row":
                with pytest.raises(NotOffered, match="a few rows only"):
                    explainer.explain(inputs, memory="fold", **how)
                continue
            close(explainer.explain(inputs, memory="fold", **how), full)
            compared += 1
    assert compared >= 3


@pytest.mark.parametrize("heads", ["mean", "sum", 1, [0, -1], [2, 2, 0]])
def test_weights_of_heads_are_those_of_the_fused_map(heads: Any) -> None:
    """Only the kernels of a GPU read them."""
    maps_BHQK, weights = torch.rand(1, 4, 2, 3), attention_heads(heads).weights(4)
    fused_BQK = torch.einsum("bhqk,h->bqk", maps_BHQK, torch.tensor(weights))
    torch.testing.assert_close(fused_BQK, over_heads(maps_BHQK, heads))


def test_bfloat16_ranks_as_float32_does() -> None:
    model, inputs = long_model("llama"), {"input_ids": randint(5, 90, 2, 60)}
    exact = wf.explain(model, inputs, method="generic_attention", target=1, memory="full")
    rounded = wf.explain(model.bfloat16(), inputs, method="generic_attention", target=1, memory="fold")
    for one, other in zip(rounded, exact, strict=True):
        assert spearmanr(one.scores, other.scores).statistic >= 0.99


@pytest.mark.parametrize("way", [{}, {"one_pass": True}, {"span": True}])
@pytest.mark.parametrize("method", ["generic_attention", "attention_rollout", "grad_sam"])
def test_tokens_of_an_answer_are_folded_together(method: str, way: dict[str, Any]) -> None:
    lm, text = language_model("llama"), ("the capital of france is", "paris and the")
    results: list[list[Any]] = []
    for memory in ("full", "fold"):
        try:
            found = wf.explain(lm, text, processor=tokenizer(), method=method, memory=memory, **way)
            results.append(list(found) if isinstance(found, list) else [found])
        except NotOffered as refusal:
            assert "one_pass" in str(refusal)
            results.append([])
    close(results[1], results[0])


def test_padding_that_a_model_does_not_hide_is_seen_as_with_stored_maps() -> None:
    ids = randint(1, 18, 2, 9)
    mask = torch.ones_like(ids)
    mask[1, 6:] = 0
    inputs = {"input_ids": ids, "attention_mask": mask}
    for method in ("generic_attention", "attention_rollout"):
        full, folded = (
            wf.explain(HomeMade(), inputs, method=method, target=1, memory=memory) for memory in ("full", "fold")
        )
        close(folded, full)
        assert folded[1].warnings == full[1].warnings


class Largest(TorchDispatchMode):
    """The largest tensor that was made, meta tensors aside."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        sizes = [t.numel() for t in tree_leaves(out) if isinstance(t, Tensor) and not t.is_meta]
        self.numbers = max([self.numbers, *sizes])
        return out


def long_model(kind: str) -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "num_attention_heads": 8, "num_hidden_layers": 3, "intermediate_size": 128}
    more = {"vocab_size": 100, "max_position_embeddings": 1024, "attn_implementation": "sdpa"}
    if kind == "bert":
        return BertForSequenceClassification(BertConfig(**sizes, **more)).eval()
    return LlamaForCausalLM(LlamaConfig(**sizes, **more, num_key_value_heads=2)).eval()


@pytest.mark.parametrize("kind", ["bert", "llama"])
@pytest.mark.parametrize("method", ["generic_attention", "attention_rollout", "grad_sam"])
def test_no_map_of_all_heads_is_ever_there(method: str, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fold, "TILE_BYTES", {"cpu": 2**18})
    tokens = 400
    explainer, inputs = wf.Explainer(long_model(kind)), {"input_ids": randint(5, 90, 1, tokens)}
    explainer.explain(inputs, method=method, memory="fold")
    with Largest() as largest:
        explainer.explain(inputs, method=method, memory="fold")
    assert largest.numbers < tokens * tokens + BEFORE_FIVE  # as large as the mask that Llama makes, with version 4


def test_layers_that_are_computed_again_in_backward() -> None:
    inputs = {"input_ids": randint(5, 90, 2, 40)}
    model = long_model("llama")
    full = wf.explain(model, inputs, method="generic_attention", memory="full")
    model.gradient_checkpointing_enable()  # type: ignore[operator]
    model.eval()
    layers: Any = model.model.layers  # type: ignore[union-attr]
    before, calls = [set(layer.__dict__) for layer in layers], []
    layers[1].self_attn.register_forward_hook(lambda *_: calls.append(1))
    for _ in range(2):
        calls.clear()
        folded = wf.explain(model, inputs, method="generic_attention", memory="fold")
    assert len(calls) == 2, "computed once, and once more in backward"
    close(folded, full)
    assert [set(layer.__dict__) for layer in layers] == before and not any(layer.training for layer in layers)


class HomeMade(nn.Module):
    """Plain; with checkpoints of its own, also outside of training; without an axis of heads; with a mask that each
    layer writes over; with a head that reads the position of token 19."""

    def __init__(self, kind: str = "plain") -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind = kind
        self.embed, self.head = nn.Embedding(20, 16), nn.Linear(16, 3)
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))

    def block(self, x: Tensor, number: int, mask: Tensor | None = None) -> Tensor:
        q, k, v = self.qkv[number](x).chunk(3, -1)
        if self.kind == "headless":
            return x + nn.functional.scaled_dot_product_attention(q, k, v)
        q, k, v = (t.unflatten(-1, (4, 4)).transpose(1, 2) for t in (q, k, v))
        out = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return x + torch.tanh(out.transpose(1, 2).flatten(2))

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        x, length = self.embed(input_ids), input_ids.shape[1]
        mask = torch.zeros(length, length) if self.kind == "written over" else None
        for number in range(2):
            if mask is not None:
                mask.fill_(0).fill_diagonal_(-3.0 * number)
            checked = partial(checkpoint, self.block, use_reentrant=False)
            x = (checked if self.kind == "checkpoints" else self.block)(x, number, mask)
        row = (input_ids == 19).int().argmax(1) if self.kind == "marker" else torch.zeros(len(x), dtype=torch.long)
        logits: Tensor = self.head(x[torch.arange(len(x)), row])
        return logits


@pytest.mark.parametrize("memory", ["fold", "full"])
def test_checkpoints_of_the_models_own(memory: str) -> None:
    plain = wf.explain(HomeMade(), IDS, method="generic_attention", target=1, memory="full")
    close(wf.explain(HomeMade("checkpoints"), IDS, method="generic_attention", target=1, memory=memory), plain)


@pytest.mark.parametrize(("how", "at"), [("detach", (1,)), ("function", (0, 1)), ("reversed", (2,))])
def test_gradients_that_are_no_slopes_are_refused(how: str, at: tuple[int, ...]) -> None:
    with pytest.raises(WhyformerError, match=r"checkpoint|slope"):
        wf.explain(Layers(how, at).eval(), IDS, method="generic_attention", target=0, memory="fold")


@pytest.mark.parametrize(
    ("method", "options", "why"),
    [
        ("transformer_attribution", {}, "whole attention maps"),
        ("saliency", {}, "whole attention maps"),
        ("attention_rollout", {"discard": 0.5}, "with these options"),
        ("raw_attention", {"read": "column_max"}, "with these options"),
        ("generic_attention", {"keep_layers": True}, "keep_layers"),
    ],
)
def test_what_is_not_folded_says_so(method: str, options: dict[str, Any], why: str) -> None:
    case = CASES["bert"]
    with pytest.raises(NotOffered, match=why):
        wf.explain(case.build("sdpa"), case.inputs(), method=method, target=1, memory="fold", **options)


@pytest.mark.parametrize("method", ["generic_attention", "attention_rollout"])
@pytest.mark.parametrize("kind", ["headless", "written over"])
def test_a_model_that_cannot_be_folded_is_refused_or_stored(
    kind: str, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = HomeMade(kind)
    full = wf.explain(model, IDS, method=method, target=1, memory="full")
    with pytest.raises(NotOffered, match="whole map only"):
        wf.explain(model, IDS, method=method, target=1, memory="fold")
    monkeypatch.setattr("whyformer.explanations.LONG", 1)
    monkeypatch.setattr("whyformer.estimates.free_bytes", lambda device: 1)
    for one, other in zip(wf.explain(model, IDS, method=method, target=1), full, strict=True):
        assert np.abs(one.scores - other.scores).max() <= 1e-5 * np.abs(other.scores).max()
    assert wf.Explainer(model).estimate(IDS, method=method).full_bytes > 0


@pytest.mark.parametrize("memory", ["full", "fold"])
def test_a_row_far_into_a_long_text_is_found(memory: str) -> None:
    ids = randint(1, 18, 1, 700)
    ids[0, 600] = 19
    explained = wf.explain(HomeMade("marker"), {"input_ids": ids}, method="raw_attention", target=1, memory=memory)[0]
    record = wf.Explainer(HomeMade("marker")).record({"input_ids": ids})
    row = record.sites[-1].attention_BHQK[0, :, 600].mean(0).numpy()
    assert np.abs(explained.scores - row).max() < 1e-6


def test_contrasts_of_answers_are_folded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("whyformer.run.run.record", None)  # which would store maps
    lm, prompt = language_model("llama"), "the capital of france is"
    how: dict[str, Any] = {"processor": tokenizer(), "method": "generic_attention", "memory": "fold"}
    assert wf.explain(lm, prompt, target=("paris and", "france and the"), **how).scores.any()


# GPU kernels, interpreted, as tiles of plain torch

SHAPES = [  # batch, heads, key heads, queries, keys, width, causal, dtype; rows, with a gradient
    ((2, 2, 1, 50, 50, 32, True, torch.float32), 1, False),
    ((2, 2, 1, 50, 50, 32, True, torch.float32), 3, True),
    ((1, 3, 3, 33, 40, 20, False, torch.float32), 1, True),
    ((1, 1, 1, 20, 20, 256, False, torch.float32), 3, True),
    ((1, 2, 1, 80, 80, 64, True, torch.float16), 3, False),
]


@pytest.mark.parametrize(("case", "rows", "gradient"), SHAPES, ids=str)
def test_kernels_add_up_what_tiles_do(case: tuple[int, ...], rows: int, gradient: bool) -> None:
    batch, heads, groups, queries, keys, width, causal, dtype = case
    generator = torch.Generator().manual_seed(0)
    query, key, value, slope = (
        torch.randn(batch, n, m, width, generator=generator).to(dtype)  # type: ignore[arg-type]
        for n, m in ((heads, queries), (groups, keys), (groups, keys), (heads, queries))
    )
    scores = query.float() @ key.float().repeat_interleave(heads // groups, 1).transpose(-2, -1) / width**0.5
    if causal:
        scores = scores.masked_fill(torch.ones(queries, keys, dtype=torch.bool).triu(1), -torch.inf)
    lse = scores.logsumexp(-1)
    weights = [0.25, 0.0, 0.5][-heads:]  # a head without a weight is left out
    given = torch.tensor(weights)[:, None, None]

    def fused(attention: Tensor, at: Tensor | None) -> Tensor:
        return ((attention if at is None else attention * at.clamp(min=0)) * given).sum(1)

    exact = FusedCall(query.float(), key.float(), value.float(), None, bool(causal), None)
    out = slope.float() if gradient else None
    fusion = HeadFusion(fused, gradient)
    tiles = FoldedSite(0, "", 0, (batch, heads, queries, keys), fusion, call=exact, out_gradient_BHQD=out)
    call = FusedCall(query, key, value, None, bool(causal), None, lse)
    added = partial(summed_map, call, slope if gradient else None, weights)
    left = torch.rand(batch, rows, queries, generator=generator)
    left[:, :, queries // 2 :] = 0  # rows without a weight
    right = torch.rand(batch, rows, keys, generator=generator)
    near(added(left, True), tiles.pulled(left))
    near(added(left, True, slice(0, queries // 2)), tiles.pulled(left))
    near(added(right, False), tiles.pushed(right))


def near(kernel: Tensor, tiles: Tensor) -> None:
    assert kernel.shape == tiles.shape
    assert float((kernel - tiles).abs().max()) <= 1e-4 * float(tiles.abs().max())


def test_a_query_that_looks_nowhere_has_no_weights() -> None:
    query = torch.randn(1, 1, 20, 16, generator=torch.Generator().manual_seed(0))
    lse = torch.full((1, 1, 20), -torch.inf)
    call = FusedCall(query, query, query, lse=lse)
    assert not summed_map(call, None, [1.0], torch.ones(1, 1, 20), True).any()


# Layers in one go


def calls(key_heads: int, layers: int = 3) -> list[FusedCall]:
    """Heads as transposed views, as most models lay them out."""
    generator = torch.Generator().manual_seed(0)

    def heads(count: int) -> Tensor:
        return torch.randn(2, 7, count, 8, generator=generator).transpose(1, 2)

    return [FusedCall(heads(4), heads(key_heads), heads(key_heads)) for _ in range(layers)]


@pytest.mark.parametrize("key_heads", [4, 2])
def test_layers_together_are_layers_one_by_one(key_heads: int, monkeypatch: pytest.MonkeyPatch) -> None:
    several = calls(key_heads)
    results = [call.query * 0.5 for call in several]
    together = all_weights(several), all_gradients(several, results)
    monkeypatch.setitem(functions.TOGETHER, "cpu", 1)
    alone = all_weights(several), all_gradients(several, results)
    for batched, single in zip(together, alone, strict=True):
        assert len(batched) == len(single) == len(several)
        for one, other in zip(batched, single, strict=True):
            torch.testing.assert_close(one, other, atol=1e-6, rtol=1e-6)


def test_right_factors_lie_as_they_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """oneDNN on ARM takes ten times as long for many small products with a transposed factor."""
    laid_out, matmul = [], torch.matmul

    def watched(left: Tensor, right: Tensor) -> Any:
        laid_out.append(right.is_contiguous())
        return matmul(left, right)

    several = calls(4)
    monkeypatch.setattr(torch, "matmul", watched)
    all_weights(several)
    all_gradients(several, [call.query for call in several])
    assert laid_out == [True, True]
