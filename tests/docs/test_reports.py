"""Pages that hold numbers: they are what their commands print, and what must hold by construction does."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import transformers
from PIL import Image, PngImagePlugin

import whyformer
import whyformer as wf
from bench import model_classes, model_kinds, tiny_models
from bench.measures.report import report as measures_report
from bench.stamp import LINE
from docs import build, method_pictures, notebook, start_pictures
from tests.models.kinds import KINDS
from whyformer.language.citations import LEAST_SHARE

ROOT = Path(__file__).parents[2]
GUIDE, REPORTS = ROOT / "docs" / "guide", ROOT / "docs" / "reports"


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_the_first_example_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"```python\n(.*?)```", text_of(ROOT / "README.md"), flags=re.DOTALL)
    assert found is not None
    *before, last = found.group(1).strip().splitlines()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("\n".join(before), names)
    assert (tmp_path / "why.html").is_file()
    call, said = last.split("  # ")
    promised = ast.literal_eval(said.replace(", …", ""))
    printed = eval(call, names)[: len(promised)]
    assert [(label, round(score, 3)) for label, score in printed] == promised


def test_every_metric_is_in_the_table() -> None:
    assert all(f"| {name} |" in text_of(ROOT / "docs" / "metrics.md") for name in wf.list_metrics())


def rows_of(text: str) -> list[str]:
    """Rows of the tables in a text, headings included."""
    return [line for line in text.splitlines() if line.startswith("|") and not line.startswith(("|---", "| ---"))]


ONCE = (
    "|images|",
    "|words|",
    "|task, tokens|",
    "|128 evaluations|",
    "|pair interactions|",
)  # tables of parts that were measured once


def test_public_measures() -> None:
    """The page shows a selection of the rows that the command prints."""
    rows = [json.loads(line) for line in text_of(REPORTS / "public_measures.jsonl").splitlines()]
    page, printed = text_of(REPORTS / "public_measures.md"), measures_report(rows)
    tables = [rows_of(part) for part in page.split("\n\n")]
    measured = [table for table in tables if table and not table[0].startswith(ONCE)]
    assert sum(map(len, measured)) > 18 and {row for table in measured for row in table} <= set(rows_of(printed))


def test_the_share_of_a_citation_is_that_of_its_report() -> None:
    fitted = re.search(r"The share fitted on either half of the cases is ([\d.]+);", text_of(REPORTS / "citations.md"))
    assert fitted is not None and float(fitted.group(1)) == LEAST_SHARE


# The guide to several streams


@pytest.mark.parametrize("kind", ["boxes", "detection", "sound"])
def test_the_script_that_makes_its_pictures_runs(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    import streams

    streams.main(tmp_path, [kind])
    assert (tmp_path / f"streams_{kind}.png").stat().st_size < 80_000
    del sys.modules["streams"]


# Kinds of models: a subset that runs in a few seconds; ``python -m bench.model_kinds`` compares all kinds.

# One of each: post- and pre-norm, causal, experts, windows, sinks, other layouts of heads, pictures, sound, video,
# tables, several streams, and kinds that have to be refused.
SUBSET = (
    "bert", "deberta_v2", "gpt2_cls", "gemma3", "qwen3_moe", "gpt_oss", "vit", "videomae", "wavlm", "looped_heads",
    "rtdl_ft_transformer", "lxmert", "t5", "mamba", "token_mixing", "longformer", "bert_tokens", "yolos", "patchtst",
    "timesformer", "vjepa2", "timesfm", "hunyuan_moe",
)  # fmt: skip
MEASURED = model_kinds.read()
LISTED = {row[0]: tuple(row) for row in MEASURED["kinds"]}


@pytest.mark.filterwarnings("ignore")  # of the models, not of ours
@pytest.mark.parametrize("name", SUBSET)
def test_value_and_scores_are_those_of_the_formula(name: str) -> None:
    assert model_kinds.row(KINDS[name]) == LISTED[name]


def test_the_page_lists_every_kind_that_works() -> None:
    rows = [LISTED[name] for name in KINDS]
    assert sum(set(row[3:]) == {"works"} for row in rows) >= 60
    assert not [row for row in rows if any("differs" in cell for cell in row)]
    page = text_of(ROOT / "docs" / "supported.md")
    words = set(re.findall(r"\w+", page))
    working = {row[0] for row in rows if all(cell.startswith("works") for cell in row[3:])}
    assert working <= words and "Not classified" not in page
    assert f"{len(working)} kinds work with all three methods" in page  # as many as its table lists


# Classes of transformers: one of each kind of input, of refusal and of task; the bench measures all of them.
CLASSES = (
    "BertForSequenceClassification", "BertModel", "MixtralForCausalLM", "ViTForImageClassification", "Dinov2Backbone",
    "VideoMAEForVideoClassification", "Wav2Vec2ForCTC", "PatchTSTForClassification", "MambaForCausalLM",
)  # fmt: skip


@pytest.mark.filterwarnings("ignore")  # of the models, not of ours
@pytest.mark.parametrize("name", CLASSES)
def test_a_class_of_transformers_does_what_its_row_says(name: str) -> None:
    listed = {row[0]: row for row in MEASURED["classes"]}
    assert model_classes.class_row(name) == listed[name]


def test_every_class_of_the_auto_mappings_has_a_row_and_none_fails() -> None:
    rows = {row[0]: row for row in MEASURED["classes"]}
    if MEASURED["transformers"] == transformers.__version__:
        assert set(rows) == set(tiny_models.listed_classes()), "run python -m bench.model_kinds --write NAME"
    verdicts = model_kinds.tally(list(rows.values()))
    assert not verdicts["fails"]
    every = len(rows) - verdicts["no attention"]
    assert verdicts["not built"] <= 0.13 * every and verdicts["works"] + verdicts["partly"] >= 0.5 * every
    assert all(cell.count(":") for row in rows.values() for cell in row[3:] if cell.startswith("refused"))


# Stored pictures and outputs that are missing, stale or too large are named; those in the repository are not.

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


def test_a_page_without_a_part_that_all_have_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    assert build.incomplete() == []
    monkeypatch.setattr(build, "PARTS", (*build.PARTS, "## Poem"))
    assert f"docs/methods/{NAME}.md has no part '## Poem'" in build.incomplete()


def test_start_pages_show_what_their_code_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    assert start_pictures.stale() == []
    monkeypatch.setattr(start_pictures, "digest", lambda blocks: "other")
    assert start_pictures.stale() == list(start_pictures.PAGES)


def test_outputs_of_the_notebook_belong_to_its_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    assert not notebook.is_stale()
    cells = notebook.cells()
    monkeypatch.setattr(notebook, "cells", lambda: [*cells, {"kind": "code", "text": "1 + 1"}])
    assert notebook.is_stale()


def test_the_notebook_of_the_lecture_is_its_page(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert not notebook.lecture_is_stale()
    cells = notebook.cells_of_page()
    assert [cell["kind"] for cell in cells].count("code") > 6 and "../docs/guide/attention.md" in cells[-1]["text"]
    links = re.findall(
        r"\]\((?!https?:)([^)#]+)", "".join(cell["text"] for cell in cells if cell["kind"] == "markdown")
    )
    assert links and all((notebook.LECTURE.parent / link).is_file() for link in links)
    changed = tmp_path / "lecture.md"
    changed.write_text(text_of(notebook.PAGE).replace("Pick two.", "Pick three."), encoding="utf-8")
    monkeypatch.setattr(notebook, "PAGE", changed)
    monkeypatch.setattr(notebook, "moved", lambda link: link)
    assert notebook.lecture_is_stale()


def test_what_pages_share_is_put_back() -> None:
    script = f'<script type="module">{"x" * notebook.LEAST}</script>'
    shared: dict[str, str] = {}
    lean = notebook.without_shared(f'<iframe srcdoc="&lt;p&gt;{script.replace(chr(34), "&quot;")}"></iframe>', shared)
    assert lean == "<p><!-- script -->" and shared == {"script": script}
    assert script.replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;") in notebook.frame(lean, shared, "x")


# Maps of the house: every room says what it holds, and what maps name is there.

SOURCE = Path(whyformer.__file__).parent
ROOMS = sorted(path.parent for path in SOURCE.rglob("__init__.py"))
MAPS = [ROOT / "docs" / "architecture.md", ROOT / "CONTRIBUTING.md", *sorted(SOURCE.rglob("README.md"))]
MAPPED = ["capture", "inputs", "engines/attention", "engines/gradient", "engines/perturbation", "views/terminal", "run"]


def said(room: Path) -> str:
    """What a room says of itself."""
    readme = room / "README.md"
    own = ast.get_docstring(ast.parse((room / "__init__.py").read_text(encoding="utf-8"))) or ""
    return f"{own}\n" + (readme.read_text(encoding="utf-8") if readme.is_file() else "")


@pytest.mark.parametrize("room", ROOMS, ids=lambda room: room.relative_to(SOURCE).as_posix())
def test_a_room_says_what_it_holds(room: Path) -> None:
    words = said(room)
    assert words.partition("\n")[0].endswith((".", "?")), words[:80]


@pytest.mark.parametrize("room", MAPPED)
def test_a_map_of_a_room_names_every_file(room: str) -> None:
    words = said(SOURCE / room)
    files = {path.name for path in (SOURCE / room).glob("*.py")} - {"__init__.py"}
    assert {name for name in files if not re.search(rf"\b{re.escape(name)}", words)} == set()


def test_the_guide_of_contributors_names_every_file_at_the_top_and_every_room() -> None:
    words = MAPS[1].read_text(encoding="utf-8")
    files = {path.name for path in SOURCE.glob("*.py")} - {"__init__.py", "__main__.py", "version.py"}
    rooms = {f"{path.name}/" for path in ROOMS if path.parent == SOURCE}
    assert {name for name in files | rooms if f"`{name}" not in words} == set()


@pytest.mark.parametrize("page", MAPS, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_files_that_are_named_are_there(page: Path) -> None:
    """A path from the package, the room or the root; in a paragraph or row, also from a room that it names."""
    here = [SOURCE, page.parent, ROOT]
    missing = []
    for part in page.read_text(encoding="utf-8").replace("|\n|", "|\n\n|").split("\n\n"):
        rooms = [SOURCE / name for name in re.findall(r"`([a-z_/]+)/`", part)]
        for name in re.findall(r"`([\w/]+\.py)`", part):
            if "x.py" not in name and not any((place / name).is_file() for place in [*here, *rooms, *beside(part)]):
                missing.append(name)
    assert missing == []


PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


PROGRAM = re.compile(r"(?<![\w/])(?:(?:bench|docs|training)\.|bench/)[a-z_][a-z0-9_]+")
NO_PROGRAMS = {"docs.rs", "docs.python", "docs.pytorch", "training.csv"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_programs_that_are_named_are_there_or_were_at_the_named_commit(page: Path) -> None:
    """The command of a study that was done once names the last commit that had its program."""
    shallow = git("rev-parse", "--is-shallow-repository") != "false"
    for part in re.split(r"\n\s*\n", text_of(page)):
        commits = re.findall(r"commit ([0-9a-f]{8})\b", part)
        for name in set(PROGRAM.findall(part)) - NO_PROGRAMS:
            path = re.split(r"[./]", name)
            here = ROOT.joinpath(*path)
            if here.is_dir() or here.with_suffix(".py").is_file():
                continue
            assert commits, f"{name} is not there: name the commit that had it last"
            ways = ["/".join(path), f"{'/'.join(path)}.py"]
            assert shallow or any(git("cat-file", "-t", f"{c}:{way}") for c in commits for way in ways), name


@pytest.mark.parametrize("page", sorted({*REPORTS.glob("*.md")} - {REPORTS / "index.md"}), ids=lambda page: page.stem)
def test_a_report_ends_with_date_commit_machine_and_command(page: Path) -> None:
    """As bench.stamp writes it; the program is in the tree, or in that of a commit that the page names."""
    assert LINE.match(text_of(page).splitlines()[-1])


def git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def beside(part: str) -> list[Path]:
    """Rooms of files that a paragraph names by their paths: what stands beside them is named without."""
    return [SOURCE / path.rpartition("/")[0] for path in re.findall(r"`([a-z_/]+/[a-z_]+\.py)`", part)]
