"""Tensors: arguments beside the units, tokens of the model's own, second sequences, what is read on the CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from tests.models.case import randint, randn, seeded
from whyformer import explanations
from whyformer.errors import NotOffered, WhyformerError
from whyformer.explanations import _fetched
from whyformer.inputs import batch
from whyformer.inputs.batch import all_real, on_host

WIDTH, STEPS, CLASS = 16, 6, 1


class Blocks(nn.Module):
    """What all of them share: blocks, and a head over the mean."""

    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(WIDTH, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 3)

    def read(self, x: Tensor) -> Tensor:
        return self.head(self.blocks(x).mean(1))


class Late(Blocks):
    """Times go straight to the head, as vectors of as many positions as there are values."""

    def __init__(self) -> None:
        super().__init__()
        self.value, self.time = nn.Linear(5, WIDTH), nn.Linear(5, WIDTH)

    def forward(self, values: Tensor, times: Tensor) -> Tensor:
        entering, beside = self.value(values), self.time(times)
        return self.read(entering) + self.head(beside.mean(1))


class Conditioned(Blocks):
    """A picture after a vector, in the order of the call."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.other = nn.Conv2d(3, WIDTH, 8, 8), nn.Linear(7, WIDTH)

    def forward(self, condition: Tensor, image: Tensor) -> Tensor:
        return self.read(self.patches(image).flatten(2).transpose(1, 2) + self.other(condition)[:, None])


