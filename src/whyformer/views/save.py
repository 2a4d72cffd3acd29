"""Writing pictures and explanations: the ending of the file name says what."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whyformer.errors import UnknownName
from whyformer.io import in_folder
from whyformer.io import save as save_data
from whyformer.types import Explanation
from whyformer.views.explained import view_of
from whyformer.views.view import Page

PICTURES = (".html", ".png", ".svg")
DATA = (".json", ".npz")


def save(explanation: Explanation, path: str | Path, **how: Any) -> Path:
    """.html, .png, .svg draw (``image=``, ``by=`` as in ``plot``); .json and .npz reload with ``whyformer.load``."""
    path = in_folder(path)
    if path.suffix in PICTURES:
        return view_of(explanation, **how).save(path)
    if path.suffix not in DATA:
        raise UnknownName("file type", path.suffix or str(path), (*PICTURES, *DATA))
    return save_data(explanation, path)


def save_page(page: Page, path: Path) -> Path:
    path = in_folder(path)
    if path.suffix == ".html":
        path.write_text(page.to_html(), encoding="utf-8")
    elif path.suffix in PICTURES:
        from whyformer.views.backends.figure import save_figure

        save_figure(page, path)
    else:
        raise UnknownName("file type", path.suffix or str(path), PICTURES)
    return path
