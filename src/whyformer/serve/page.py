"""The page that the browser opens: its markup, style and script. No other page is asked for anything."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from whyformer.views.html.live import drawing
from whyformer.views.html.style import STYLE

HERE = Path(__file__).parent


@cache
def index() -> str:
    """Empty but for words for those without scripts: everything is drawn by the script."""
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<title>whyformer</title>\n<link rel="icon" href="data:,">\n'
        '<link rel="stylesheet" href="/static/style.css">\n</head>\n<body class="wf-body">\n'
        '<div class="wf" id="serve"><noscript>This page is drawn by its script. Without one, ask over HTTP: '
        "POST /api/explain.</noscript></div>\n"
        '<script type="module" src="/static/serve.js"></script>\n</body>\n</html>\n'
    )


@cache
def script() -> str:
    """Made by frontend/build.py."""
    return drawing() + (HERE / "serve.js").read_text(encoding="utf-8")


@cache
def style() -> str:
    """That of saved pages, and what stands around results here."""
    return STYLE + (HERE / "serve.css").read_text(encoding="utf-8")