class Worded(Blocks):
    """Words beside a vector per word, as wide as their embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(30, WIDTH)

    def forward(self, input_ids: Tensor, features: Tensor) -> Tensor:
        return self.read(self.words(input_ids) * features.sigmoid())


class Masked(Blocks):
    """A mask of numbers, made as wide as the vectors before these are."""

    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(5, WIDTH)

    def forward(self, values: Tensor, padding_mask: Tensor) -> Tensor:
        shown = 1 - padding_mask.unsqueeze(-1)
        return self.read(self.value(values) * shown)


def at(make: Any, inputs: dict[str, Tensor], name: str, entrance: str = "") -> Tensor:
    """(N,) or pixels: x · ∂s/∂x of the first input, at a tensor or at what a module makes, by hooks alone."""
    model = seeded(make)
    one = {k: v[:1].clone() for k, v in inputs.items()}
    leaf: list[Tensor] = []

    def hold(*args: Any) -> Tensor:
        leaf.append(args[-1].detach().clone().requires_grad_())
        return leaf[0]

    if entrance:
        model.get_submodule(entrance).register_forward_hook(hold)
    else:
        one[name] = hold(one[name])
    (gradient,) = torch.autograd.grad(model(**one)[0, CLASS], leaf)
    return (leaf[0] * gradient).detach()[0]


def scores(make: Any, inputs: dict[str, Tensor], method: str, **options: Any) -> wf.types.Explanation:
    return wf.explain(seeded(make), inputs, method=method, target=CLASS, progress=False, **options)[0]


SERIES = {"values": randn(2, STEPS, 5, seed=1), "times": randn(2, STEPS, 5, seed=2)}
PICTURE = {"condition": randn(2, 7, seed=1), "image": randn(2, 3, 32, 32, seed=2)}
WORDS = {"input_ids": randint(1, 30, 2, STEPS), "features": randn(2, STEPS, WIDTH, seed=2)}


@pytest.mark.parametrize(
    ("make", "inputs", "name", "entrance", "other"),
    [(Late, SERIES, "values", "value", "times"), (Conditioned, PICTURE, "image", "", "condition"),
     (Worded, WORDS, "input_ids", "words", "features")],
)  # fmt: skip
def test_gradients_are_taken_where_the_named_tensor_enters(
    make: Any, inputs: Any, name: str, entrance: str, other: str
) -> None:
    expected = at(make, inputs, name, entrance)
    pixels = name == "image"
    expected = expected.sum(0).reshape(4, 8, 4, 8).sum((1, 3)).flatten() if pixels else expected.sum(-1)
    found = scores(make, inputs, "input_x_gradient")
    torch.testing.assert_close(torch.tensor(found.scores), expected)
    assert f"of the value depends on {other}, which is not scored" in found.warnings[0]  # what is no unit is named


def test_vectors_are_put_back_where_they_entered_also_beside_a_mask_of_numbers():
    inputs = {"values": SERIES["values"], "padding_mask": torch.zeros(2, STEPS)}
    whole = scores(Masked, inputs, "integrated_gradients", at="embeddings", steps=200)
    model = seeded(Masked)
    base = model.read(torch.zeros(1, STEPS, WIDTH))[0, CLASS].item()
    assert float(whole.scores.sum()) == pytest.approx(whole.value - base, rel=0.1)
    assert not [w for w in whole.warnings if "not scored" in w], "a mask is no such thing"


# A token of the model's own among the vectors


VECTORS = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(1))
MASK = torch.tensor([[1, 1, 1, 0, 0], [1, 1, 1, 1, 1]])


class Summary(nn.Module):
    """A token of its own, in front or behind, reads the vectors; padding is hidden."""

    def __init__(self, behind: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.behind, self.own, self.head = behind, nn.Parameter(torch.randn(1, 1, 16)), nn.Linear(16, 3)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(16, 4, 32, 0.0, batch_first=True) for _ in range(2))

    def forward(self, features: Tensor, mask: Tensor) -> Tensor:
        own, shown = self.own.expand(len(features), -1, -1), torch.ones_like(mask[:, :1])
        x = torch.cat([features, own] if self.behind else [own, features], 1)
        hidden = ~torch.cat([mask, shown] if self.behind else [shown, mask], 1).bool()
        for layer in self.layers:
            x = layer(x, src_key_padding_mask=hidden)
        logits: Tensor = self.head(x[:, -1 if self.behind else 0])
        return logits


@pytest.mark.parametrize("method", ["generic_attention", "integrated_gradients", "occlusion"])
def test_padding_is_no_unit_and_changes_nothing(method: str) -> None:
    model = Summary(behind=False).eval()
    together = wf.explain(model, {"features": VECTORS, "mask": MASK}, method=method, target=0)
    for row, (explanation, count) in enumerate(zip(together, (3, 5), strict=True)):
        names = [f"features[{i}]" for i in range(count)]
        own = int(np.flatnonzero(explanation.units.special)[0])
        assert [label for i, label in enumerate(explanation.units.labels) if i != own] == names
        alone = {"features": VECTORS[row : row + 1, :count], "mask": MASK[row : row + 1, :count]}
        (one,) = wf.explain(model, alone, method=method, target=0)
        np.testing.assert_allclose(explanation.scores, one.scores, atol=1e-5)


@pytest.mark.parametrize("behind", [False, True])
def test_integrated_gradients_start_at_the_vectors_and_leave_the_models_own_token(behind: bool) -> None:
    net = Summary(behind).eval()
    nodes, weights = np.polynomial.legendre.leggauss(50)
    mask = MASK[1:]

    def gradient(vectors: Tensor) -> Tensor:
        leaf = vectors.clone().requires_grad_()
        return torch.autograd.grad(net(leaf, mask)[0, 0], leaf)[0]

    path = sum(w / 2 * gradient(VECTORS[1:] * float((t + 1) / 2)) for t, w in zip(nodes, weights, strict=True))
    expected = (VECTORS[1:] * path).sum(-1)[0]
    (explanation,) = wf.explain(net, {"features": VECTORS[1:], "mask": mask}, method="integrated_gradients", target=0)
    special = np.array(explanation.units.special)
    np.testing.assert_allclose(explanation.scores[~special], expected, atol=1e-4)
    assert explanation.scores[special] == 0


# Several arguments of whole numbers: which of them are sequences is seen in the model, whatever they are called.

SOURCE = torch.tensor([[3, 4, 5, 6, 7, 8], [9, 10, 11, 12, 13, 14]])
TARGET = torch.tensor([[5, 8, 2, 9], [1, 4, 6, 6]])
SAME_LENGTH = torch.tensor([[5, 8, 2, 9, 1, 1], [1, 4, 6, 6, 2, 3]])
THIRD = torch.tensor([[7, 7, 1], [2, 3, 4]])


class Reader(nn.Module):
    """Reads two sequences in one of several ways; ``forward`` is written with names of one's own (``named``)."""

    def __init__(self, way: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.way = way
        self.first, self.second, self.positions = nn.Embedding(30, 16), nn.Embedding(30, 16), nn.Embedding(20, 16)
        self.both = nn.Transformer(16, 4, 2, 2, 32, dropout=0.0, batch_first=True, activation="gelu")
        self.head, self.pair = nn.Linear(16, 3), nn.Linear(32, 3)
        with torch.no_grad():
            for table in (self.first, self.second):
                table.weight.mul_(2)

    def placed(self, vectors: Tensor) -> Tensor:
        return vectors + self.positions(torch.arange(vectors.shape[1]))

    def decoded(self, first: Tensor, second: Tensor) -> Tensor:
        """From word embeddings, so that a test can differentiate by them."""
        causal = nn.Transformer.generate_square_subsequent_mask(second.shape[1])
        read = self.both(self.placed(first), self.placed(second), tgt_mask=causal)[:, -1]
        logits: Tensor = self.head(read)
        return logits

    def pooled(self, vectors: Tensor) -> Tensor:
        read: Tensor = self.both.encoder(self.placed(vectors)).mean(1)
        return read

    def read(self, a: Tensor, b: Tensor, *third: Tensor) -> Tensor:
        first, second = self.first(a), self.second(b)
        if self.way == "decoder":
            return self.decoded(first, second)
        if self.way == "towers":
            return self.pair(torch.cat([self.pooled(first), self.pooled(second)], 1))
        if self.way == "three":
            return self.decoded(first, second) + self.head(self.pooled(self.first(third[0])))
        if self.way == "added":
            return self.head(self.pooled(first + second))
        if self.way == "laid end to end":
            return self.head(self.pooled(torch.cat([first, second], 1)))
        if self.way == "beside":
            return self.head(self.pooled(first) + second.mean(1))
        if self.way == "out of sight":
            return self.head(self.pooled(first) + torch.tensor(b.tolist()).float().mean(1, keepdim=True))
        return self.head(self.pooled(first))


def named(way: str, *names: str) -> nn.Module:
    """A model whose arguments are called that, in this order; the first two are read as source and target."""
    text = f"def forward(self, {', '.join(names)}):\n    return self.read({', '.join(names)})"
    space: dict[str, Any] = {}
    exec(text, space)
    return type("Home", (Reader,), {"forward": space["forward"]})(way).eval()


def by_stream(explanation: wf.Explanation) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {}
    for stream, score in zip(explanation.units.stream, explanation.scores, strict=True):
        found.setdefault(stream, []).append(float(score))
    return found


@pytest.mark.parametrize("target", [TARGET, SAME_LENGTH], ids=["other length", "same length"])
def test_both_sequences_of_a_decoder_have_the_gradients_of_plain_torch(target: Tensor) -> None:
    model, inputs = named("decoder", "context", "question"), {"context": SOURCE, "question": target}
    leaves = [model.first(SOURCE).detach().requires_grad_(), model.second(target).detach().requires_grad_()]
    slopes = torch.autograd.grad(model.decoded(*leaves)[:, 1].sum(), leaves)
    expected = [(leaf * slope).sum(2).detach().numpy() for leaf, slope in zip(leaves, slopes, strict=True)]
    for row, found in enumerate(wf.explain(model, inputs, method="input_x_gradient", target=1)):
        scores = by_stream(found)
        np.testing.assert_allclose(scores["source"], expected[0][row], atol=1e-4)
        np.testing.assert_allclose(scores["target"], expected[1][row], atol=1e-4)


@pytest.mark.parametrize("way", ["decoder", "towers"])
def test_a_call_by_position_and_other_names_change_nothing(way: str) -> None:
    ways = [(named(way, "src", "tgt"), {"src": SOURCE, "tgt": TARGET}), (named(way, "q", "d"), (SOURCE, TARGET))]
    one, other = (wf.explain(model, inputs, method="generic_attention", target=0)[0] for model, inputs in ways)
    assert one.units == other.units
    np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)
    assert all(np.abs(scores).sum() > 0.01 for scores in by_stream(other).values())


