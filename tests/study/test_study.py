"""What a study finds out about unusual models: what it refuses, what it warns of, and where units lie."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from tests.models.case import randint, seeded
from tests.models.hf import ENCODER
from tests.study.test_readout import maps_by_hand
from tests.support.processors import tokenizer
from tests.support.released import BEFORE_FIVE
from whyformer.errors import AmbiguousLayout, BadInput, NotOffered, NotOverUnits, PartlyCaptured

SIZES: dict[str, Any] = {k: v for k, v in ENCODER.items() if k != "num_labels"} | {"pad_token_id": 0}
IDS = {"input_ids": torch.tensor([[7, 12, 30, 45, 61, 8, 19, 77, 54, 23]])}
IMAGE = {"pixel_values": torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(0))}
VISION: dict[str, Any] = {**{k: v for k, v in SIZES.items() if k != "vocab_size"}, "patch_size": 8, "num_labels": 3}


@pytest.mark.skipif(BEFORE_FIVE, reason="DiffLlama has one attention with twice the heads before transformers 5")
def test_two_attentions_of_one_layer_are_no_product() -> None:
    config = hf.DiffLlamaConfig(**SIZES, num_key_value_heads=2)
    model = seeded(lambda: hf.DiffLlamaForCausalLM(config)).eval()
    for method in ("attention_rollout", "generic_attention", "raw_attention"):
        with pytest.raises(NotOverUnits, match="not consecutive layers"):
            wf.explain(model, IDS, method=method, target=5)
    assert len(wf.explain(model, IDS, method="occlusion", target=5, replace="delete")[0].scores) == 10


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_layers_of_a_single_head_are_never_taken_for_heads_of_one_layer(implementation: str) -> None:
    config = hf.BertConfig(**(SIZES | {"num_attention_heads": 1, "num_hidden_layers": 3}))
    model = seeded(lambda: hf.BertForSequenceClassification._from_config(config, attn_implementation="eager")).eval()
    own = model(**IDS, output_attentions=True).attentions
    model.set_attn_implementation(implementation)
    (found,) = wf.explain(model, IDS, method="attention_rollout", target=0)
    sites = [SimpleNamespace(attention_BHQK=attention.detach()) for attention in own]
    np.testing.assert_allclose(found.scores, maps_by_hand(sites, "attention_rollout")[0, 0], atol=1e-5)


def test_layouts_that_cannot_be_read_leave_other_methods_alone() -> None:
    config = hf.HieraConfig(
        embed_dim=8, image_size=[32, 32], patch_stride=[4, 4], depths=[1, 1], num_heads=[1, 2], num_query_pool=1
    )
    model = hf.HieraForImageClassification(config).eval()
    with pytest.raises(AmbiguousLayout):
        wf.explain(model, IMAGE, method="attention_rollout", target=0)
    for method in ("occlusion", "integrated_gradients"):
        (found,) = wf.explain(model, IMAGE, method=method, target=0)
        assert np.isfinite(found.scores).all() and np.abs(found.scores).max() > 0


def test_tokens_behind_the_patches_do_not_shift_them() -> None:
    config = hf.YolosConfig(**(VISION | {"image_size": [32, 32]}), num_detection_tokens=5)
    model = seeded(lambda: hf.YolosForObjectDetection(config)).eval()
    study = wf.Explainer(model).study(IMAGE)
    assert (study.front, study.grid, study.sites[0].keys) == (1, (4, 4), 22)
    found = wf.explain(model, IMAGE, method="generic_attention", target=(2, 1))[0]
    patches = [i for i, special in enumerate(found.units.special) if not special]
    assert patches == list(range(1, 17))


def test_a_head_whose_result_is_dropped_is_no_unfollowed_stream() -> None:
    config = hf.SiglipConfig(vision_config={**VISION, "image_size": 32}, num_labels=3)
    (found,) = wf.explain(hf.SiglipForImageClassification(config).eval(), IMAGE, method="generic_attention", target=0)
    assert not any("not included" in w for w in found.warnings)


@pytest.mark.parametrize("seed", [0, 1])
def test_rounding_in_groups_of_another_size_is_no_leak(seed: int) -> None:
    """The changed token goes to another expert, and the others there are multiplied in a smaller group."""
    config = hf.PhimoeConfig(**SIZES, num_key_value_heads=2, num_local_experts=4, num_experts_per_tok=2)
    model = seeded(lambda: hf.PhimoeForCausalLM(config), seed=seed).eval()
    assert not wf.Explainer(model).audit(IDS).found
    (found,) = wf.explain(model, IDS, method="attention_rollout", target=5)
    assert np.isfinite(found.scores).all()

    # A little of every position at every position is a leak, beside experts, too.
    def mix(module: nn.Module, args: tuple[Tensor, ...], out: Any) -> Any:
        leak = 1e-5 * args[0].mean(1, keepdim=True)
        return (out[0] + leak, *out[1:]) if isinstance(out, tuple) else out + leak  # with logits of the router

    layer = model.model.layers[0]
    (layer.block_sparse_moe if BEFORE_FIVE else layer.mlp).register_forward_hook(mix)
    assert 0 < wf.Explainer(model).audit(IDS).amount < 1e-2


class Hiding(nn.Module):
    """Its ``mask`` means "hide", as torch's own do, or "keep"."""

    def __init__(self, hides: bool, words: int = 50) -> None:
        super().__init__()
        self.hides, self.embed, self.head = hides, nn.Embedding(words, 16), nn.Linear(16, 3)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        hidden = mask if self.hides else ~mask
        entered = x if x.is_floating_point() else self.embed(x)
        return self.head(self.encoder(entered, src_key_padding_mask=hidden)[:, 0])


