"""Read CoNLL-U: sentences with a dependency tree over their words (universaldependencies.org/format.html)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from whyformer.errors import BadInput

COLUMNS = 10


@dataclass(frozen=True)
class Sentence:
    """Words, and for each the index of its head (-1 for the root) and the relation to it."""

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]


def read_conllu(source: str | Path) -> list[Sentence]:
    """Sentences of a file, or of a text that is CoNLL-U itself.

    Multiword tokens (``3-4``) and empty nodes (``5.1``) are left out: the words inside and around them count.
    """
    text = source if isinstance(source, str) and "\t" in source else _file(Path(source))
    sentences: list[Sentence] = []
    rows: list[list[str]] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.startswith("#"):
            continue
        if line.strip():
            row = line.split("\t")
            if len(row) != COLUMNS:
                raise BadInput(
                    f"line {number} of the CoNLL-U text has {len(row)} columns, not {COLUMNS}: {line[:60]!r}"
                )
            rows.append(row)
        elif rows:
            sentences.append(_sentence(rows, number))
            rows = []
    if not sentences:
        raise BadInput("there is no sentence in the CoNLL-U text.")
    return sentences


def _file(path: Path) -> str:
    if not path.is_file():
        raise BadInput(f"no CoNLL-U file at {str(path)!r}, and the text itself has no tab-separated columns.")
    return path.read_text(encoding="utf-8")


def _sentence(rows: list[list[str]], number: int) -> Sentence:
    words = [row for row in rows if row[0].isdigit()]
    place = {row[0]: i for i, row in enumerate(words)} | {"0": -1}
    try:
        heads = tuple(place[row[6]] for row in words)
    except KeyError as error:
        raise BadInput(
            f"before line {number} of the CoNLL-U text a word has the head {error}, which is no word."
        ) from None
    return Sentence(tuple(row[1] for row in words), heads, tuple(row[7] for row in words))