def test_the_sequence_that_asks_is_the_target_wherever_it_stands() -> None:
    model = named("decoder", "a", "b")
    swapped = type("Home", (type(model),), {"forward": lambda self, b, a: self.read(a, b)})("decoder").eval()
    one = wf.explain(model, (SOURCE, TARGET), method="input_x_gradient", target=0)[0]
    other = wf.explain(swapped, (TARGET, SOURCE), method="input_x_gradient", target=0)[0]
    for stream, scores in by_stream(one).items():
        np.testing.assert_allclose(scores, by_stream(other)[stream], atol=1e-5)


def test_arguments_that_are_laid_end_to_end_have_all_their_units() -> None:
    """The second one's were called [CLS], [EXTRA1] and so on."""
    model, inputs = named("laid end to end", "a", "b"), {"a": SOURCE[:1], "b": SAME_LENGTH[:1]}
    found = wf.explain(model, inputs, method="occlusion", target=0, replace="zero")[0]
    expected = []
    for name, ids in inputs.items():
        for place in range(ids.shape[1]):
            other = torch.where(torch.arange(ids.shape[1]) == place, 0, ids)
            expected.append((model(**inputs) - model(**inputs | {name: other}))[0, 0].item())
    np.testing.assert_allclose(found.scores, expected, atol=1e-5)
    assert wf.explain(model, inputs, method="attention_rollout")[0].units == found.units


