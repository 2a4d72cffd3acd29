"""Docstrings on the site: fenced code is code, drawn trees stay as drawn, and results list their fields.

Docstrings are written to be read in an editor or by ``help()``: plain sentences, ``names`` between double backticks.
Fields of a dataclass are told by the comment behind them, once, in the source.
"""

from __future__ import annotations

import dataclasses
import inspect
import io
import re
import textwrap
import tokenize
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sphinx.application import Sphinx

from docs import reference

LISTED = re.compile(r'<dl>\s*((?:<dd><em class="sig-param">.*?</dd>\s*)+)</dl>', re.DOTALL)
DRAWN = re.compile(r"^\s*[├└│]")


def fields_of(kind: type) -> list[tuple[str, str, str]]:
    """Name, annotation and comment of every public field that a dataclass declares itself."""
    try:
        source = textwrap.dedent(inspect.getsource(kind))
    except (OSError, TypeError):
        return []
    comments = {
        token.start[0]: token.string.lstrip("# ")
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT
    }
    lines = source.splitlines()
    declared = {f.name for f in dataclasses.fields(kind)} & set(vars(kind).get("__annotations__", {}))
    told = []
    for number, line in enumerate(lines, 1):
        match = re.match(r" {4}([a-z]\w*): (.+?)(?: = .*)?(?:  #.*)?$", line)
        if match and match.group(1) in declared:
            above = number - 1
            while lines[above - 1].lstrip().startswith("#"):
                above -= 1
            before = " ".join(comments[n] for n in range(above + 1, number))
            told.append((match.group(1), match.group(2), comments.get(number, before)))
            declared.discard(match.group(1))
    return told


def plain(text: str) -> str:
    """Sentences without marks that reStructuredText would read: stars of options, pipes, trailing underscores."""
    parts = re.split(r"(``.+?``)", text)
    return "".join(p if p.startswith("``") else re.sub(r"([*|`])|(?<=\w)(_)(?=\W|$)", r"\\\1\2", p) for p in parts)


def shaped(lines: list[str]) -> list[str]:
    made: list[str] = []
    fenced = tree = listed = False
    for line in lines:
        if line.strip().startswith("```"):
            fenced = not fenced
            language = line.strip().strip("`") or "text"
            made += ["", f".. code-block:: {language}", ""] if fenced else [""]
        elif fenced:
            made.append(f"    {line}")
        elif DRAWN.match(line):
            if not tree:
                first = made.pop() if made and made[-1].strip() else ""
                made += ["", ".. code-block:: text", "", f"    {first}"] if first else ["", ".. code-block:: text", ""]
            tree = True
            made.append(f"    {line}")
        elif line.startswith("  ") and not listed:  # set out in columns
            if not tree:
                made += ["", ".. code-block:: text", ""]
            tree = True
            made.append(f"    {line}")
        else:
            if tree:
                made.append("")
            tree = False
            listed = line.startswith(("- ", "* ")) or (listed and line.startswith("  "))
            made.append((line[:2] + plain(line[2:])) if listed else plain(line))
    return made


def listed_parameters(lines: list[str], names: Iterable[str]) -> list[str]:
    """Paragraphs that tell several parameters one after the other ("target: …. seed: …") as a list of them."""
    known = "|".join(sorted(map(re.escape, names), key=len, reverse=True))
    told = re.compile(rf"(?:^|(?<=[.;)] ))(?:``)?({known})(?:``)?: ") if known else None
    made: list[str] = []
    for paragraph in "\n".join(lines).split("\n\n"):
        flat = " ".join(paragraph.split())
        parts = (
            told.split(flat) if told and not re.search(r"^\s{2,}|^[-*] |```|[├└]", paragraph, re.MULTILINE) else [flat]
        )
        if len(parts) < 5:  # fewer than two of them
            made += [*paragraph.split("\n"), ""]
            continue
        made += [parts[0].strip(), ""] if parts[0].strip() else []
        made += [f"- ``{name}``: {words.strip()}" for name, words in zip(parts[1::2], parts[2::2], strict=True)] + [""]
    return made


def parameters_of(thing: Any) -> list[str]:
    try:
        return [name for name in inspect.signature(thing).parameters if name not in {"self", "cls"}]
    except (TypeError, ValueError):
        return []


def process(app: Sphinx, what: str, name: str, obj: Any, options: Any, lines: list[str]) -> None:
    if not any(line.lstrip().startswith((".. ", ":param", ":type")) for line in lines):
        names = parameters_of(obj) if what in {"function", "method", "class"} else []
        lines[:] = shaped(listed_parameters(lines, [*names, "options"]) if names else lines)
    if what == "class" and dataclasses.is_dataclass(obj) and (told := fields_of(obj)):
        lines += ["", ".. rubric:: Fields", ""]
        for field, annotation, comment in told:
            lines += [f"- ``{field}`` (``{annotation}``)" + (f": {plain(comment)}" if comment else "")]
        lines.append("")


def constructor(app: Sphinx, what: str, name: str, obj: Any, options: Any, signature: str, back: str) -> Any:
    """Results are made by verbs: what their constructor takes is the list of fields, not worth a second list."""
    if what == "class" and dataclasses.is_dataclass(obj):
        return "", back
    return None


def lines_of_parameters(app: Sphinx, page: str, template: str, context: dict[str, Any], tree: Any) -> None:
    """Parameters on lines of their own are no list of definitions, which screen readers would announce."""
    if "sig-param" in context.get("body", ""):
        context["body"] = LISTED.sub(
            lambda m: m[1].replace("<dd>", '<span class="sig-line">').replace("</dd>", "</span>"), context["body"]
        )


def without_old_names(app: Sphinx) -> None:
    """Pages that were generated for names that are gone would stand in no list."""
    names = set(reference.public_names())
    for page in (Path(app.srcdir) / "api" / "generated").glob("*.rst"):
        if page.stem not in names:
            page.unlink(missing_ok=True)


def setup(app: Sphinx) -> dict[str, Any]:
    app.connect("autodoc-process-docstring", process)
    app.connect("autodoc-process-signature", constructor)
    app.connect("html-page-context", lines_of_parameters)
    app.connect("builder-inited", without_old_names)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
