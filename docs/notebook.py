"""Execute examples/first_look.ipynb and save its outputs: ``python -m docs.notebook``.

The notebook keeps each result as a picture, which every viewer draws: GitHub, and Jupyter before a notebook is trusted,
leave out frames. The interactive pages are stored for the site; script and style, the same on every page, once.
``--check`` fails where a cell was changed since. Tests execute the notebook on few inputs and compare the results.
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


# Registers a picture for results. Executed before the notebook, and not saved.
PICTURES = """
from io import BytesIO
from PIL import Image
from whyformer.results.result import Pictured
from whyformer.views.view import _Drawn

def picture(result):
    drawn, small = BytesIO(), BytesIO()
    result.plot().savefig(drawn, format="png", dpi=72)
    image = Image.open(drawn).convert("RGB")
    image.crop((0, 0, image.width, min(image.height, 2000))).quantize(128).save(small, "PNG", optimize=True)
    return small.getvalue()

for kind in (Pictured, _Drawn):
    get_ipython().display_formatter.formatters["image/png"].for_type(kind, picture)
"""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def executed() -> Any:
    """The notebook with its outputs: pages, pictures and text."""
    import nbformat
    from nbclient import NotebookClient

    notebook = nbformat.read(NOTEBOOK, as_version=4)
    metadata = dict(notebook.metadata)
    notebook.cells.insert(0, nbformat.v4.new_code_cell(PICTURES))
    NotebookClient(notebook, timeout=600, kernel_name="python3", record_timing=False).execute()
    del notebook.cells[0]
    notebook.metadata = metadata  # without the version of Python here
    return notebook


def pages(notebook: Any) -> dict[str, Any]:
    """What the site shows of an executed notebook."""
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


def save(notebook: Any) -> None:
    """Write the pages for the site, and the notebook with a picture in place of each page."""
    import nbformat

    STORED.write_text(json.dumps(pages(notebook), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    for number, cell in enumerate(cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.execution_count = number + 1
        for output in cell.outputs:
            output.execution_count = number + 1
            output.data.pop("text/html", None)
    nbformat.write(notebook, NOTEBOOK)


WORDS = re.compile(
    r'class="wf-token"[^>]* title="([^"]+)"|<p class="wf-answer[^>]*>(.*?)</p>|<th scope="row"[^>]*>(.*?)</th>'
)


def words(page: str) -> str:
    """Prediction, tokens or columns and their scores, as a page shows them without its script."""
    found = (next(filter(None, groups), "") for groups in WORDS.findall(page))
    return unescape(re.sub(r"<[^>]*>", " ", "\n".join(found)))


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
    """Whether cells were changed, or outputs left out, since the notebook was executed."""
    if not STORED.exists() or stored()["code"] != [digest(c["text"]) for c in cells() if c["kind"] == "code"]:
        return True
    read = json.loads(NOTEBOOK.read_text(encoding="utf-8"))["cells"]
    saved = {digest("".join(cell["source"])) for cell in read if cell.get("outputs")}
    return saved != set(stored()["shown"])


def main() -> int:
    if "--check" not in sys.argv:
        save(executed())
        return 0
    if is_stale():
        print(f"{NOTEBOOK.name} does not hold the outputs of its cells. Run `python -m docs.notebook`.")
    return int(is_stale())


if __name__ == "__main__":
    sys.exit(main())
