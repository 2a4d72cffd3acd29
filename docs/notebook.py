"""What the cells of examples/first_look.ipynb show, stored for the site: ``python -m docs.notebook`` executes it.

The notebook itself is kept without outputs. ``--check`` fails where a cell has been changed since; tests execute all
of them on few inputs. Script and style, the same on every page, are stored once.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from html import escape, unescape
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
NOTEBOOK = ROOT / "examples" / "first_look.ipynb"
STORED = ROOT / "docs" / "images" / "first_look.json"
SHARED = {
    "script": re.compile(r'<script type="module">.*?</script>', re.DOTALL),
    "style": re.compile(r"<style>.*?</style>", re.DOTALL),
}
LEAST = 5_000  # characters of what is worth sharing


def cells() -> list[dict[str, str]]:
    """Kind and text of every cell."""
    read = json.loads(NOTEBOOK.read_text(encoding="utf-8"))
    return [{"kind": cell["cell_type"], "text": "".join(cell["source"])} for cell in read["cells"]]


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def executed() -> dict[str, Any]:
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    NotebookClient(notebook, timeout=600, kernel_name="python3").execute()
    shared: dict[str, str] = {}
    shown: dict[str, Any] = {}
    for cell in notebook.cells:
        for output in cell.get("outputs", []):
            data = output.data
            if "text/html" in data:
                shown[digest(cell.source)] = {"page": without_shared(data["text/html"], shared)}
            elif "image/png" in data:
                shown[digest(cell.source)] = {"picture": data["image/png"].replace("\n", "")}
    code = [digest(cell["text"]) for cell in cells() if cell["kind"] == "code"]
    return {"code": code, "shared": shared, "shown": shown}


def without_shared(frame: str, shared: dict[str, str]) -> str:
    """The page in a frame, its long script and style taken out."""
    page = unescape(frame.partition('srcdoc="')[2].rpartition('"')[0])
    for name, pattern in SHARED.items():
        for part in pattern.findall(page):
            if len(part) > LEAST and shared.setdefault(name, part) == part:
                page = page.replace(part, f"<!-- {name} -->")
    return page


def frame(page: str, shared: dict[str, str], title: str) -> str:
    for name, part in shared.items():
        page = page.replace(f"<!-- {name} -->", part)
    return f'<iframe class="wf-frame-host" title="{escape(title)}" srcdoc="{escape(page)}"></iframe>'


def stored() -> dict[str, Any]:
    return dict(json.loads(STORED.read_text(encoding="utf-8")))


def is_stale() -> bool:
    return not STORED.exists() or stored()["code"] != [digest(c["text"]) for c in cells() if c["kind"] == "code"]


def main() -> int:
    if "--check" not in sys.argv:
        STORED.write_text(json.dumps(executed(), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
        return 0
    if is_stale():
        print(f"{STORED.name} is not of the cells of {NOTEBOOK.name}. Run `python -m docs.notebook`.")
    return int(is_stale())


if __name__ == "__main__":
    sys.exit(main())
