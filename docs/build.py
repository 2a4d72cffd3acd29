"""Make the generated parts of the docs from the code: ``python -m docs.build`` writes them, ``--check`` fails if stale.

Generated: the head of every page in docs/methods, docs/methods/README.md (the table of methods), docs/supported.md
(models, from docs/reports/model_kinds.json and the tests' own cases), docs/schemas (saved results), docs/api and the
metrics table in docs/metrics.md. The README is also the page of the package index, so its links are whole
addresses; they are followed in this folder.
"""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import whyformer as wf
from docs import reference
from docs.schema import result_schema
from whyformer.registry import Method
from whyformer.results.result import FORMAT

ROOT = Path(__file__).parent.parent
HOME = (  # addresses of this folder
    "https://github.com/whyformer/whyformer/blob/main/",
    "https://raw.githubusercontent.com/whyformer/whyformer/main/",
)
START, END = "<!-- generated from the registry: make docs -->", "<!-- end of the generated part -->"


IMAGES_ONLY = ("grad_cam", "vit_cx")  # do not accept text
PARTS = ("## Example", "## Formula", "## Misleads when")  # headings that every page of a method needs


def linked(paper: str) -> str:
    return re.sub(r"arXiv:([0-9.]+[0-9])", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)


def head(entry: Method) -> str:
    """Return the generated part of a method's page: what it computes, a picture, and its facts."""
    options = ", ".join(f"`{name}={default!r}`" for name, default in entry.defaults.items()) or "none"
    facts = {
        "Cost per input": entry.cost_text,
        "Scores": ", ".join(_scores(entry)),
        "Options": options,
        "Reference": linked(entry.paper),
    }
    listed = "\n".join(f"- **{title}**: {fact}" for title, fact in facts.items())
    return f"# {entry.name}\n\n{entry.idea}\n\n{picture(entry)}\n\n{listed}\n"


def _scores(entry: Method) -> tuple[str, str]:
    return (
        "signed" if entry.signed else "unsigned",
        "class-specific" if entry.class_specific else "same for every class",
    )


def picture(entry: Method) -> str:
    """The method on the shipped models: one sentence and one drawing, the same for all (docs/method_pictures.py)."""
    legend = (
        "Blue supports the class, orange opposes it; grey: special tokens" if entry.signed else "Grey: special tokens"
    )
    if entry.name in IMAGES_ONLY:
        legend = "Darker is more important"
    return f"![Scores](../images/methods/{entry.name}.png)\n\n*{legend}.*"


def gallery() -> str:
    """All pictures, one below the other: the same sentence, the same drawing."""
    lines = [
        "## Gallery",
        "",
        "All methods on the same sentence and image. To compare them: [trust](../guide/trust.md).",
    ]
    for name in wf.list_methods():
        lines += ["", f"[{name}]({name}.md)", "", f"![{name}](../images/methods/{name}.png)"]
    return "\n".join(lines)


GROUPS = {  # by what a method uses
    "black box": "Any model: only inputs and outputs",
    "gradient": "Differentiable models: gradients",
    "attention": "Transformers: attention",
}


def table(group: str) -> str:
    lines = ["| method | score of a feature | cost per input |", "|---|---|---|"]
    for entry in wf.list_methods().values():
        if entry.specificity == group:
            lines.append(f"| [{entry.name}]({entry.name}.md) | {entry.meaning} | {entry.cost_text} |")
    return "\n".join(lines)


WHICH = (
    "A method assigns a score to every feature of an input: token, patch or column.\n"
    "To choose one, see [which method](../guide/which_method.md)."
)
WHOLE = """`explain_global` averages any method over the rows of a table or the texts of a corpus. Other functions:

- any model: `feature_permutation`
- gradients: `tcav`, `activation_maximization`
- attention: `head_importance`, `heads.roles`, `heads.layer_profile`, `heads.pruning_curve`, `heads.circuits`"""


