"""Execute the notebooks of examples/ and save their outputs: ``python -m docs.notebook``.

``lecture`` executes that one alone; ``lecture prose`` takes over its outputs where no code was changed.

A notebook keeps each result as a picture, which every viewer draws: GitHub, and Jupyter before a notebook is trusted,
leave out frames. The interactive pages of first_look.ipynb are stored for the site; script and style, the same on every
page, once. lecture.ipynb is made from the page docs/start/lecture.md, whose pictures are the outputs of its cells.
``--check`` fails where a cell was changed since. Tests execute first_look.ipynb on few inputs and compare the results;
the blocks of the page are run like those of other pages.
"""

from __future__ import annotations

import base64
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
LECTURE, PAGE = ROOT / "examples" / "lecture.ipynb", ROOT / "docs" / "start" / "lecture.md"
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
import matplotlib
from PIL import Image
from whyformer.results.result import Pictured
from whyformer.views.view import _Drawn

def picture(result):
    drawn, small = BytesIO(), BytesIO()
    result.plot().savefig(drawn, format="png", dpi=72)
    image = Image.open(drawn).convert("RGB")
    image.crop((0, 0, image.width, min(image.height, 2000))).quantize(128).save(small, "PNG", optimize=True)
    return small.getvalue()

matplotlib.rcParams["text.hinting"] = "none"  # rounded to pixels, letters are wider than the colours behind them
for kind in (Pictured, _Drawn):
    get_ipython().display_formatter.formatters["image/png"].for_type(kind, picture)
"""


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def executed(notebook: Any) -> Any:
    """The notebook with its outputs: pages, pictures and text."""
    import nbformat
    from nbclient import NotebookClient

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
    STORED.write_text(json.dumps(pages(notebook), ensure_ascii=False, indent=0) + "\n", encoding="utf-8")
    write(notebook, NOTEBOOK)


def write(notebook: Any, path: Path) -> None:
    """Write a notebook with pictures and text in place of pages."""
    import nbformat

    for number, cell in enumerate(cell for cell in notebook.cells if cell.cell_type == "code"):
        cell.execution_count = number + 1
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = number + 1
                output.data.pop("text/html", None)
    nbformat.write(notebook, path)


# The notebook that is made from a page.

BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.MULTILINE | re.DOTALL)
IMAGE = re.compile(r"^!\[.*?\]\(([^)]+)\)\n", re.MULTILINE)  # an alternative text may hold [CLS]
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")


def cells_of_page() -> list[dict[str, str]]:
    """Kind and text of the cells that a page becomes: prose, and code; printed text and pictures are outputs."""
    made, end = [], 0
    text = PAGE.read_text(encoding="utf-8")
    for match in [*BLOCK.finditer(text), None]:
        prose = IMAGE.sub("", text[end : match.start() if match else None])
        prose = re.sub(r"\n{3,}", "\n\n", LINK.sub(lambda link: f"]({moved(link[1])}", prose)).strip()
        if match and match[1] == "":
            prose += f"\n\n```\n{match[2]}```"
        made += [{"kind": "markdown", "text": prose}] if prose else []
        made += [{"kind": "code", "text": match[2].strip()}] if match and match[1] == "python" else []
        end = match.end() if match else end
    return made


def moved(link: str) -> str:
    """The address of a file, seen from the folder of the notebook."""
    target = (PAGE.parent / link).resolve()
    return target.name if target.parent == LECTURE.parent else f"../{target.relative_to(ROOT).as_posix()}"


def of_page() -> Any:
    """The notebook of a page, without outputs."""
    import nbformat

    notebook = nbformat.v4.new_notebook(metadata={"language_info": {"name": "python"}})
    kinds = {"markdown": nbformat.v4.new_markdown_cell, "code": nbformat.v4.new_code_cell}
    for number, cell in enumerate(cells_of_page()):
        notebook.cells.append(kinds[cell["kind"]](cell["text"], id=f"cell-{number}"))
    return notebook


def pictures_of(cells: list[Any]) -> dict[Path, bytes]:
    """Pictures of the page, in its order, with what the cells drew."""
    outputs = [output.get("data", {}) for cell in cells for output in cell.get("outputs", [])]
    drawn = [base64.b64decode("".join(data["image/png"])) for data in outputs if "image/png" in data]
    paths = [(PAGE.parent / link).resolve() for link in IMAGE.findall(PAGE.read_text(encoding="utf-8"))]
    return dict(zip(paths, drawn, strict=True))


def with_outputs_of(saved: Any, notebook: Any) -> Any:
    """The notebook with the outputs that are saved for the same code."""
    known = {cell.source: cell for cell in saved.cells if cell.cell_type == "code"}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = known[cell.source].outputs
    return notebook


def save_lecture(notebook: Any) -> None:
    write(notebook, LECTURE)
    for path, drawn in pictures_of(notebook.cells).items():
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(drawn)


def lecture_is_stale() -> bool:
    """Whether the page, its pictures or the notebook were changed without the others."""
    if not LECTURE.exists():
        return True
    read = json.loads(LECTURE.read_text(encoding="utf-8"))["cells"]
    if [{"kind": cell["cell_type"], "text": "".join(cell["source"])} for cell in read] != cells_of_page():
        return True
    return any(not path.exists() or path.read_bytes() != drawn for path, drawn in pictures_of(read).items())


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
    import nbformat

    if "--check" not in sys.argv:
        if "prose" in sys.argv:
            save_lecture(with_outputs_of(nbformat.read(LECTURE, as_version=4), of_page()))
        else:
            save_lecture(executed(of_page()))
        if "lecture" not in sys.argv[1:]:
            save(executed(nbformat.read(NOTEBOOK, as_version=4)))
        return 0
    stale = [NOTEBOOK.name] * is_stale() + [LECTURE.name] * lecture_is_stale()
    for name in stale:
        print(f"{name} does not hold the outputs of its cells. Run `python -m docs.notebook`.")
    return int(bool(stale))


if __name__ == "__main__":
    sys.exit(main())