@pytest.mark.parametrize("way", ["added", "beside", "out of sight"])
def test_an_argument_that_has_no_units_is_named(way: str) -> None:
    model, inputs = named(way, "a", "b"), {"a": SOURCE, "b": SAME_LENGTH}
    found = wf.explain(model, inputs, method="occlusion", target=0)[0]
    assert "of the value depends on b, which is not scored" in found.warnings[0]


def test_a_third_sequence_is_named_and_an_argument_that_changes_nothing_is_not() -> None:
    found = wf.explain(named("alone", "a", "b"), (SOURCE, TARGET), method="occlusion", target=0)[0]
    assert not found.warnings and len(found.scores) == SOURCE.shape[1]
    inputs = {"a": SOURCE, "b": TARGET, "c": THIRD}
    found = wf.explain(named("three", "a", "b", "c"), inputs, method="occlusion", target=0)[0]
    assert "of the value depends on c, which is not scored" in found.warnings[0]
    assert {"source", "target"} <= set(found.units.stream)


def test_it_is_found_out_once_per_model_and_counted() -> None:
    """Against a model that is known already: the passes of the first call are all in its cost."""
    model, calls = named("decoder", "a", "b"), []
    model.register_forward_hook(lambda *_: calls.append(1))
    explainer, counts = wf.Explainer(model), []
    for _ in range(3):
        before = len(calls)
        (found,) = explainer.explain((SOURCE[:1], TARGET[:1]), method="attention_rollout", target=0)
        counts.append((len(calls) - before, found.cost.setup_forwards))
    (first, setup), (second, again), third = counts
    assert again == 1 and third == (second, again)  # which rows the head reads is found on each input
    assert first - second == setup - again


# What Python asks of a tensor is fetched once from a device that is not at hand, and again once it was written to.


@contextmanager
def fetches() -> Iterator[list[Tensor]]:
    """Inside, every device is far away; the tensors that were fetched."""
    asked: list[Tensor] = []

    def cpu(tensor: Tensor) -> Tensor:
        asked.append(tensor)
        return tensor.clone()

    with patch.object(batch, "AT_HAND", set()), patch.object(Tensor, "cpu", cpu):
        yield asked


def test_a_tensor_is_fetched_once_until_it_is_written_to() -> None:
    ids = torch.tensor([[1, 2], [3, 4]])
    with fetches() as asked:
        assert on_host(ids).tolist() == on_host(ids).tolist() == [[1, 2], [3, 4]]
        assert len(asked) == 1
        ids[0, 0] = 9
        assert on_host(ids).tolist() == [[9, 2], [3, 4]]
        assert on_host(ids[:1]).tolist() == [[9, 2]], "a part is a tensor of its own"
        assert len(asked) == 3


def test_writes_that_nobody_counts_are_seen() -> None:
    with torch.inference_mode():
        ids = torch.tensor([1, 2])
    with fetches(), torch.inference_mode():
        assert on_host(ids).tolist() == [1, 2]
        ids[0] = 7
        assert on_host(ids).tolist() == [7, 2]


