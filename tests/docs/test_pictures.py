"""Stored pictures and outputs that are missing, stale or too large are named; those in the repository are not."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from PIL import Image, PngImagePlugin

import whyformer as wf
from docs import build, method_pictures, notebook, start_pictures

NAME = "raw_attention"  # one forward


def test_every_method_has_a_picture() -> None:
    assert {p.stem for p in method_pictures.FOLDER.glob("*.png")} == set(wf.list_methods())


def test_a_picture_that_is_stale_missing_or_too_large_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / f"{NAME}.png"
    path.write_bytes((method_pictures.FOLDER / path.name).read_bytes())
    monkeypatch.setattr(method_pictures, "FOLDER", tmp_path)
    assert method_pictures.complaint(NAME) is None
    with Image.open(path) as picture:
        told, data = dict(picture.info), picture.copy()
    numbers = json.loads(told["numbers"])
    numbers["text"]["scores"][3] *= 1.1
    for change, words in (
        ({"numbers": json.dumps(numbers)}, "other scores for the text"),
        ({"drawn by": "somebody"}, "another"),
    ):
        new = PngImagePlugin.PngInfo()
        for key, text in (told | change).items():
            new.add_text(key, str(text))
        data.save(path, pnginfo=new)
        assert words in (method_pictures.complaint(NAME) or "")
    monkeypatch.setattr(method_pictures, "LARGEST", 1000)
    assert "bytes" in (method_pictures.complaint(NAME) or "")
    path.unlink()
    assert method_pictures.complaint(NAME) == "no picture"


def test_machines_may_differ_a_little() -> None:
    one = {"text": {"labels": ["a", "b"], "scores": [1.0, 0.5]}}
    near = {"text": {"labels": ["a", "b"], "scores": [1.005, 0.5]}}
    assert method_pictures.difference(one, near) is None
    assert method_pictures.difference(one, {"text": {"labels": ["a", "c"], "scores": [1.0, 0.5]}})
    assert method_pictures.difference(one, {**one, "image": one["text"]})


def test_a_page_without_a_part_that_all_have_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.incomplete() == []
    monkeypatch.setattr(build, "ROOT", tmp_path)
    folder = tmp_path / "docs" / "methods"
    folder.mkdir(parents=True)
    (folder / f"{NAME}.md").write_text("\n## Idea\n\n## Formula\n\n## Example\n", encoding="utf-8")
    named = [words for words in build.incomplete() if f"/{NAME}.md" in words]
    assert named == [f"docs/methods/{NAME}.md has no part '## When it misleads'"]


def test_start_pages_show_what_their_code_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_pictures.stale() == []
    monkeypatch.setattr(start_pictures, "digest", lambda blocks: "other")
    assert start_pictures.stale() == list(start_pictures.PAGES)


def test_outputs_of_the_notebook_belong_to_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not notebook.is_stale()
    cells = notebook.cells()
    monkeypatch.setattr(notebook, "cells", lambda: [*cells, {"kind": "code", "text": "1 + 1"}])
    assert notebook.is_stale()


def test_what_pages_share_is_put_back() -> None:
    script = f'<script type="module">{"x" * notebook.LEAST}</script>'
    shared: dict[str, str] = {}
    lean = notebook.without_shared(f'<iframe srcdoc="&lt;p&gt;{script.replace(chr(34), "&quot;")}"></iframe>', shared)
    assert lean == "<p><!-- script -->" and shared == {"script": script}
    assert script.replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;") in notebook.frame(lean, shared, "x")
