"""Which tokens make up a word."""

from __future__ import annotations

import re


def distinct_words(words: list[int], sequences: list[int | None]) -> list[int]:
    """Word numbers of the second text continue after those of the first."""
    offset = max((w for w, s in zip(words, sequences, strict=True) if s == 0), default=-1) + 1
    return [w + offset if s == 1 and w >= 0 else w for w, s in zip(words, sequences, strict=True)]


def words_of(labels: list[str], special: list[bool]) -> tuple[int, ...]:
    """Words from the spelling of the pieces, for tokenizers that don't number them."""
    marks_start = any(re.match(r"[▁Ġ]", label) for label in labels)
    word, result = -1, []
    for label, is_special in zip(labels, special, strict=True):
        if is_special:
            result.append(-1)
            continue
        continues = not label.startswith(("▁", "Ġ")) if marks_start else label.startswith("##")
        if not continues or word < 0:
            word += 1
        result.append(word)
    return tuple(result)
