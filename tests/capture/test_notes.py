"""Notes beside tensors: they die with their tensor, belong to no other, and hold nothing alive."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch

from whyformer.capture.trail import Notes


class Told:
    """Something that can be watched going."""


@pytest.fixture(autouse=True)
def without_collector() -> object:
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


def test_a_note_dies_with_its_tensor() -> None:
    notes, tensor, told = Notes[Told](), torch.zeros(3), Told()
    gone = weakref.ref(told)
    notes.put(tensor, told)
    notes.put(tensor, told)  # the same tensor twice
    del told
    assert gone() is not None
    del tensor
    assert gone() is None and len(notes) == 0


def test_notes_do_not_grow() -> None:
    notes, ids = Notes[int](), set()
    for number in range(200):
        tensor = torch.zeros(3)
        assert notes.get(tensor) is None, "at the address of one that is gone"
        ids.add(id(tensor))
        notes.put(tensor, number)
        assert notes.get(tensor) == number and len(notes) <= 2
    assert len(ids) < 200, "no id was reused, so nothing was tested"


def test_a_reused_id_matches_nothing() -> None:
    """Also where the entry of a tensor that is gone were still there."""
    notes, old, new = Notes[str](), torch.zeros(3), torch.ones(3)
    notes.put(old, "old")
    notes._entries[id(new)] = notes._entries[id(old)]
    assert notes.get(new) is None


def test_copies_and_drops() -> None:
    notes, one, other = Notes[str](), torch.zeros(3), torch.ones(3)
    notes.copy(one, other)
    assert notes.get(other) is None and len(notes) == 0
    notes.put(one, "told")
    notes.copy(one, other)
    del one
    assert notes.get(other) == "told" and len(notes) == 1
    notes.drop(other)
    notes.drop(other)
    assert notes.get(other) is None and len(notes) == 0


def test_notes_hold_neither_tensors_nor_themselves() -> None:
    notes, tensor, told = Notes[Told](), torch.zeros(3), Told()
    notes.put(tensor, told)
    gone = weakref.ref(told), weakref.ref(notes)
    del told, notes
    assert [ref() for ref in gone] == [None, None], "the tensor lives on, its note does not"


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