HIDDEN = torch.tensor([[5, 6, 7, 0], [9, 10, 0, 0]])
REAL = HIDDEN > 0


def explained_either_way(inputs: Any, words: int = 50, **how: Any) -> tuple[list[Any], list[Any]]:
    """The same model, its mask meaning "hide" and "keep": ``inputs(hides)`` is what it is given."""
    found = []
    for hides in (True, False):
        torch.manual_seed(0)
        found.append(wf.explain(Hiding(hides, words).eval(), inputs(hides), target=0, **how))
    for one, other in zip(*found, strict=True):
        assert one.units.labels == other.units.labels
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)
    return found[0], found[1]


@pytest.mark.parametrize("vectors", [False, True], ids=["ids", "vectors"])
@pytest.mark.parametrize("method", ["generic_attention", "integrated_gradients", "occlusion"])
def test_what_a_mask_hides_is_seen_in_the_model(method: str, vectors: bool) -> None:
    given = torch.randn(2, 4, 16, generator=torch.Generator().manual_seed(0)) if vectors else HIDDEN
    options = {"replace": "zero"} if method == "occlusion" and vectors else {}
    found, _ = explained_either_way(lambda hides: (given, ~REAL if hides else REAL), method=method, **options)
    assert [len(e.scores) for e in found] == [3, 2]


def test_a_mask_made_of_a_text_means_what_the_model_means() -> None:
    texts = ["a cat", "the dog is on the mat"]
    how = {"words": len(tokenizer()), "processor": tokenizer(), "method": "generic_attention"}
    assert not any("[PAD]" in one.units.labels for one in explained_either_way(lambda hides: texts, **how)[0])


def test_hiding_one_more_position_says_it_as_the_model_does() -> None:
    torch.manual_seed(0)
    model = Hiding(hides=True).eval()
    found = wf.explain(model, (HIDDEN, ~REAL), method="occlusion", target=0, replace="attention_mask")[0]
    fewer = ~REAL[:1].repeat(3, 1) | torch.eye(3, 4).bool()
    with torch.no_grad():
        want = model(HIDDEN[:1], ~REAL[:1])[:, 0] - model(HIDDEN[:1].repeat(3, 1), fewer)[:, 0]
    np.testing.assert_allclose(found.scores, want, atol=1e-5)


