"""Models in folders, loaded by the command line as a user's would be."""

from __future__ import annotations

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
from whyformer.serve.safety import written_sound

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


def saved(folder: Path, *parts: Any) -> Path:
    for part in parts:
        part.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def vit_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("vit"), folders.vit(), folders.image_processor())


@pytest.fixture(scope="session")
def bert_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bert")
    return saved(folder, folders.bert(), folders.tokenizer(folder))


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
        "rows.jsonl": '{"text": "good movie"}\n',
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
        saved(root / name, case.build(case.implementations[0]), *(make() for make in makers))
    saved(root / "encoder", CASES["bert"].build("sdpa").bert, processors.tokenizer())
    processors.picture().save(root / "cat.png")
    (root / "clip.wav").write_bytes(written_sound(np.random.default_rng(0).normal(size=1600) * 0.1, 16_000))
    return root


@pytest.fixture(scope="session")
def lm_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return saved(tmp_path_factory.mktemp("llama"), language.model("llama"), language.tokenizer())
