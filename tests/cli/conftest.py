"""Models in folders, loaded by the command line as a user's would be."""

from __future__ import annotations

import wave
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from tests.models import CASES, UNUSUAL
from tests.support import folders, language, processors
from tests.support.demo_models import shared_models
from whyformer.demo.census import rows_file

FOLDERS: dict[str, tuple[Any, ...]] = {
    "clip": (processors.clip,),
    "blip_vqa": (processors.blip,),
    "llava": (processors.llava,),
    "lxmert": (processors.tokenizer,),
    "detr": (processors.detr,),
    "t5": (processors.tokenizer,),
    "wav2vec2": (processors.wav2vec2,),
    "whisper": (lambda: processors.whisper().feature_extractor, processors.tokenizer),
}


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


@pytest.fixture(scope="session")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a file of each kind that commands take, and some that they refuse."""
    folder = tmp_path_factory.mktemp("given")
    Image.new("RGB", (40, 30), "orange").save(folder / "photo.jpg")
    for name in ("empty", "blank", "damaged", "texts"):
        (folder / name).mkdir()
    for name, content in {
        "rows.csv": "".join(rows_file().read_text(encoding="utf-8").splitlines(True)[:3]),
        "lines.txt": "I like it\n\nSo boring\n",
        "table.csv": "id,words\na,good movie\nb,\nc,so boring the film was\n",
        "label.txt": "positive",
        "empty.csv": "",
        "notes.pdf": "%PDF",
        "blank/a.txt": " \n",
        "texts/a.txt": "yes",
    }.items():
        (folder / name).write_text(content, encoding="utf-8")
    for name in ("binary.bin", "damaged/a.txt"):
        (folder / name).write_bytes(b"\xff\xfe\x00\x80")
    return folder


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One folder per model, with a picture and a clip beside them."""
    root = tmp_path_factory.mktemp("streams")
    for name, makers in FOLDERS.items():
        case = (CASES | UNUSUAL)[name]
        case.build(case.implementations[0]).save_pretrained(root / name)
        for make in makers:
            make().save_pretrained(root / name)
    CASES["bert"].build("sdpa").bert.save_pretrained(root / "encoder")
    processors.tokenizer().save_pretrained(root / "encoder")
    processors.picture().save(root / "cat.png")
    with wave.open(str(root / "clip.wav"), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(16000)
        file.writeframes((np.random.default_rng(0).normal(size=1600) * 3000).astype(np.int16).tobytes())
    return root


@pytest.fixture(scope="session")
def lm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    language.model("llama").save_pretrained(folder)
    language.tokenizer().save_pretrained(folder)
    return folder
