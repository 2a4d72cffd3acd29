"""Which rows of the last attention the head reads, and what is said where that is not all."""

from __future__ import annotations

import copy
import gc
import weakref
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import seeded
from whyformer.errors import CaptureError

IDS = {"input_ids": torch.tensor([[7, 12, 30, 45, 61, 8, 19, 77, 54, 23]])}


class Pooling(nn.Module):
    """Attention layers under a head of one's own."""

    def __init__(self, head: str) -> None:
        super().__init__()
        self.kind, self.embed = head, nn.Embedding(100, 16)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 32, batch_first=True) for _ in range(3))
        self.score, self.head = nn.Linear(16, 1), nn.Linear(16, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        states = [self.embed(input_ids)]
        for layer in self.layers:
            states.append(layer(states[-1]))
        hidden = states[-2] if self.kind == "last but one" else states[-1]
        if self.kind == "weighed":
            weights = self.score(hidden)[..., 0].softmax(1)
            return self.head((weights[..., None] * hidden).sum(1))
        if self.kind == "last two":
            hidden = hidden + states[-2]
        if self.kind == "all layers":  # as SUPERB's models of sound do
            hidden = torch.stack(states).mean(0)
        return self.head(hidden[:, 0])


class MeanOfBert(nn.Module):
    """The mean of all positions, beside a pooler that reads the first and that nobody asks."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
        self.bert = hf.BertModel(hf.BertConfig(vocab_size=100, **sizes))
        self.kind, self.head = kind, nn.Linear(32, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden = self.bert(input_ids).last_hidden_state
        if self.kind == "maximum":
            return self.head(torch.cat([hidden.max(1).values, hidden.amax(dim=1)], 1))
        first = 0 * hidden[:, 0] if self.kind == "times zero" else hidden[:, 0]
        mean = hidden.mean(1)
        return self.head(torch.cat([mean if self.kind == "mean" else first, mean], 1))


@pytest.mark.parametrize("kind", ["mean", "times zero", "besides", "maximum"])
def test_a_row_that_is_picked_counts_only_if_it_reaches_the_output(kind: str) -> None:
    model = seeded(lambda: MeanOfBert(kind))
    (found,) = wf.explain(model, IDS, method="generic_attention", target=0)
    if kind != "maximum":  # which rows win depends on the input
        assert found.readout == ("first position" if kind == "besides" else "mean over all positions")
    assert any("also pools other positions" in w for w in found.warnings) == (kind == "besides")
    assert any("max-pooling" in w for w in found.warnings) == (kind == "maximum")


@pytest.mark.parametrize(("head", "layers"), [("last two", 2), ("last two", 3), ("all layers", 3)])
def test_a_head_that_reads_states_of_several_layers_is_noted(head: str, layers: int) -> None:
    model = seeded(lambda: Pooling(head))
    model.layers = model.layers[:layers]
    (found,) = wf.explain(model, IDS, method="attention_rollout", target=1)
    assert any("output of several layers" in w for w in found.warnings)


def test_a_head_that_weighs_positions_reads_all_of_them_and_says_so() -> None:
    weighed, plain = (
        wf.explain(seeded(lambda head=head: Pooling(head)), IDS, method="generic_attention", target=0)[0]
        for head in ("weighed", "first")
    )
    assert weighed.readout == "mean over all positions" and "weights the positions itself" in " ".join(weighed.warnings)
    assert (plain.readout, plain.warnings) == ("first position", ())


class Statistic(Pooling):
    """A head that makes another statistic of the positions than their mean."""

    def __init__(self, head: str) -> None:
        super().__init__(head)
        self.of_places = nn.Parameter(torch.randn(10, 1))
        self.head = nn.Linear(160 if head == "flatten" else 16, 3)

    def pooled(self, states: Tensor) -> Tensor:
        mask = torch.ones(1, 10, 1)
        mask[:, 7:] = 0
        return {
            "mean": lambda h: h.mean(1),
            "sum of a part": lambda h: (h * mask).sum(1) / mask.sum(1),
            "pooling layer": lambda h: nn.functional.adaptive_avg_pool1d(h.transpose(1, 2), 1)[..., 0],
            "weights": lambda h: (h * self.of_places).sum(1),
            "product": lambda h: (self.of_places.T @ h)[:, 0],
            "einsum": lambda h: torch.einsum("bnd,no->bd", h, self.of_places),
            "gates": lambda h: (h * self.score(h).sigmoid()).sum(1),
            "flatten": lambda h: h.flatten(1),
            "std": lambda h: h.std(1),
            "logsumexp": lambda h: h.logsumexp(1),
            "norm": lambda h: h.norm(dim=1),
            "median": lambda h: h.median(dim=1).values,
            "largest of each": lambda h: nn.functional.adaptive_max_pool1d(h.transpose(1, 2), 1)[..., 0],
        }[self.kind](states)

    def forward(self, input_ids: Tensor) -> Tensor:
        states = self.embed(input_ids)
        for layer in self.layers[:1]:
            states = layer(states)
        return self.head(self.pooled(states))


EVEN = ["mean", "sum of a part", "pooling layer"]
UNEVEN = ["weights", "product", "einsum", "gates", "flatten", "std", "logsumexp", "norm"]
LARGEST = ["largest of each", "median"]


@pytest.mark.parametrize("head", [*EVEN, *UNEVEN, *LARGEST])
def test_a_head_that_takes_no_plain_mean_is_noted(head: str) -> None:
    (found,) = wf.explain(seeded(lambda: Statistic(head)), IDS, method="raw_attention", target=1)
    assert any("plain mean" in warning for warning in found.warnings) == (head in UNEVEN)
    assert any("max-pooling" in warning for warning in found.warnings) == (head in LARGEST)


class Largest(nn.Module):
    """The largest over the patches of an image, number by number."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, 8, 4, 4), nn.Linear(8, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)

    def forward(self, pixel_values: Tensor) -> Tensor:
        return self.head(self.layer(self.patches(pixel_values).flatten(2).transpose(1, 2)).amax(1))


@pytest.mark.parametrize("method", ["auto", "raw_attention"])
def test_which_patches_hold_the_largest_is_looked_up_for_each_image(method: str) -> None:
    model, images = seeded(Largest), torch.randn(4, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    alone = [wf.explain(copy.deepcopy(model), {"pixel_values": one[None]}, method=method)[0] for one in images]
    assert len({e.readout for e in alone}) > 1
    for found, expected in zip(wf.explain(model, {"pixel_values": images}, method=method), alone, strict=True):
        assert found.readout == expected.readout
        np.testing.assert_allclose(found.scores, expected.scores, atol=1e-5)


@pytest.mark.parametrize("head", ["mean", "std", "logsumexp", "norm", *LARGEST])
def test_rows_that_are_all_alike_do_not_make_a_statistic_a_mean(head: str) -> None:
    """The mean over the batch is taken away, so all positions of a single input are alike."""
    model = seeded(lambda: Statistic(head))
    model.embed.register_forward_hook(lambda module, args, out: out - out.mean(0))
    (found,) = wf.explain(model, IDS, method="raw_attention", target=1)
    assert any("plain mean" in warning for warning in found.warnings) == (head in UNEVEN)
    assert found.readout in {"mean over all positions", "mean of positions 0 to 9"}


def test_a_head_that_reads_an_earlier_layer_is_refused_for_that_and_the_model_is_not_kept() -> None:
    model = seeded(lambda: Pooling("last but one"))
    for _ in range(2):
        with pytest.raises(CaptureError, match=r"1 of 3 attention layers.*layers\.2.*do not reach"):
            wf.explain(model, IDS, method="attention_rollout", target=0)
    gone = weakref.ref(model)
    del model
    gc.collect()
    assert gone() is None


class Reading(nn.Module):
    """A head that reads by place, or depends on the content."""

    def __init__(self, head: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.embed, self.head = head, nn.Embedding(50, 16), nn.Linear(16, 3)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def rows(self, input_ids: Tensor) -> Tensor:
        """(B, N) ones at the rows that are read."""
        rows, last = torch.zeros(input_ids.shape), input_ids.shape[1] - 1
        if self.kind == "largest id":
            return rows.scatter(1, input_ids.argmax(1, keepdim=True), 1.0)
        whole = list(range(last + 1))
        read = {"first": [0], "last": [last], "position 1": [1], "last but one": [last - 1], "both ends": [0, last]}
        read |= {"mean": whole, "inner": whole[1:-1] or whole}
        rows[:, read[self.kind]] = 1
        return rows

    def forward(self, input_ids: Tensor) -> Tensor:
        hidden, rows = self.encoder(self.embed(input_ids)), self.rows(input_ids)
        logits: Tensor = self.head((hidden * rows[..., None]).sum(1) / rows.sum(1, keepdim=True))
        return logits


HEADS = ["first", "last", "position 1", "last but one", "both ends", "mean", "inner", "largest id"]
FIRST = {"two": [[5, 9]], "three": [[5, 6, 9]], "seven": [[3, 4, 5, 6, 7, 8, 9]]}


def maps_by_hand(sites: Any, method: str) -> Tensor:
    """(B, N, N) maps of all layers combined by a method, over all positions, padding among them."""
    eye = whole = torch.eye(sites[0].attention_BHQK.shape[-1])
    for site in sites:
        attention = site.attention_BHQK.mean(1)
        if method == "raw_attention":
            whole = attention
        elif method == "attention_rollout":
            whole = (attention + eye) / 2 @ whole
        else:
            whole = whole + (site.attention_BHQK * site.attention_grad_BHQK).clamp(min=0).mean(1) @ whole
    return whole


# Every head with every first input; the methods, which ask for the same rule, in turn.
@pytest.mark.parametrize(
    ("method", "head", "first"),
    [
        (("raw_attention", "generic_attention")[(i + j) % 2], head, first)
        for i, head in enumerate(HEADS)
        for j, first in enumerate(FIRST)
    ],
)
def test_a_rule_found_on_one_input_holds_for_others_or_is_not_kept(method: str, head: str, first: str) -> None:
    model, ids = Reading(head).eval(), torch.tensor([[8, 20, 4, 3, 2, 11]])
    explainer = wf.Explainer(model)
    explainer.explain({"input_ids": torch.tensor(FIRST[first])}, method=method, target=0)
    (explanation,) = explainer.explain({"input_ids": ids}, method=method, target=0)
    record = explainer.record({"input_ids": ids}, grad=True, target=0)
    weights = model.rows(ids)[0] / model.rows(ids).sum()
    expected = weights @ maps_by_hand(record.sites, method)[0]
    torch.testing.assert_close(torch.from_numpy(explanation.scores), expected, rtol=1e-4, atol=1e-5)


def test_the_rows_of_a_short_text_are_not_said_of_a_longer_one() -> None:
    model = Reading("inner").eval()
    said = [wf.explain(model, {"input_ids": IDS["input_ids"][:, :n] % 50}, target=0)[0].readout for n in (3, 7)]
    assert said == ["position 1", "mean of positions 1 to 5"]


class WithoutEnds(Pooling):
    def forward(self, input_ids: Tensor) -> Tensor:
        states = self.embed(input_ids)
        for layer in self.layers:
            states = layer(states)
        return self.head(states[:, 1:-1].sum(1))


def test_what_fails_on_two_tokens_is_tried_again_on_more() -> None:
    """A head that skips both ends reads nothing of two tokens, which says nothing of seven."""
    torch.manual_seed(0)
    explainer = wf.Explainer(WithoutEnds("").eval())
    two, seven = ({"input_ids": IDS["input_ids"][:, :n]} for n in (2, 7))
    with pytest.raises(CaptureError):
        explainer.explain(two, method="generic_attention", target=0)
    assert "all positions but" in explainer.explain(seven, method="generic_attention", target=0)[0].readout


class OfOnePatch(nn.Module):
    """Reads one patch, not the same in every picture: that of the largest vector, or one by the picture's mean."""

    def __init__(self, by: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.by, self.patches, self.head = by, nn.Conv2d(3, 16, 8, 8), nn.Linear(16, 3)
        layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def vectors(self, pixel_values: Tensor) -> Tensor:
        return self.patches(pixel_values).flatten(2).transpose(1, 2)

    def row(self, x: Tensor, pixel_values: Tensor) -> Tensor:
        mean = (pixel_values.mean((1, 2, 3)) > 0).long()
        return mean if self.by == "mean" else x.norm(dim=2).argmax(1)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = self.vectors(pixel_values)
        logits: Tensor = self.head(self.encoder(x)[torch.arange(len(x)), self.row(x, pixel_values)])
        return logits


PICTURES = torch.randn(8, 3, 16, 16, generator=torch.Generator().manual_seed(0))


# The first two pictures differ in the row that is read, for both.
@pytest.mark.parametrize("method", ["raw_attention", "generic_attention", "value_norms"])
@pytest.mark.parametrize("by", ["largest", "mean"])
def test_a_row_that_differs_from_picture_to_picture_is_found_in_each(by: str, method: str) -> None:
    model, ask = OfOnePatch(by).eval(), {"method": method, "target": 0}
    explainer = wf.Explainer(model)
    explainer.explain({"pixel_values": PICTURES[:1]}, **ask)
    together = explainer.explain({"pixel_values": PICTURES}, **ask)
    for number, found in enumerate(together):
        picture = {"pixel_values": PICTURES[number : number + 1]}
        (alone,) = wf.explain(OfOnePatch(by).eval(), picture, **ask)
        np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)
        if method != "value_norms":
            sites = explainer.record(picture, grad=True, target=0).sites
            expected = maps_by_hand(sites, method)[0, model.row(model.vectors(**picture), **picture)[0]]
            np.testing.assert_allclose(found.scores, expected, rtol=1e-4, atol=1e-5)


class ThroughAGate(Pooling):
    """The last position; through a gate that some inputs open, also the first."""

    def __init__(self, opened: str) -> None:
        super().__init__("")
        self.opened = opened

    def forward(self, input_ids: Tensor) -> Tensor:
        states = self.embed(input_ids)
        for layer in self.layers:
            states = layer(states)
        gate = (input_ids == 45).any(1).float()
        if self.opened == "closes":  # the last row is left out where the gate is open
            return self.head(states[:, -1] * (1 - gate[:, None]) + states[:, 0] * gate[:, None])
        return self.head(states[:, -1] + gate[:, None] * self.head.weight[0] * states[:, 0])


FREE = ["attention_rollout", "raw_attention", "value_norms", "value_zeroing", "attention_flow", "alti"]
CASES = [(m, ("opens", "closes")[i % 2], i // 2 % 2) for i, m in enumerate([*FREE, "generic_attention"])]


@pytest.mark.parametrize(("method", "opened", "first"), [*CASES, ("attention_rollout", "opens", 1)])
def test_the_rows_of_one_input_are_not_those_of_another(method: str, opened: str, first: int) -> None:
    ids = IDS["input_ids"].repeat(2, 1)
    ids[1, 3] = 44  # the gate is closed
    model = seeded(lambda: ThroughAGate(opened))
    ask = {"method": method, "target": 0, "memory": "fold" if method == "attention_rollout" else "full"}
    alone = wf.explain(copy.deepcopy(model), {"input_ids": ids[1 - first :][:1]}, **ask)[0]
    explainer = wf.Explainer(model)
    explainer.explain({"input_ids": ids[first:][:1]}, **ask)
    after = explainer.explain({"input_ids": ids[1 - first :][:1]}, **ask)[0]
    both = wf.explain(copy.deepcopy(model), {"input_ids": ids}, **ask)[1 - first]
    for found in (after, both):
        np.testing.assert_allclose(found.scores, alone.scores, rtol=1e-4, atol=1e-6)


class Halting(nn.Module):
    """A Universal Transformer: positions stop where they are sure, and the states are weighed by when."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.halt, self.head = nn.Embedding(100, 16), nn.Linear(16, 1), nn.Linear(16, 3)
        self.layer = nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True, norm_first=True)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        left, said = torch.ones_like(x[..., :1]), torch.zeros_like(x)
        for step in range(3):
            x = self.layer(x)
            share = left if step == 2 else torch.minimum(self.halt(x).sigmoid(), left)
            said, left = said + share * x, left - share
        return self.head(said[:, 0])


@pytest.mark.usefixtures("advised")
def test_an_input_on_which_the_model_halts_early_has_no_last_row():
    model, texts = seeded(Halting), torch.arange(1, 71).reshape(10, 7)
    shares: list[Tensor] = []
    with torch.no_grad():
        model.halt.register_forward_hook(lambda module, args, out: shares.append(out[:, 0, 0].sigmoid()))
        model(texts)
    early = shares[0] + shares[1] >= 1
    ids = {"input_ids": torch.stack([texts[~early][0], texts[early][0]])}
    explainer = wf.Explainer(model)
    with pytest.raises(CaptureError, match=r"reach the output for input 1.*halts early") as refusal:
        explainer.explain(ids, method="generic_attention", progress=False)
    advice = str(refusal.value).rpartition("Use ")[2]
    assert "occlusion" in advice and "generic_attention" not in advice, "which runs on the first input alone"
    results = explainer.explain(ids, method=["input_x_gradient", "occlusion"], progress=False)
    assert all(len(each[1].scores) == 7 for each in results.values())