def methods_page() -> str:
    tables = "\n\n".join(f"## {title}\n\n{table(group)}" for group, title in GROUPS.items())
    signed = ", ".join(entry.name for entry in wf.list_methods().values() if entry.signed)
    constant = ", ".join(entry.name for entry in wf.list_methods().values() if not entry.class_specific)
    scores = f"- Signed scores: {signed}.\n- Scores that are the same for every class: {constant}."
    return f"# Methods\n\n{WHICH}\n\n{scores}\n\n{tables}\n\n## The whole model\n\n{WHOLE}\n\n{gallery()}"


def metrics_table() -> str:
    lines = ["| metric | kind (↑ higher, ↓ lower is better) | definition | cost per input |", "|---|---|---|---|"]
    for entry in sorted(wf.list_metrics().values(), key=lambda m: (m.kind, m.name)):
        kind = f"{entry.kind} {'↑' if entry.higher_is_better else '↓'}"
        lines.append(f"| {entry.name} | {kind} | {entry.idea} {short_reference(entry.paper)} | {entry.cost_text} |")
    return "\n".join(lines)


def short_reference(paper: str) -> str:
    """Authors and year as a link, without the venue: ``whyformer metrics NAME`` prints the whole reference."""
    paper = re.sub(r"(\w+), [^;]*? & \w+ (?=\d{4})", r"\1 et al. ", paper)
    names = r"([A-Z][\w-]*(?: et al\.| & \w+)? \d{4})"
    return re.sub(names + r"(?: \([^)]*\))?, arXiv:([0-9.]+[0-9])", r"[\1](https://arxiv.org/abs/\2)", paper)