def test_of_a_mask_without_padding_nobody_has_to_ask() -> None:
    with fetches() as asked:
        mask = all_real(2, 3, device=torch.device("cpu"))
        assert bool(on_host(mask).all()) and mask.shape == (2, 3) and mask.dtype is torch.bool
        assert not asked
        mask[0, 0] = False
        assert not bool(on_host(mask).all())


@pytest.mark.parametrize("masked", [False, True])
def test_ids_and_masks_are_fetched_once_for_an_explanation(masked: bool) -> None:
    inputs = CASES["bert"].inputs()
    ids, mask = inputs["input_ids"][:, :3].clone(), torch.ones(len(inputs["input_ids"]), 3, dtype=torch.long)
    explainer = wf.Explainer(CASES["bert"].build("sdpa"))
    x = {"input_ids": ids, "attention_mask": mask} if masked else {"input_ids": ids}
    plain = explainer.explain(x, method="attention_rollout", target=0)
    with fetches() as asked:
        far = explainer.explain(x, method="attention_rollout", target=0)
    assert [e.units for e in far] == [e.units for e in plain]
    whole = [t for t in asked if t.shape == ids.shape and t.dtype in (torch.long, torch.bool)]
    assert len(whole) == len({id(t) for t in whole}) == (3 if masked else 1), (
        "ids; the mask as it came, and as it is read"
    )
    del x["input_ids"], ids


def test_results_are_fetched_at_once_and_are_the_same() -> None:
    tensors = {"scores": torch.randn(2, 3), "matrix": torch.randn(2, 3, 3), "values": torch.randn(2)}
    with fetches() as asked:
        near = _fetched(tensors)
        assert len(asked) == 1
        for name, tensor in tensors.items():
            assert torch.equal(near[name], tensor), name
        with patch.object(explanations, "AT_ONCE", 4):
            assert _fetched(tensors) is tensors, "what is large is not copied first"


class Signal(Blocks):
    """Patches of a signal, whose channels come first."""

    def __init__(self, stride: int = 4) -> None:
        super().__init__()
        self.patches = nn.Conv1d(2, WIDTH, 4, stride)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.patches(x).transpose(1, 2))


def test_patches_of_a_signal_with_channels_first() -> None:
    model, x = seeded(Signal), randn(2, 2, 20)
    leaf = x.clone().requires_grad_()
    value_B = model(leaf)[:, CLASS]
    (slopes,) = torch.autograd.grad(value_B.sum(), [leaf])
    products = (x * slopes).unflatten(2, (5, 4)).sum((1, 3))
    drops = torch.zeros(2, 5)
    for patch_number in range(5):
        without = x.clone()
        without[:, :, 4 * patch_number : 4 * patch_number + 4] = 0
        drops[:, patch_number] = value_B.detach() - model(without)[:, CLASS].detach()
    for method, expected in (("occlusion", drops), ("input_x_gradient", products)):
        for row, found in enumerate(wf.explain(model, x, method=method, target=CLASS)):
            np.testing.assert_allclose(found.scores, expected[row], atol=1e-5)
            assert found.units.labels[1] == "steps 4:8"
    with pytest.raises(NotOffered, match="mean of an input"):
        wf.explain(model, x, method="integrated_gradients", baseline="mean")


def test_patches_that_overlap_are_no_units() -> None:
    """The channels are, by every method without attention: a gradient at the first block stood for no input."""
    model, x = seeded(lambda: Signal(2)), randn(1, 2, 20).requires_grad_()
    (slopes,) = torch.autograd.grad(model(x)[0, CLASS], [x])
    for at in (None, "input"):
        scores = wf.explain(model, x.detach(), method="saliency", at=at, target=CLASS)[0].scores
        np.testing.assert_allclose(scores, slopes[0].norm(dim=1), atol=1e-5)


