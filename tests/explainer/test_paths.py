"""Every door that takes the name of a file or folder refuses what cannot be one, before any work."""

from __future__ import annotations

import json
import os
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.cli.test_cli import run
from tests.support import folders
from tests.views import samples
from whyformer.concepts.concept_vectors import TCAVResult
from whyformer.demo import load_adult, model_folder
from whyformer.engines.perturbation.game import cache_of
from whyformer.errors import BadInput
from whyformer.files import open_image
from whyformer.inputs.audio import clip_of
from whyformer.tables.global_explanation import CsvRows
from whyformer.tables.table_results import load_model, save_model


class Unheard(os.PathLike[bytes]):
    def __fspath__(self) -> bytes:
        return b"x.json"


NO_PATHS: list[Any] = [None, 3, b"x.json", ["x.json"], True, Unheard()]
NO_NAMES = ["", "  ", "a\0b.json", "\ud800.json"]
TOO_LONG = "x" * 5000 + ".json"


def table() -> Any:
    return load_adult()[1]


READERS: dict[str, Callable[[Any], Any]] = {
    "wf.load": wf.load,
    "TCAVResult.load": TCAVResult.load,
    "CsvRows": lambda path: CsvRows(path, table()),
    "load_model": load_model,
}
OF_STRINGS: dict[str, Callable[[Any], Any]] = {  # other types are inputs of another kind, with errors of their own
    "open_image": open_image,
    "clip_of": lambda path: clip_of(path, 16000),
}
WRITERS: dict[str, Callable[[Any], Any]] = {
    "Result.save": lambda path: samples.text().save(path),
    "View.save": lambda path: samples.text().view().save(path),
    "Page.save": lambda path: wf.views.page([samples.text()]).save(path),
    "save_model": lambda path: save_model(*_model(), path),
}
FOLDERS: dict[str, Callable[[Any], Any]] = {"cache": lambda path: cache_of(path, list)[0]}


def _model() -> tuple[Any, Any, Any]:
    model, described = load_adult()
    return model, {}, described


@pytest.mark.parametrize("value", [*NO_PATHS, *NO_NAMES, TOO_LONG], ids=lambda v: repr(v)[:12])
@pytest.mark.parametrize("door", [*READERS, *WRITERS, *FOLDERS])
def test_what_is_no_path(door: str, value: Any) -> None:
    if door == "cache" and value is None:
        return  # no cache
    with pytest.raises(BadInput) as caught:
        (READERS | WRITERS | FOLDERS)[door](value)
    assert len(str(caught.value)) < 11_000


@pytest.mark.parametrize("value", [*NO_NAMES, TOO_LONG, Path("nowhere.png"), Path()], ids=lambda v: repr(v)[:12])
@pytest.mark.parametrize("door", OF_STRINGS)
def test_what_is_no_picture_and_no_sound(door: str, value: Any) -> None:
    with pytest.raises(BadInput):
        OF_STRINGS[door](value)


@pytest.mark.parametrize("door", READERS)
def test_readers_name_what_is_missing(door: str, tmp_path: Path) -> None:
    missing = tmp_path / "no" / "where.json"
    with pytest.raises(BadInput, match=r"nowhere|where\.json"):
        READERS[door](missing)
    other = tmp_path / "file.json"
    other.write_text("a\tb", encoding="utf-8")
    with pytest.raises(BadInput, match=r"file.json"):
        READERS[door](other)
    if door != "load_model":
        with pytest.raises(BadInput, match="is a folder: name a file in it"):
            READERS[door](tmp_path)


@pytest.mark.parametrize("door", ["Result.save", "View.save", "Page.save"])
def test_writers_say_what_is_in_the_way(door: str, tmp_path: Path) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "file").write_text("")
    for name, words in (
        ("folder.html", r"it is a folder. Name a file in it"),
        ("no/x.html", r"there is no folder .*Make it first"),
        ("x.gif", r"unknown file type '.gif'"),
        ("x", "unknown file type"),
        ("x" * 300 + ".html", r"cannot be written .File name too long"),
        ("file/x.html", "there is no folder"),
    ):
        with pytest.raises(BadInput, match=words):
            WRITERS[door](tmp_path / name)


def test_permissions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As somebody who may neither read nor write: root may, so the system's answer is put in its place."""
    saved = samples.text().save(tmp_path / "x.json")
    monkeypatch.setattr(os, "access", lambda *asked: False)
    for call, words in (
        (lambda: wf.load(saved), "cannot be read by this user"),
        (lambda: samples.text().save(saved), r"is read-only. Choose another name"),
        (lambda: samples.text().save(tmp_path / "y.json"), r"is read-only.*Choose another folder"),
        (lambda: cache_of(tmp_path, list), "is read-only"),
    ):
        with pytest.raises(BadInput, match=words):
            call()


def test_a_disk_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    for ending in ("json", "html"):
        with pytest.raises(BadInput, match="No space left on device"):
            samples.text().save(tmp_path / f"x.{ending}")
    assert not list(tmp_path.iterdir())


