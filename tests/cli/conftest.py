"""Models in folders, loaded by the command line as a user's would be."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support import folders
from tests.support.demo_models import shared_models


@pytest.fixture(autouse=True)
def shipped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Of every command that is run here, loading and studying its model would take most of the time."""
    with shared_models(monkeypatch):
        yield


@pytest.fixture(scope="session")
def vit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("vit")
    folders.vit().save_pretrained(folder)
    folders.image_processor().save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    folders.bert().save_pretrained(folder)
    folders.tokenizer(folder).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def photo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("photos") / "cat.png"
    ys, xs = np.mgrid[:40, :60]
    Image.fromarray(np.stack([ys * 6, xs * 4, ys + xs], -1).astype(np.uint8)).save(path)
    return path
