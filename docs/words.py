"""Count the words of the documentation and list wording to avoid: ``python -m docs.words``.

Exits with 1 if there are more words than allowed, or if text that users read has wording of ``AVOIDED``. Words are
counted as ``wc -w`` counts them: tables and code included. Code is not searched for wording.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
MOST, README_MOST = 50_000, 900  # words: of the README and the docs together, and of the README
SECTIONS = {"start": "start", "guide": "guide", "methods": "methods", "api": "reference"}
SECTIONS |= {"coming_from": "coming_from", "reports": "reports"}  # folders of docs; pages outside them: "other"
ON_SCREENS = ("cli", "views", "serve", "proxy", "reports", "checks", "evaluate", "results", "methods", "errors.py")

AVOIDED = {  # wording (a pattern, whatever its case) → what to write
    r"\bdoubt(s|ed|ful)?\b": "warning, limitation",
    r"\b(tell|tells|told|telling)\b[^.:;|]{0,30}\bapart\b": "distinguish; tied; listed separately",
    r"\bwhat (stands?|stood) for\b|\bstands? for (an? |the )?absent\b|\bstand-ins?\b": "the baseline",
    r"\b(is|are|was|were) (not )?offered\b|\b(take|takes|took) part\b": "is supported, is included",
    r"\babsent (parts?|values?|features?|tokens?|words?|patch(es)?|columns?)\b": "masked features",
    r"\b(is|are|was|were) (all )?absent\b": "is masked",
    r"\b(has|have) no bar\b|\blisted besides\b": "hidden, listed separately",
    r"\b(the|its|this|their) judges?\b": "the evaluation",
    r"\b95 ?% limits\b|\bconfidence limits\b|\blimits (exclude|include|on both sides)\b": "95 % confidence interval",
    r"\bplayers?\b|\bwhat parts do\b|\b(strongest|highest|absent|masked) parts?\b": "features; tokens, …",
    r"\bmissing from the sum\b": "completeness error",
    r"\bread from (the )?(first|last) position\b": "output position",
    r"\b(two|both|all|other|these|several) measures\b|\bown measure\b|\bby the measure\b": "metrics",
    r"\bbelieve none\b|\bwhat to believe\b|\b(map|one|method) to believe\b": "inconclusive; choose; trust",
    r"\b(would|does|do|may) (not )?mind\b|\bminds\b|\bunheard\b|\b(has|have) no door\b": "say what happens",
    r"\bchance alone reaches\b|\bwho gets what\b|\bcomes? and goe?s?\b|\blets go\b": "plain technical words",
    r"\bleave `?\w+=`? away\b|\bin other words:|\bis no (number|truth value)\b": "omit; is not a …",
}
PATTERN = re.compile("|".join(f"({wording})" for wording in AVOIDED), re.IGNORECASE)


class Hit(NamedTuple):
    line: int
    sentence: str
    found: str
    better: str


def section_of(page: Path) -> str:
    """Return the row of the table that a page (its path below the root) counts for."""
    if page.parts[0] != "docs":
        return "README"
    return SECTIONS.get(page.parts[1], "other")


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the line number and text of every sentence; rows of tables, items and headings end a sentence."""
    text = re.sub(r"^([ \t]*)(```+|~~~+).*?^\1\2[ \t]*$", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    text = re.sub(r"`+[^`\n]+`+|\]\([^)\n]*\)|https?://\S+", "`…`", text)  # code and addresses are names, not wording
    start = 0
    for end in [m.end() for m in re.finditer(r"[.!?](?=\s)|\n\s*\n|\n(?=\s*[|#*:-])", text)] + [len(text)]:
        if sentence := text[start:end].strip():
            first = start + len(text[start:end]) - len(text[start:end].lstrip())
            yield text.count("\n", 0, first) + 1, " ".join(sentence.split())
        start = end


def hits(text: str) -> list[Hit]:
    """Return the sentences that have wording to avoid."""
    better = list(AVOIDED.values())
    found = [(line, sentence, match) for line, sentence in sentences(text) for match in PATTERN.finditer(sentence)]
    which = [next(i for i, pattern in enumerate(AVOIDED) if re.fullmatch(pattern, m[0], re.I)) for *_, m in found]
    return [Hit(line, sentence, m[0], better[i]) for (line, sentence, m), i in zip(found, which, strict=True)]


def texts_of(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of what a module shows: docstrings of public names, and other strings of several words."""
    tree = ast.parse(source)
    inner: set[int] = set()  # parts of f-strings, and docstrings, which are read with their owners
    for node in ast.walk(tree):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0].value if node.body and isinstance(node.body[0], ast.Expr) else None
            if isinstance(first, ast.Constant) and isinstance(first.value, str):
                inner.add(id(first))
                if not isinstance(node, ast.Module) and not node.name.startswith("_"):
                    yield first.lineno, first.value
        elif isinstance(node, ast.JoinedStr):
            inner |= {id(part) for part in node.values}
            yield node.lineno, "".join(str(p.value) if isinstance(p, ast.Constant) else "…" for p in node.values)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            if id(node) not in inner:
                yield node.lineno, node.value


def main() -> int:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    counts = dict.fromkeys(["README", *SECTIONS.values(), "other"], 0)
    wrong = []
    for page in pages:
        path, text = page.relative_to(ROOT), page.read_text(encoding="utf-8")
        counts[section_of(path)] += len(text.split())
        wrong += [(f"{path}:{hit.line}", hit) for hit in hits(text)]
    for folder in (ROOT / "src" / "whyformer" / name for name in ON_SCREENS):
        for module in sorted(folder.rglob("*.py")) if folder.is_dir() else [folder]:
            for line, text in texts_of(module.read_text(encoding="utf-8")):
                wrong += [(f"{module.relative_to(ROOT)}:{line + hit.line - 1}", hit) for hit in hits(text)]
    for where, hit in wrong:
        print(f"{where}: “{hit.found}” (write: {hit.better}) in: {hit.sentence[:160]}")
    for name, count in [*counts.items(), ("all", sum(counts.values()))]:
        most = {"README": README_MOST, "all": MOST}.get(name)
        print(f"{name:12} {count:7,}" + (f" of at most {most:,}{' (over)' if count > most else ''}" if most else ""))
    print(f"{len(wrong)} places with wording to avoid")
    return int(bool(wrong) or counts["README"] > README_MOST or sum(counts.values()) > MOST)


if __name__ == "__main__":
    sys.exit(main())