@pytest.mark.parametrize("method", ["shap", "two_ended"])
@pytest.mark.parametrize(("replace", "said"), [("attention_mask", "leaves an empty input"), (0, "NaN or infinite")])
def test_an_input_of_which_nothing_is_left_has_no_scores(method: str, replace: Any, said: str) -> None:
    """The first divides by the number of tokens that are not hidden, the second by that of tokens that are not 0."""
    model = seeded(lambda: Hiding(hides=True))
    if not replace:
        model.embed.register_forward_hook(lambda module, args, out: out / (args[0] != 0).sum(1)[:, None, None])
    with pytest.raises(NotOffered, match=said):
        wf.explain(model, (HIDDEN[:1], ~REAL[:1]), method=method, target=0, replace=replace)


class Weighted(nn.Module):
    """Two masks: one says how much of each token is read, the other hides padding."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Hiding(hides=False)

    def forward(self, input_ids: Tensor, mask_of_colours: Tensor, real_mask: Tensor) -> Tensor:
        logits: Tensor = self.inner(input_ids, real_mask)
        return logits + (input_ids * mask_of_colours).sum(1, keepdim=True) / 10


def test_a_mask_of_something_else_hides_nothing() -> None:
    ids, colours, real = torch.tensor([[5, 6, 7]]), torch.tensor([[1, 0, 1]]), torch.ones(1, 3, dtype=torch.bool)
    torch.manual_seed(0)
    model = Weighted().eval()
    given = {"input_ids": ids, "mask_of_colours": colours, "real_mask": real}
    found = wf.explain(model, given, method="occlusion", target=0, replace="attention_mask")[0]
    with torch.no_grad():
        want = model(**given)[:, 0] - model(ids.repeat(3, 1), colours.repeat(3, 1), ~torch.eye(3).bool())[:, 0]
    np.testing.assert_allclose(found.scores, want, atol=1e-5)


class SharedKeys(nn.Module):
    """keys_of: per layer, the layer whose keys and values are asked for, as in Gemma 3n."""

    def __init__(self, keys_of: tuple[int, ...]) -> None:
        super().__init__()
        self.keys_of, count = keys_of, len(keys_of)
        self.words, self.head = nn.Embedding(100, 16), nn.Linear(16, 3)
        self.query, self.key, self.value, self.out = (
            nn.ModuleList(nn.Linear(16, 16) for _ in range(count)) for _ in range(4)
        )
        self.norm = nn.ModuleList(nn.LayerNorm(16) for _ in range(count))

    def forward(self, input_ids: Tensor) -> Tensor:
        x, made = self.words(input_ids), []

        def heads(vectors: Tensor) -> Tensor:
            return vectors.unflatten(-1, (4, -1)).transpose(1, 2)

        for i, source in enumerate(self.keys_of):
            read = self.norm[i](x)
            made.append((heads(self.key[i](read)), heads(self.value[i](read))) if source == i else made[source])
            key, value = made[-1]
            attention = torch.softmax(heads(self.query[i](read)) @ key.transpose(-2, -1), -1)
            x = x + self.out[i]((attention @ value).transpose(1, 2).flatten(2))
        return self.head(x.mean(1))


@pytest.mark.parametrize("keys_of", [(0, 0), (0, 1, 1)])
def test_maps_over_keys_of_an_earlier_layer_are_refused(keys_of: tuple[int, ...]) -> None:
    """Where each layer has its own, there is no second stream."""
    model = seeded(lambda: SharedKeys(keys_of))
    with pytest.raises(NotOverUnits, match=r"(?s)cross 10×10.*keys and values of an earlier one"):
        wf.explain(model, IDS, method="generic_attention")
    assert len(wf.explain(model, IDS, method="occlusion", replace=3)[0].scores) == 10
    apart = seeded(lambda: SharedKeys((0, 1)))
    assert wf.explain(apart, IDS, method="generic_attention")[0].units.stream == ("text",) * 10


# A model that attends to padding by design: its rows are right, and the share that belongs to no unit is said.

SHORT = torch.tensor([[5, 6, 7, 8, 9], [9, 10, 3, 0, 0]])
PADDED = {"input_ids": SHORT, "attention_mask": (SHORT > 0).long()}


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


@pytest.mark.parametrize("method", ["raw_attention", "attention_rollout", "generic_attention"])
def test_rows_keep_what_goes_to_padding(method: str) -> None:
    model = MasksWhenPooling(hides=False).eval()
    whole, padded = wf.explain(model, PADDED, method=method, target=0)
    record, real = wf.Explainer(model).record(PADDED, grad=True, target=0), PADDED["attention_mask"].float()
    expected = torch.einsum("bq,bqk->bk", real / real.sum(1, keepdim=True), maps_by_hand(record.sites, method))
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


@pytest.mark.parametrize(
    ("name", "side", "method"),
    [
        ("bert", "left", "generic_attention"), ("bert", "left", "attn_lrp"), ("bert", "left", "occlusion"),
        ("xlnet", "right", "value_zeroing"), ("xlnet", "right", "input_x_gradient"), ("xlnet", "right", "shap"),
    ],
)  # fmt: skip
def test_a_head_that_reads_padding_is_refused(name: str, side: str, method: str) -> None:
    """BERT's reads its first position and XLNet's its last, whatever stands there."""
    case = CASES[name]
    ids, real = randint(8, 90, 2, 6, seed=3), torch.ones(2, 6, dtype=torch.long)
    real[1, slice(2) if side == "left" else slice(4, 6)] = 0
    inputs = {"input_ids": ids * real, "attention_mask": real}
    other = {name: tensor[:, torch.arange(6).roll(2 if side == "right" else -2)] for name, tensor in inputs.items()}
    model = case.build(case.implementations[0])
    with pytest.raises(BadInput, match=r"is padding here.*Pad on the (right|left) side.*without padding\.$"):
        wf.explain(model, {name: tensor[1:] for name, tensor in inputs.items()}, method=method, target=1)
    model = case.build(case.implementations[0])  # which is studied on the first input
    with pytest.raises(BadInput, match=r"is padding here.*Pad on the (right|left) side.*without padding\.$"):
        wf.explain(model, inputs, method=method, target=1)
    assert len(wf.explain(model, {n: t[1:] for n, t in other.items()}, method=method, target=1)) == 1


class ByContent(nn.Module):
    """A model whose structure depends on whether id 7 is in its text, or on its states. ``how``: in what way."""

    def __init__(self, how: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.how, self.embed, self.head = how, nn.Embedding(50, 16), nn.Linear(16, 3)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True) for _ in range(3))

    def forward(self, input_ids: Tensor) -> Tensor:
        states, gate = self.embed(input_ids), (input_ids == 7).any(1)[:, None, None]
        for layer in self.layers:
            states = layer(states)
            if self.how == "gate":
                states = states + gate.float() * states.mean(1, keepdim=True)
            elif self.how == "shift":
                states = torch.where(gate, states + states.roll(1, 1), states)
            elif self.how == "relu":
                states = states + (gate * 2.0 - 1).relu().expand_as(states) * states.flip(1)
            elif self.how == "end":
                states = torch.cat([states[:, :1] + states[:, -1:], states[:, 1:]], 1)
            elif self.how == "branch" and bool(gate.any()):
                states = states + states.mean(1, keepdim=True)
            elif self.how == "exit" and bool((states[..., 0].amax(1) > 1.0).all()):
                break
        return self.head(states[:, 0])


@pytest.mark.parametrize("how", ["gate", "shift", "relu", "branch"])
@pytest.mark.parametrize("length", [5, 6])  # of an odd number of positions, a flip leaves one alone
def test_a_leak_on_some_inputs_is_seen_on_these_whatever_came_first(how: str, length: int) -> None:
    closed = torch.tensor([[9, 4, 12, 33, 8, 21]])[:, :length]
    opened = closed.masked_fill(closed == 12, 7)
    explainer = wf.Explainer(ByContent(how).eval())
    for _ in range(2):
        assert explainer.explain({"input_ids": closed}, method="raw_attention", target=0)
        for inputs in (opened, torch.cat([closed, opened])):
            with pytest.raises(PartlyCaptured, match="exchange information"):
                explainer.explain({"input_ids": inputs}, method="raw_attention", target=0)


def test_a_leak_from_the_last_position_to_the_one_that_is_read() -> None:
    ids = torch.tensor([[9, 4, 12, 33, 8, 21]])
    with pytest.raises(PartlyCaptured, match="exchange information"):
        wf.explain(ByContent("end").eval(), {"input_ids": ids}, method="raw_attention", target=0)


@pytest.mark.parametrize("method", ["attention_rollout", "generic_attention", "occlusion"])
def test_an_early_exit_is_that_of_each_input(method: str) -> None:
    ids = torch.randint(8, 50, (6, 5), generator=torch.Generator().manual_seed(0))
    ask: dict[str, Any] = {"method": method, "target": 0} | ({"replace": 0} if method == "occlusion" else {})
    model = ByContent("exit").eval()
    counts = {len(wf.Explainer(model).record({"input_ids": row[None]}).sites) for row in ids}
    assert len(counts) > 1
    for row, found in zip(ids, wf.explain(model, {"input_ids": ids}, **ask), strict=True):
        (alone,) = wf.explain(ByContent("exit").eval(), {"input_ids": row[None]}, **ask)
        np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)


class SortedRows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.head = nn.Linear(3, 8), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        order = x[..., 0].argsort(1)[..., None].expand_as(x)
        return self.head(self.layer(self.into(x.gather(1, order))).mean(1))


def test_an_input_that_is_in_the_order_of_sorting_vouches_for_no_other() -> None:
    x, model = torch.randn(1, 5, 3), SortedRows().eval()
    in_order = x.gather(1, x[..., 0].argsort(1)[..., None].expand_as(x))
    assert wf.explain(model, (in_order,), method="raw_attention", target=0)[0].units.labels == tuple("01234")
    with pytest.raises(NotOverUnits, match="reorders the input"):
        wf.explain(model, (in_order.flip(1),), method="raw_attention", target=0)


class OneToOne(nn.Module):
    """One position's vector is added to that of another one, before the attention or between two layers."""

    def __init__(self, inputs: str, before: bool, sender: int, receiver: int) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.before, self.sender, self.receiver = before, sender, receiver
        self.embed = nn.Embedding(50, 16) if inputs == "ids" else nn.Linear(3, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True) for _ in range(2))
        self.head = nn.Linear(16, 3)

    def leaking(self, states: Tensor) -> Tensor:
        rows = [*states.unbind(1)]
        rows[self.receiver] = rows[self.receiver] + rows[self.sender]
        return torch.stack(rows, 1)

    def forward(self, x: Tensor) -> Tensor:
        states = self.embed(x)
        states = self.layers[0](self.leaking(states) if self.before else states)
        return self.head(self.layers[1](states if self.before else self.leaking(states))[:, 0])


@pytest.mark.parametrize(("inputs", "before"), [("ids", False), ("ids", True), ("floats", False)])
def test_a_leak_from_any_position_to_any_other_is_seen(inputs: str, before: bool) -> None:
    x = torch.arange(4, 9)[None] if inputs == "ids" else torch.randn(1, 5, 3)
    pairs = [(a, b) for a in range(5) for b in range(5) if a != b]
    leaks = [wf.Explainer(OneToOne(inputs, before, *pair).eval()).study({"x": x}).leak.found for pair in pairs]
    assert all(leaks)