REASONS = (  # in errors -> on the page
    ("no attention was captured", "The model has no softmax attention over positions"),
    ("changed gradient rules need", "Some attention is sparse or sampled, and its maps are incomplete"),
    ("exchange information outside", "Positions also exchange information outside attention"),
    ("could not be matched with the value", "Some attention is sparse or sampled, and its maps are incomplete"),
    ("one part of the input at a time", "Attention runs over parts of the input in turn (frames, variables, windows)"),
    ("inside windows", "Attention runs over parts of the input in turn (frames, variables, windows)"),
    ("has the same input as the one before", "Two attentions are subtracted or run side by side"),
    ("axes besides query and key", "Attention maps have further axes (streams of predictions, groups of tokens)"),
    ("several streams of tokens, and scores", "Relevance would be divided among several streams (LRP)"),
    ("several streams of tokens", "Layers have different numbers of tokens"),
    ("positions, but the streams", "Layers have different numbers of tokens"),
    ("positions of the", "Layers have different numbers of tokens"),
    ("without their attention being seen", "Heads are mixed after the softmax"),
    ("modules of the same kind was not captured", "Heads are mixed after the softmax"),
    ("decoder is fed the source", "The decoder reads the source too, so one stream cannot be masked alone"),
    ("positions of its own making", "Positions do not correspond to parts of the input"),
    ("cannot be matched with the input", "Positions do not correspond to parts of the input"),
    ("reorders the input", "Positions do not correspond to parts of the input"),
    ("no grid of pieces", "Image tokens do not form a grid"),
    ("that are no patches", "Image tokens do not form a grid"),
    ("not a grid of patches", "Image tokens do not form a grid"),
    ("_features also takes", "The vision encoder takes further arguments"),
    ("with features of it masked", "The model does not run with placeholders of sound or images masked"),
    ("entrance to the first block", "The vectors that enter the first block are not one tensor"),
    ("vectors that enter the first block", "The vectors that enter the first block are not one tensor"),
    ("word embedding of this model", "The vectors that enter the first block are not one tensor"),
    ("returns logits of shape", "The output is not one row of classes per input"),
    ("start and an end logit", "The output is not one row of classes per input"),
    ("another length for each input", "The output is not one row of classes per input"),
    ("numbers per box", "The output is not one row of classes per input"),
    ("without a tensor of logits", "The model has no classification head"),
    ("has no head", "The model has no classification head"),
    (".generate raised", "The decoder needs inputs that generate() does not make"),
    ("pixel_values has shape", "Patches of all images are packed into one tensor, without a text"),
    ("disagree about the batch size", "Patches of all images are packed into one tensor, without a text"),
    ("gradients off", "Part of the model is not differentiable"),
    ("anything differentiable", "Part of the model is not differentiable"),
    ("backward pass that the model brings", "Part of the model is not differentiable"),
    ("not the slope of the score", "Part of the model is not differentiable"),
    ("NaN or infinity", "The random weights give NaN"),
    ("output is random", "The random weights give NaN"),
    ("influences the logits", "The attention does not reach the explained output"),
    ("reaches the model's output", "The attention does not reach the explained output"),
    ("not reach the model's output", "The attention does not reach the explained output"),
    ("attention layers, the last of them", "The attention does not reach the explained output"),
    ("changes the score, but", "The attention does not reach the explained output"),
    ("which is padding here", "The model reads its answer at padding"),
)
MARKS = {"works, not compared": "‡", "works, value": "†"}
SUPPORTED = """# Supported models

whyformer captures attention inside an unmodified PyTorch model, so most transformers work. To check yours:

```bash
whyformer capture --model NAME
```

This lists the captured attention layers and audits whether they are complete.

## Which models are tested?

{count} kinds, each a tiny, randomly initialised model with two inputs of different length in one batch, explained by
three methods: generic_attention (attention), input_x_gradient (gradient) and occlusion (black box). `python -m
bench.model_kinds --write` compares the explained value with a plain forward pass (to 1e-5) and the scores with
formulas written without whyformer (to 1e-4). {all_three} kinds work with all three methods ({works} of them
with nothing left out of the comparison); {some} more work with at least one. [All results](reports/model_kinds.json).

| input | kinds that work with all three methods |
|---|---|
{tested}

- † The value was compared, the scores were not.
- ‡ Not compared: the explained number is not a row of the output but a detection, a pair of inputs, a generated token,
  or a position of a text.

## Which classes of transformers work?

Every class of the auto-mappings of transformers {version} that has attention, {classes} of them, was built tiny with
random weights (`python -m bench.model_kinds --write`, [all rows](reports/model_kinds.json)). To test a class that is
not listed yet, pass its name: `python -m bench.model_kinds NAME`.

| result | classes | share |
|---|---|---|
{verdicts}

{shares}

| column | works | refused |
|---|---|---|
{columns}

- *captured*: attention maps equal those of the class's own eager attention to 1e-5 ({compared} classes report them).
- *attn_lrp*: {conserved} classes conserve relevance (without biases and with attention held constant, scores sum to the
  logit within 0.1 %); {unruled} warn of functions without a rule.
- *batch*: scores of a batch equal those of each input alone.
- Where the error gives a wrapper, `One(model)`, it was used ({wrapped} classes).

| task | classes | all methods | some methods | refused | not built |
|---|---|---|---|---|---|
{tasks}

## What is not supported?

These methods raise an error that gives the reason; the other methods work on the same model.

| reason for a refusal | classes | for example |
|---|---|---|
{reasons}

| not built | classes | for example |
|---|---|---|
{unbuilt}

## Which attention implementations are tested?

Captured attention equals the model's own eager attention to 1e-5, its gradients are correct, and outputs stay
bit-identical (`tests/test_families.py`, `tests/study/test_streams.py`, `tests/inputs/test_stream_families.py`).

| implementation | kinds |
|---|---|
{implementations}

For {others} more families, attention_rollout and generic_attention equal results computed by hand from the model's
own eager attention.
"""


