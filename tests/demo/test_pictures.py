"""Drawn pictures, what the shipped models say about them, and models that tests share."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from tests.support.demo_models import shared_models
from whyformer import demo
from whyformer.demo import load_pets, load_textures
from whyformer.demo.pictures import CLASSES, face, picture


def test_rows_and_pictures_need_no_import_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("census", "pictures"):
        monkeypatch.delattr(demo, name, raising=False)  # as if no other test had imported it
    assert len(demo.census.adult_rows()) == 40 and demo.pictures.face is face
    with pytest.raises(AttributeError, match="no attribute 'rows'"):
        _ = demo.rows


def test_the_model_of_pets_knows_the_drawn_faces() -> None:
    model, processor = load_pets()
    for animal in ("cat", "dog"):
        with torch.no_grad():
            said = model(**processor(images=face(animal), return_tensors="pt")).logits
        assert model.config.id2label[int(said.argmax())] == animal


def test_the_model_of_textures_knows_a_striped_horse() -> None:
    model, processor = load_textures()
    with torch.no_grad():
        logits = model(**processor(images=picture("horse", "striped", seed=2), return_tensors="pt")).logits
    assert model.config.id2label[int(logits.argmax())] == CLASSES[0] == "zebra-like"


def test_faces_are_pictures() -> None:
    assert face("cat").shape == (128, 128, 3) and face("cat").dtype == np.uint8
    with pytest.raises(ValueError, match="cat or dog"):
        face("horse")


# Models that tests share: who changes one is found out.


def test_one_model_for_all_and_changes_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    with shared_models(monkeypatch):
        assert demo.load_adult()[0] is demo.load_adult()[0]
    model = demo.load_adult()[0]
    weight = next(model.parameters())
    with pytest.raises(AssertionError, match="'adult' was changed"), shared_models(monkeypatch), torch.no_grad():
        demo.load_adult()[0]
        weight += 1
    with torch.no_grad():
        weight -= 1
    with pytest.raises(AssertionError, match="'adult' was changed"), shared_models(monkeypatch):
        demo.load_adult()[0].train()
    model.eval()
