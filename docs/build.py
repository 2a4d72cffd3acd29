"""Make the generated parts of the docs from the code: ``python -m docs.build`` writes them, ``--check`` fails if stale.

Generated: the head of every page in docs/methods, docs/methods/README.md (the table of methods), docs/supported.md (the
table of model families, from the tests' own cases), docs/schemas (saved results) and the metrics table in
docs/guide/trust.md. The README is also the
page of the package index, so its links are whole addresses; they are followed in this folder.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

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


PICTURES_ONLY = ("grad_cam", "vit_cx")  # take no text
PARTS = ("## Idea", "## Formula", "## When it misleads", "## Example")  # every page of a method has them


def yes(value: bool) -> str:
    return "yes" if value else "no"


def linked(paper: str) -> str:
    return re.sub(r"arXiv:([0-9.]+[0-9])", r"[arXiv:\1](https://arxiv.org/abs/\1)", paper)


def head(entry: Method) -> str:
    options = ", ".join(f"`{name}={default!r}`" for name, default in entry.defaults.items()) or "none"
    rows = [
        ("paper", linked(entry.paper)),
        ("cost per input", entry.cost_text),
        ("looks at", entry.specificity),
        ("needs", ", ".join(sorted(entry.needs)).replace("_", " ") or "nothing of the model"),
        ("signed", yes(entry.signed)),
        ("depends on the class", yes(entry.class_specific)),
        ("options", options),
    ]
    first, *others = (f"| {a} | {b} |" for a, b in rows)
    table = "\n".join([first, "|---|---|", *others])
    return f"# {entry.name}\n\n{entry.idea}\n\n{picture(entry)}\n\n{table}\n"


def picture(entry: Method) -> str:
    """The method on the shipped models: one sentence and one drawing, the same for all (docs/method_pictures.py)."""
    bars = "blue speaks for the answer, orange against it" if entry.signed else "the higher a bar, the more it counts"
    shown = f"A bar for each word ({bars}; grey: the model's own marks), a colour for each patch"
    if entry.name in PICTURES_ONLY:
        shown = "A colour for each patch: the darker, the more it counts"
    return (
        f"![{entry.name} on a sentence and a drawing](../images/methods/{entry.name}.png)\n\n"
        f"*{entry.name} on models that are shipped. {shown}. The same inputs for every method: "
        "[all of them](README.md#gallery).*"
    )


def gallery() -> str:
    """All pictures, one below the other: the same sentence, the same drawing."""
    why = "They disagree: that is the point of [measuring](../guide/trust.md)."
    lines = ["## Gallery", "", f"The same sentence and the same drawing, by every method. {why}", ""]
    for name in wf.list_methods():
        lines += [f"**[{name}]({name}.md)**", "", f"![{name}](../images/methods/{name}.png)", ""]
    return "\n".join(lines)


def table() -> str:
    lines = ["| method | looks at | signed | class-specific | cost per input | paper |", "|---|---|---|---|---|---|"]
    for entry in wf.list_methods().values():
        lines.append(
            f"| [{entry.name}](docs/methods/{entry.name}.md) | {entry.specificity} | {yes(entry.signed)} | "
            f"{yes(entry.class_specific)} | {entry.cost_text} | {linked(entry.paper)} |"
        )
    return "\n".join(lines)


VERBS = {  # what speaks of the whole model, by what it looks at
    "black box": ("feature_permutation",),
    "gradient": ("tcav", "activation_maximization"),
    "attention": ("head_importance", "heads.roles", "heads.layer_profile", "heads.pruning_curve", "heads.circuits"),
}


WHICH = (
    "Which one to use: [which method for me](../guide/which_method.md). What they have in common: each gives every\n"
    "part of an input (word, patch, column) a score. They differ in what they look at."
)


def grid() -> str:
    """The lecture's grid: what a method looks at, against what it speaks of."""
    lines = [
        "| looks at | one prediction | the whole model |",
        "|---|---|---|",
    ]
    names = {"black box": "any model: inputs and outputs alone", "gradient": "any network: its gradients"}
    for kind in ("black box", "gradient", "attention"):
        local = ", ".join(f"[{m.name}]({m.name}.md)" for m in wf.list_methods().values() if m.specificity == kind)
        verbs = ", ".join(f"`{verb}`" for verb in VERBS[kind])
        lines.append(f"| {names.get(kind, 'transformers: their attention')} | {local} | {verbs} |")
    return (
        "\n".join(lines)
        + "\n\n`explain_global` averages any of them over the rows of a table or the words of a corpus."
    )


def metrics_table() -> str:
    lines = ["| metric | kind | good | asks | cost per input | paper |", "|---|---|---|---|---|---|"]
    for entry in sorted(wf.list_metrics().values(), key=lambda m: (m.kind, m.name)):
        good = "high" if entry.higher_is_better else "low"
        lines.append(f"| {entry.name} | {entry.kind} | {good} | {entry.idea} | {entry.cost_text} | {entry.paper} |")
    return "\n".join(lines)


def supported() -> str:
    from tests.models import CASES, UNUSUAL
    from tests.models.others import OTHERS, REFUSED

    lines = [
        "# Supported models",
        "",
        "Every row is a case of one parametrised test (`tests/test_families.py`): number of attention calls, equality",
        "with the model's own eager attention to 1e-5, gradients, and an output that observing leaves bit-identical.",
        "Other models are usually fine too: `whyformer capture --model …` shows what is seen, and what leaks.",
        "What three methods give on every kind, against formulas written without whyformer: [kinds](kinds.md).",
        "",
        "| family | attention implementations tested | attention calls in the test model | units |",
        "|---|---|---|---|",
    ]
    for name, case in CASES.items():
        implementations = ", ".join(i or "its own" for i in case.implementations)
        lines.append(f"| {name} | {implementations} | {case.sites} | {case.units} |")
    lines += [
        "",
        "Models whose inputs or outputs are not one row per input have tests of their own",
        "(`tests/study/test_streams.py`, `tests/inputs/test_stream_families.py`):",
        "",
        "| family | attention implementations tested | units |",
        "|---|---|---|",
    ]
    for name, case in UNUSUAL.items():
        lines.append(f"| {name} | {', '.join(i or 'its own' for i in case.implementations)} | {case.units} |")
    lines += [
        "",
        "Of these, scores by attention_rollout and generic_attention equal those made by hand from the model's own",
        "eager attention (`tests/test_families.py`): " + ", ".join(OTHERS) + ".",
        "",
        "Attention methods refuse, and say why, where attention is no map over the units or not all there is. Tested:",
        ", ".join(REFUSED) + ". Use a gradient or perturbation method there.",
    ]
    return "\n".join(lines) + "\n"


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
    listing = table().replace("docs/methods/", "")
    made[ROOT / "docs" / "methods" / "README.md"] = (
        with_part("", f"# Methods\n\n{WHICH}\n\n{grid()}\n\n{listing}\n\n{gallery()}") + "\n"
    )
    made[ROOT / "docs" / "supported.md"] = supported()
    schema = ROOT / "docs" / "schemas" / f"results-{FORMAT}.json"
    made[schema] = json.dumps(result_schema(), indent=1, ensure_ascii=False) + "\n"
    made |= {ROOT / "docs" / "api" / name: text for name, text in reference.pages().items()}
    trust = ROOT / "docs" / "guide" / "trust.md"
    made[trust] = with_part(trust.read_text(encoding="utf-8"), metrics_table())
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
