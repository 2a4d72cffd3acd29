"""The interceptor's parts: axes, layouts, products, the escape hatch, audit and ledger."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as wf
from whyformer.capture.functions import attention_weights, repeat_heads
from whyformer.capture.site import Contraction, layout_of
from whyformer.capture.trail import Note, Notes, Trail, fresh, reshaped
from whyformer.errors import AmbiguousLayout, BadInput, NothingCaptured


def sizes(axes: tuple) -> list[list[int]]:
    return [[atom.size for atom in axis] for axis in axes]


def test_reshape_keeps_what_axes_are_made_of() -> None:
    axes = fresh((2, 4, 9, 8))
    merged = reshaped(axes, (8, 9, 8))
    assert sizes(merged) == [[2, 4], [9], [8]]
    split = reshaped(merged, (2, 4, 9, 8))
    assert split[0] == axes[0] and split[1] == axes[1]
    assert sizes(reshaped(fresh((6, 5)), (2, 3, 5))) == [[2], [3], [5]]
    assert sizes(reshaped(fresh((4, 6)), (8, 3))) == [[4, 2], [3]]
    assert sizes(reshaped(fresh((3, 4)), (2, 6))) == [[2], [6]], "no shared boundary: nothing is known any more"
    assert sizes(reshaped(fresh((0, 6)), (2, 0, 3))) == [[2], [0], [3]], "a tensor of no numbers has no boundaries"


@pytest.mark.parametrize(
    ("name", "dims"), [("unsqueeze", (1,)), ("squeeze", (0,)), ("transpose", (1, 2)), ("swapaxes", (-1, 0)), ("t", ())]
)
def test_axes_moved_in_place_are_followed(name: str, dims: tuple[int, ...]) -> None:
    shape = (3, 4) if name == "t" else (1, 3, 4)
    trail, axes = Trail(), fresh(shape)
    moved = []
    for called in (name, f"{name}_"):
        tensor = torch.rand(shape)
        trail.put(tensor, Note(axes))
        out = getattr(tensor, called)(*dims)
        trail.follow(called, (tensor, *dims), out)
        moved.append([[atom for atom in axis if atom.size > 1] for axis in trail.at(out).axes])
        assert [len(trail.at(out).axes), *sizes(trail.at(out).axes)] == [out.ndim, *([size] for size in out.shape)]
    assert moved[0] == moved[1]
    unknown = torch.rand(shape)
    trail.follow(f"{name}_", (unknown, *dims), getattr(unknown, f"{name}_")(*dims))
    assert trail.get(unknown) is None, "which axes it had is not known any more"


def canonical(shape: tuple[int, ...], batch: int, axes: tuple | None = None, batch_axis: int | None = None):
    n = len(shape)
    return layout_of(shape, axes or fresh(shape), n - 2, n - 1, batch, "here", batch_axis)


@pytest.mark.parametrize("order", ["bh", "hb"])
def test_folded_heads_are_unfolded_by_what_the_axis_is_made_of(order: str) -> None:
    weights = torch.rand(2, 3, 5, 5)
    raw = (weights if order == "bh" else weights.transpose(0, 1)).reshape(6, 5, 5)
    made_of = reshaped(fresh((2, 3, 5, 5) if order == "bh" else (3, 2, 5, 5)), (6, 5, 5))
    layout = canonical((6, 5, 5), 2, made_of)
    assert torch.equal(layout.to_canonical(raw), weights)
    assert torch.equal(layout.to_raw(weights, raw), raw)


def test_ambiguous_layouts_raise_and_never_guess() -> None:
    for shape, batch, made_of, why in (
        ((4, 4, 5, 5), 4, None, "same size"),
        ((6, 5, 5), 2, None, "batch_size=1"),
        ((4, 5, 5), 2, reshaped(fresh((2, 2, 5, 5)), (4, 5, 5)), "batch_size=1"),
        ((2, 3, 4, 5, 5), 2, None, "axes besides"),
        ((5, 5), 2, None, "no batch axis"),
    ):
        with pytest.raises(AmbiguousLayout, match=why):
            canonical(shape, batch, made_of)
    assert canonical((4, 4, 5, 5), 4, batch_axis=1).names == ("H", "B")


@pytest.mark.parametrize(
    ("equation", "axis", "first", "expected"),
    [
        ("bhqk,bkhd->bqhd", 3, True, (2, 3, 1, 3)),
        ("bnij,jbnd->ibnd", 3, True, (2, 3, 0, 3)),
        ("b h i j, b h j d -> b h i d", 3, True, (2, 3, 2, 3)),
        ("bkhd,bqkh->bqhd", 2, False, (1, 2, 1, 3)),
    ],
)
def test_einsum_letters_tell_queries_from_keys(
    equation: str, axis: int, first: bool, expected: tuple[int, ...]
) -> None:
    found = Contraction.of_einsum(equation, 4, 4, (axis, first))
    assert found is not None
    assert (found.query, found.key, found.value_key, found.value_width) == expected


def test_products_that_are_no_attention() -> None:
    assert Contraction.of_einsum("bhqk,bkhd->bhqkd", 4, 4, (3, True)) is None, "nothing is summed"
    assert Contraction.of_einsum("bhqk,hg->bgqk", 4, 2, (3, True)) is None, "heads are mixed"
    assert Contraction.of_matmul(4, 4, (2, True)) is None, "queries are summed, not keys"


@pytest.mark.parametrize(("causal", "mask"), [(False, None), (True, None), (False, "bool"), (False, "float")])
@pytest.mark.parametrize("scale", [None, 0.3])
def test_attention_written_out_equals_torchs_own(causal: bool, mask: str | None, scale: float | None) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(2, 4, 6, 8, generator=generator) for _ in range(3))
    hidden = torch.rand(2, 1, 6, 6, generator=generator) > 0.3
    hidden[..., 0] = True
    given = {None: None, "bool": hidden, "float": hidden.float() * 2 - 1}[mask]
    weights = attention_weights(q, k, given, causal, scale)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=given, is_causal=causal, scale=scale)
    torch.testing.assert_close(weights @ v, expected, rtol=1e-5, atol=1e-6)


def test_a_query_that_may_look_nowhere_attends_to_nothing() -> None:
    q = torch.randn(1, 1, 3, 4, requires_grad=True)
    mask = torch.tensor([[True, True, True], [False, False, False], [True, False, False]])
    weights = attention_weights(q, torch.randn(1, 1, 3, 4), mask)
    assert weights[0, 0, 1].tolist() == [0, 0, 0]
    weights.sum().backward()
    assert torch.isfinite(q.grad).all()


def test_grouped_query_heads_are_repeated() -> None:
    q, k = torch.randn(1, 4, 3, 8), torch.randn(1, 2, 3, 8)
    assert torch.equal(repeat_heads(q, k)[:, 1], k[:, 0])
    assert torch.equal(repeat_heads(q, k)[:, 2], k[:, 1])


class SparseAttention(nn.Module):
    """Attention that is no softmax: the escape hatch is for this."""

    def __init__(self, marked: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.weights = nn.Identity()
        self.head = nn.Linear(8, 3)
        self.marked = marked

    def forward(self, x: Tensor) -> Tensor:
        scores = (self.q(x) @ self.k(x).transpose(1, 2)).clamp(min=0) + 0.01
        weights = self.weights(scores / scores.sum(-1, keepdim=True))
        if self.marked:
            weights = wf.mark_attention(weights, "b q k")
        return self.head((x + weights @ self.v(x))[:, 0])


def test_the_escape_hatch() -> None:
    x = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))
    with pytest.raises(NothingCaptured, match=r"attention_at.*mark_attention.*'b k'"):
        wf.explain(SparseAttention(marked=False), (x,), method="generic_attention")
    (masked,) = wf.explain(SparseAttention(marked=False), (x[:1],))
    assert masked.method == "two_ended"
    marked = wf.explain(SparseAttention(marked=True), (x,), target=1)
    named = wf.Explainer(SparseAttention(marked=False), attention_at={"weights": "b q k"}).explain((x,), target=1)
    np.testing.assert_allclose(marked[0].scores, named[0].scores, atol=1e-6)
    outside = (SparseAttention(marked)(x) for marked in (True, False))
    assert torch.equal(*outside), "outside of an explanation marking does nothing"
    with pytest.raises(BadInput, match="one letter per axis"):
        wf.mark_attention(torch.ones(2, 3, 3), "b h q k")
    with pytest.raises(BadInput, match="matches no module"):
        wf.Explainer(SparseAttention(False), attention_at={"nothing.*": "b q k"})


# Notes beside tensors: they die with their tensor, belong to no other, and hold nothing alive.


class Told:
    """Something that can be watched going."""


@pytest.fixture
def without_collector() -> Iterator[None]:
    """What is to go has to go at once, not when the collector comes."""
    gc.disable()
    yield
    gc.enable()


def test_a_note_is_found_by_its_tensor_alone() -> None:
    notes, tensor = Notes[str](), torch.zeros(3)
    notes.put(tensor, "first")
    assert notes.get(tensor) == "first"
    assert notes.get(tensor.clone()) is None
    assert notes.get(tensor.view(3)) is None, "another tensor over the same memory"
    assert notes.get(None) is None
    notes.put(tensor, "second")
    assert notes.get(tensor) == "second" and len(notes) == 1
    new = torch.ones(3)  # at the id of one that is gone, were its entry still there
    notes._entries[id(new)] = notes._entries[id(tensor)]
    assert notes.get(new) is None


@pytest.mark.usefixtures("without_collector")
def test_a_note_dies_with_its_tensor_or_with_all_notes() -> None:
    notes, tensor, other, told, second = Notes[Told](), torch.zeros(3), torch.ones(3), Told(), Told()
    gone = weakref.ref(told), weakref.ref(second), weakref.ref(notes)
    notes.put(tensor, told)
    notes.put(tensor, told)  # the same tensor twice
    notes.put(other, second)
    del told, second
    assert all(ref() is not None for ref in gone)
    del tensor
    assert gone[0]() is None and len(notes) == 1
    del notes
    assert [ref() for ref in gone] == [None] * 3, "a tensor lives on, its note does not"


@pytest.mark.usefixtures("without_collector")
def test_notes_do_not_grow() -> None:
    notes, ids = Notes[int](), set()
    for number in range(200):
        tensor = torch.zeros(3)
        assert notes.get(tensor) is None, "at the address of one that is gone"
        ids.add(id(tensor))
        notes.put(tensor, number)
        assert notes.get(tensor) == number and len(notes) <= 2
    assert len(ids) < 200, "no id was reused, so nothing was tested"


@pytest.mark.usefixtures("without_collector")
@pytest.mark.filterwarnings("error")  # an exception in a callback becomes a warning of pytest's
def test_notes_may_go_before_what_their_notes_hold() -> None:
    notes, first = Notes[object](), torch.zeros(3)
    notes.put(first, [torch.ones(3)])
    held = notes.get(first)
    assert isinstance(held, list)
    notes.put(held[0], "inner")
    gone = weakref.ref(held[0])
    del held, notes
    assert gone() is None