def supported() -> str:
    from tests.models import CASES, UNUSUAL
    from tests.models.others import OTHERS

    measured = json.loads((ROOT / "docs" / "reports" / "model_kinds.json").read_text(encoding="utf-8"))
    rows = measured["kinds"]
    works = sum(set(cells) == {"works"} for *_, cells in map(_cells, rows))
    some = sum(any(c.startswith("works") for c in cells) for *_, cells in map(_cells, rows))
    tested: dict[str, list[str]] = {}
    for name, group, cells in map(_cells, rows):
        if all(cell.startswith("works") for cell in cells):
            mark = next((mark for cell, mark in MARKS.items() if cell in cells), "")
            tested.setdefault(group.replace("home-made", "custom"), []).append(name + mark)
    implementations = Counter(
        ", ".join(i or "the model's own" for i in case.implementations) for case in (CASES | UNUSUAL).values()
    )
    return SUPPORTED.format(
        count=len(rows),
        all_three=(all_three := sum(map(len, tested.values()))),
        works=works,
        some=some - all_three,
        tested=_rows([group, ", ".join(names)] for group, names in tested.items()),
        implementations=_rows([key, str(count)] for key, count in implementations.items()),
        others=len(OTHERS),
        version=measured["transformers"],
        **_classes(measured["classes"]),
    )


VERDICTS = {
    "works": "all three methods work", "partly": "some methods work, the others are refused with a reason",
    "refused": "refused with a reason", "fails": "fail", "not built": "not built at a small size",
}  # fmt: skip
UNBUILT = (
    ("does not export", "Named in the auto-mappings, but not exported by transformers"),
    ("library", "Needs a library that is not installed (timm, natten, detectron2)"),
    ("no inputs for", "Takes inputs that are not text, images, sound, video or series"),
    ("missing", "Takes inputs that are not text, images, sound, video or series"),
    ("forward(", "The tiny configuration does not fit the tiny inputs"),
    ("longer than", "Too large or too slow at the smallest size"),
    ("million parameters", "Too large or too slow at the smallest size"),
    ("", "The configuration cannot be made small by its names"),
)


def _classes(rows: Sequence[Sequence[str]]) -> dict[str, Any]:
    """What the page says of every class of transformers."""
    from bench.model_classes import COLUMNS, verdict

    every = [row for row in rows if verdict(row) != "no attention"]
    built = [row for row in every if verdict(row) != "not built"]
    counts = Counter(verdict(row) for row in every)
    cells = {column: [row[4 + i] for row in built] for i, column in enumerate(COLUMNS)}
    tasks: dict[str, Counter[str]] = {}
    for row in every:
        tasks.setdefault(row[1], Counter())[verdict(row)] += 1
    reasons: dict[str, dict[str, None]] = {}
    for row in built:
        for cell in row[5:8]:
            if cell.startswith("refused"):
                reasons.setdefault(_reason(cell), {})[row[0]] = None
    unbuilt: dict[str, list[str]] = {}
    for row in every:
        if verdict(row) == "not built":
            unbuilt.setdefault(next(words for part, words in UNBUILT if part in row[3]), []).append(row[0])
    good, done = counts["works"] + counts["partly"], len(built)
    return {
        "classes": len(every),
        "verdicts": _rows([words, str(counts[v]), f"{counts[v] / len(every):.1%}"] for v, words in VERDICTS.items()),
        "shares": (
            f"Of the {done} classes that were built, {good / done:.1%} work, {counts['refused'] / done:.1%} are "
            f"refused with a reason, {counts['fails'] / done:.1%} fail."
        ),
        "columns": _rows(
            [name, str(sum(c.startswith("works") for c in column)), str(sum(c.startswith("refused") for c in column))]
            for name, column in cells.items()
        ),
        "compared": cells["captured"].count("works"),
        "conserved": cells["attn_lrp"].count("works, conserved"),
        "unruled": sum("no rule for" in cell for cell in cells["attn_lrp"]),
        "wrapped": sum(row[3] == "One(model)" for row in built),
        "tasks": _rows(
            [task, str(sum(each.values())), *(str(each[v]) for v in ("works", "partly", "refused", "not built"))]
            for task, each in _largest(tasks)
        ),
        "reasons": _listed(reasons),
        "unbuilt": _listed(unbuilt),
    }


def _largest(tasks: Mapping[str, Counter[str]], least: int = 12) -> list[tuple[str, Counter[str]]]:
    """Tasks of many classes, and the sum of the others."""
    large = {task: each for task, each in tasks.items() if sum(each.values()) >= least}
    small = [each for task, each in tasks.items() if task not in large]
    ordered = sorted(large.items(), key=lambda item: -sum(item[1].values()))
    return [*ordered, (f"{len(small)} other tasks", sum(small, Counter()))]