class Asked(Blocks):
    """A learned query reads a text; numbers go around it."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.query = nn.Embedding(20, WIDTH), nn.Parameter(torch.randn(1, 1, WIDTH))

    def forward(self, ids: Tensor, feats: Tensor) -> Tensor:
        h = self.words(ids)
        return self.head(((self.query @ h.mT).softmax(-1) @ h)[:, 0]) + feats


def test_columns_beside_a_text_that_a_query_reads() -> None:
    """As many positions as ids and columns together, by chance: the column was taken for a token."""
    model, ids, feats = seeded(Asked), randint(1, 20, 1, 6), torch.tensor([[2.0]])
    found = wf.explain(model, {"ids": ids, "feats": feats}, method="occlusion", target=CLASS)[0]
    assert found.units.labels[-1] == "feats[0]" and found.scores[-1] == pytest.approx(2.0, abs=1e-5)


class Joined(Blocks):
    """Two sequences of vectors, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(5, WIDTH), nn.Linear(3, WIDTH)

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.read(torch.cat([self.first(a), self.second(b)], 1))


def test_gradients_at_the_input_are_of_each_sequence() -> None:
    """Given as baseline={argument: tensor}, what stands for absent numbers is that of captum's tuples."""
    model, inputs = seeded(Joined), {"a": randn(1, 2, 5), "b": randn(1, 3, 3)}
    how: dict[str, Any] = {"target": CLASS}
    at_input = wf.explain(model, inputs, method="input_x_gradient", at="input", **how)[0]
    leaves = {name: tensor.clone().requires_grad_() for name, tensor in inputs.items()}
    slopes = torch.autograd.grad(model(**leaves)[0, CLASS], list(leaves.values()))
    by_hand = [(slope * x).sum(-1)[0] for slope, x in zip(slopes, inputs.values(), strict=True)]
    np.testing.assert_allclose(at_input.scores, torch.cat(by_hand), atol=1e-6)
    start = {"a": torch.ones(1, 2, 5), "b": torch.zeros(3, 3)}
    found = wf.explain(model, inputs, method="integrated_gradients", baseline=start, **how)[0]
    change = model(**inputs)[0, CLASS] - model(start["a"], start["b"][None])[0, CLASS]
    assert found.scores.sum() == pytest.approx(change.item(), abs=1e-2)


@pytest.mark.parametrize("method", ["occlusion", "two_ended", "shap"])
def test_masked_numbers_may_be_given(method: str, tmp_path: Path) -> None:
    model, inputs = seeded(Joined), {"a": randn(1, 2, 5), "b": randn(1, 3, 3)}
    given = {"a": torch.full((1, 2, 5), 0.5), "b": torch.ones(3, 3)}

    def value(*present: int) -> float:
        rows = {name: given[name].reshape(inputs[name].shape).clone() for name in inputs}
        for unit in present:
            name, step = ("a", unit) if unit < 2 else ("b", unit - 2)
            rows[name][0, step] = inputs[name][0, step]
        return float(model(**rows)[0, CLASS].detach())

    whole, units = value(*range(5)), range(5)
    found = wf.explain(model, inputs, method=method, target=CLASS, replace=given)[0]
    without = [whole - value(*(u for u in units if u != unit)) for unit in units]
    alone = [value(unit) - value() for unit in units]
    if method == "shap":
        assert found.scores.sum() == pytest.approx(whole - value(), abs=1e-5)
    else:
        expected = without if method == "occlusion" else (np.array(without) + alone) / 2
        np.testing.assert_allclose(found.scores, expected, atol=1e-5)
    found.save(tmp_path / "why.html")
    assert "replace=" in (tmp_path / "why.html").read_text(encoding="utf-8")


def test_masked_numbers_that_cannot_stand_there() -> None:
    model, inputs = seeded(Joined), {"a": randn(1, 2, 5), "b": randn(1, 3, 3)}
    for given, words in (
        (torch.ones(5), "give one for each, replace={'a': …, 'b': …}"),
        ({"a": torch.ones(7)}, r"has shape \(7,\); what it replaces has \(2, 5\)"),
        ({"c": torch.ones(7)}, "unknown argument 'c'"),
        ({"a": torch.full((5,), torch.nan)}, "NaN"),
    ):
        with pytest.raises(WhyformerError, match=words):
            wf.explain(model, inputs, method="occlusion", replace=given)
    sentiment, tokenizer = wf.demo.load_sentiment()
    with pytest.raises(WhyformerError, match="no tensor of floats"):
        wf.explain(sentiment, "I like it", processor=tokenizer, method="occlusion", replace=torch.ones(3))