def test_folders_for_results(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for name in ("file", "file/inside"):
        for write in (lambda path: cache_of(path, list), lambda path: save_model(*_model(), path)):
            with pytest.raises(BadInput, match=r"is a file|cannot be written"):
                write(tmp_path / name)
    assert cache_of(tmp_path / "new" / "one", list)[0].is_dir()  # type: ignore[union-attr]


def test_what_pictures_are_told_is_not_for_data(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="'by', which is for pictures"):
        samples.text().save(tmp_path / "x.json", by="word")


@pytest.mark.parametrize("command", ["explain text a", "compare a", "check a", "heads a", "tcav"])
def test_commands_refuse_before_a_model_is_loaded(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = command.split()
    monkeypatch.setattr("whyformer.demo.model_folder", lambda name: pytest.fail("a model was loaded"))
    for out in ("", "x", "x.gif", str(tmp_path), str(tmp_path / "no" / "x.html")):
        assert "--out" in run(*words, "--out", out, code=2).stderr
    (tmp_path / "x.html").mkdir()
    assert "--out" in run(*words, "--out", tmp_path / "x.html", code=2).stderr
    (tmp_path / "x.json").write_text("")
    monkeypatch.setattr(os, "access", lambda *asked: False)
    assert "--out" in run(*words, "--out", tmp_path / "x.json", code=2).stderr


# Damaged files of models, tables, pictures and sound.


def changed_bytes(whole: bytes, seed: int) -> bytes:
    draw = np.random.default_rng(seed)
    if seed % 2:
        return whole[: draw.integers(len(whole))]
    changed = bytearray(whole)
    for at in draw.integers(min(len(whole), 2000), size=20):
        changed[at] = draw.integers(256)
    return bytes(changed)


def copy_adult(folder: Path) -> None:
    for file in model_folder("adult").iterdir():
        if file.is_file():
            (folder / file.name).write_bytes(file.read_bytes())


@pytest.mark.parametrize("name", ["config.json", "table.json", "model.safetensors"])
def test_damaged_tabular_models(name: str, tmp_path: Path) -> None:
    copy_adult(tmp_path)
    whole = (tmp_path / name).read_bytes()
    for seed in range(12):
        (tmp_path / name).write_bytes(changed_bytes(whole, seed))
        try:
            load_model(tmp_path)
        except wf.errors.WhyformerError as error:
            assert error.args
    texts = ("[" * 100_000, "null", "[]", '{"library": 3}', '{"library": "os", "class": "system", "arguments": {}}')
    for text in texts:
        (tmp_path / name).write_text(text, encoding="utf-8")
        with pytest.raises(BadInput):
            load_model(tmp_path)


def test_a_model_of_a_billion_blocks_is_not_built(tmp_path: Path) -> None:
    copy_adult(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text(encoding="utf-8"))
    config["arguments"]["n_blocks"] = 10**9
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(BadInput, match=r"the number .*1000000000"):
        load_model(tmp_path)


def test_damaged_transformers_folders(tmp_path: Path) -> None:
    folder = tmp_path / "bert"
    folders.bert().save_pretrained(folder)
    folders.tokenizer(folder).save_pretrained(folder)
    for name in ("config.json", "model.safetensors", "tokenizer.json", "tokenizer_config.json"):
        whole = (folder / name).read_bytes()
        for damaged in (b"", whole[: len(whole) // 2], b"\xff" * 50, b"[" * 50_000):
            (folder / name).write_bytes(damaged)
            shown = run("explain", "text", "a", "--model", folder, code=1).stderr
            assert shown.startswith("Error: ") and shown.count("\n") == 1 and str(folder) in shown
        (folder / name).write_bytes(whole)


def test_damaged_tables(tmp_path: Path) -> None:
    described = table()
    whole = (model_folder("adult") / "rows.csv").read_bytes()
    path = tmp_path / "rows.csv"
    for seed in range(30):
        path.write_bytes(changed_bytes(whole, seed))
        try:
            rows = CsvRows(path, described)
            rows.check(described)
        except wf.errors.WhyformerError as error:
            assert error.args
    for damaged in (b"", b"\n\n", b"\xff\xfe", b"a,b\n1", b'"' + b"x" * 200_000, b"\0" * 100):
        path.write_bytes(damaged)
        with pytest.raises(BadInput):
            CsvRows(path, described).check(described)


def test_damaged_pictures_and_sounds(tmp_path: Path) -> None:
    import wave

    from PIL import Image

    picture, sound = tmp_path / "x.png", tmp_path / "x.wav"
    Image.fromarray(np.arange(3072, dtype=np.uint8).reshape(32, 32, 3)).save(picture)
    with wave.open(str(sound), "wb") as file:
        file.setparams((1, 2, 16000, 0, "NONE", "none"))
        file.writeframes(struct.pack("<400h", *range(400)))
    for path, read in ((picture, open_image), (sound, lambda p: clip_of(p, 16000))):
        whole = path.read_bytes()
        for seed in range(60):
            path.write_bytes(changed_bytes(whole, seed))
            try:
                read(path)
            except wf.errors.WhyformerError as error:
                assert error.args