def _listed(names: Mapping[str, Iterable[str]], least: int = 5) -> str:
    """One row per reason, the most frequent first, with one of the classes; rare ones as one row."""
    ordered = sorted(((words, list(which)) for words, which in names.items()), key=lambda item: -len(item[1]))
    rare = [which for _, which in ordered if len(which) < least]
    rows = [[words, str(len(which)), which[0]] for words, which in ordered if len(which) >= least]
    rows += [["Other reasons", str(sum(map(len, rare))), rare[0][0]]] if rare else []
    return _rows(rows)


def _cells(row: list[str]) -> tuple[str, str, list[str]]:
    return row[0], row[1], row[3:]


def _reason(cell: str) -> str:
    return next((words for part, words in REASONS if part in cell), f"Not classified: {cell}")


def _rows(rows: Iterable[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(cells)} |" for cells in rows)


def with_part(text: str, part: str) -> str:
    block = f"{START}\n{part.rstrip()}\n{END}"
    if START in text:
        return re.sub(re.escape(START) + ".*?" + re.escape(END), lambda _: block, text, flags=re.DOTALL)
    return f"{block}\n\n{text.lstrip()}"


def pages() -> dict[Path, str]:
    """Every generated file with the text it should have."""
    made: dict[Path, str] = {}
    for name, entry in wf.list_methods().items():
        path = ROOT / "docs" / "methods" / f"{name}.md"
        made[path] = with_part(path.read_text(encoding="utf-8") if path.exists() else "", head(entry))
    made[ROOT / "docs" / "methods" / "README.md"] = with_part("", methods_page()) + "\n"
    made[ROOT / "docs" / "supported.md"] = supported()
    schema = ROOT / "docs" / "schemas" / f"results-{FORMAT}.json"
    made[schema] = json.dumps(result_schema(), indent=1, ensure_ascii=False) + "\n"
    made |= {ROOT / "docs" / "api" / name: text for name, text in reference.pages().items()}
    metrics = ROOT / "docs" / "metrics.md"
    made[metrics] = with_part(metrics.read_text(encoding="utf-8"), metrics_table())
    return made


def left_over(made: dict[Path, str]) -> list[Path]:
    """Pages of the reference that no group of names has any more."""
    return [path for path in sorted((ROOT / "docs" / "api").glob("*.md")) if path not in made]


def broken_links() -> list[str]:
    found = []
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]:
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8")):
            home = next((ROOT / target.removeprefix(start) for start in HOME if target.startswith(start)), None)
            if home is None and "://" in target:
                continue
            if not (home or page.parent / target).exists():
                found.append(f"{page.relative_to(ROOT)}: {target}")
    return found


def incomplete() -> list[str]:
    """Pages of methods without a part that every one has, and public names without a word."""
    missing = []
    for name in wf.list_methods():
        path = ROOT / "docs" / "methods" / f"{name}.md"
        text = path.read_text(encoding="utf-8") if path.exists() else ""
        missing += [f"docs/methods/{name}.md has no part {part!r}" for part in PARTS if f"\n{part}" not in text]
    return missing + [f"{name} has no docstring" for name in reference.undocumented()]


def main() -> int:
    made = pages()
    if "--check" not in sys.argv:
        for path, text in made.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
        for path in left_over(made):
            path.unlink()
        return 0
    stale = [
        str(path.relative_to(ROOT))
        for path, text in made.items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ] + [str(path.relative_to(ROOT)) for path in left_over(made)]
    if stale:
        print(f"stale: {', '.join(stale)}. Run `make docs`.")
    broken = broken_links()
    for link in broken:
        print(f"broken link in {link}")
    missing = incomplete()
    for words in missing:
        print(words)
    return 1 if stale or broken or missing else 0


if __name__ == "__main__":
    sys.exit(main())