class MixedVariables(Blocks):
    """The variables of a series, mixed by an LSTM before they attend to each other."""

    def __init__(self) -> None:
        super().__init__()
        self.series, self.mix = nn.Linear(5, WIDTH), nn.LSTM(WIDTH, WIDTH, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.read(self.mix(self.series(x.mT))[0])


def test_units_are_found_where_positions_are_mixed_before_attention() -> None:
    """Six variables of five steps were called five steps and a token of the model's own."""
    found = wf.explain(seeded(MixedVariables), {"x": randn(1, 5, 6)}, method="attention_rollout", target=CLASS)[0]
    assert found.units.labels == tuple(f"variable {i}" for i in range(6))


class Events(Blocks):
    """Kinds and amounts of events share positions; times only weight them, or a flag of the row is a token, too."""

    def __init__(self, flagged: bool) -> None:
        super().__init__()
        self.kinds, self.amount, self.value = nn.Embedding(9, WIDTH), nn.Linear(1, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.flags = nn.Embedding(2, WIDTH) if flagged else None

    def forward(self, kinds: Tensor, amounts: Tensor, times: Tensor, flag: Tensor) -> Tensor:
        h = self.kinds(kinds) + self.amount(amounts[..., None])
        if self.flags is not None:
            return self.read(torch.cat([self.flags(flag.long())[:, None], self.amount(times[..., None])], 1))
        weights = (-(times[:, :, None] - times[:, None]).abs()).softmax(-1)
        return self.head((h + weights @ self.value(h)).mean(1))


EVENTS = {"kinds": randint(1, 9, 1, 4), "amounts": randn(1, 4), "times": randn(1, 4), "flag": torch.tensor([True])}


def test_arguments_that_share_positions_are_not_said_to_be_one_of_them() -> None:
    model = seeded(lambda: Events(False))
    found = wf.explain(model, EVENTS, method="attention_rollout", target=CLASS)[0]
    assert found.units.labels == tuple(f"position {i}" for i in range(4))
    assert "kinds, amounts, times and flag, which are not scored" in found.warnings[0]
    for method in ("input_x_gradient", "attn_lrp"):  # the kinds were given 0
        with pytest.raises(NotOffered):
            wf.explain(model, EVENTS, method=method, target=CLASS)


def test_a_flag_of_a_row_is_a_feature_and_no_mask() -> None:
    """It was called [CLS]."""
    model = seeded(lambda: Events(True))
    found = wf.explain(model, EVENTS, method="occlusion", target=CLASS)[0]
    with torch.no_grad():
        effect = (model(**EVENTS) - model(**EVENTS | {"flag": torch.tensor([False])}))[0, CLASS]
    assert dict(zip(found.units.labels, found.scores, strict=True))["flag"] == pytest.approx(float(effect), abs=1e-5)


class SeveralWords(nn.Module):
    """Positions that hold two ids each, mixed by a convolution; there is no attention, or one that pools."""

    def __init__(self, pools: bool) -> None:
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(20, 8), nn.Conv1d(8, 8, 3, padding=1), nn.Linear(8, 3)
        self.score, self.pools = nn.Linear(8, 1), pools

    def forward(self, ids: Tensor) -> Tensor:
        h = self.embed(ids).sum(2)
        h = h + torch.relu(self.mix(h.transpose(1, 2))).transpose(1, 2)
        return self.head((self.score(h).mT.softmax(-1) @ h)[:, 0] if self.pools else h[:, -1])


@pytest.mark.parametrize("pools", [False, True])
def test_without_attention_gradients_are_taken_before_positions_are_mixed(pools: bool) -> None:
    torch.manual_seed(0)
    model, ids = SeveralWords(pools).eval(), torch.tensor([[[3, 7], [8, 1], [5, 12], [9, 4]]])
    (found,) = wf.explain(model, {"ids": ids}, method="input_x_gradient", target=1)
    vectors = model.embed(ids).detach().requires_grad_()
    model.embed.register_forward_hook(lambda module, args, out: vectors)
    (slopes,) = torch.autograd.grad(model(ids)[0, 1], vectors)
    np.testing.assert_allclose(found.scores, (vectors * slopes)[0].sum((1, 2)).detach(), atol=1e-6)
    assert found.scores[2] != 0
