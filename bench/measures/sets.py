"""The sets of bench/measures: downloaded on first use into a folder of yours; not part of whyformer.

HateXplain   hate-alert/HateXplain (MIT; the posts CC BY 4.0), as two files of SanneHoeken/evaluation_with_explanation
             (no licence stated): the posts of its split, rationales are the union over three annotators
YELP-HAT     cansusen/Human-Attention-for-Text-Classification (no licence stated): reviews of 50, 100 and 200 words,
             each with words that three people marked
XAI-Units    XAI-Units/xaiunits_public (MIT): a package, cloned by hand (see xai_units.py)
shapiq       on PyPI (MIT), with its data of California housing (no licence stated) and bike rentals (CC BY 4.0)
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.citations.sets import RAW, fetched

POSTS = f"{RAW}/SanneHoeken/evaluation_with_explanation/2aa12ec5d941df50659d51680392f11d55c2815d/data"
REVIEWS = f"{RAW}/cansusen/Human-Attention-for-Text-Classification/205c1552bc7be7ec48623d79d85d4c6fbfe62362/raw_data"
HAT = {50: "ham_part1(50words).csv", 100: "ham_part6(100words).csv", 200: "ham_part8(200words).csv"}
CLASSES = ("hatespeech", "normal", "offensive")
WORD = re.compile(r"<span(?P<marked>[^>]*active[^>]*)?[^>]*>(?P<word>.*?)</span>", re.DOTALL)


@dataclass(frozen=True)
class Post:
    """A post, its class and, in the test split, the words that one of three annotators marked."""

    text: str
    label: int
    marked: tuple[bool, ...] = ()


def posts(folder: Path, split: str) -> list[Post]:
    """Return the posts of "train" or "test"; words are separated by a space."""
    name = f"HateXplain-{split}.json"
    rows = json.loads(fetched(folder, name, f"{POSTS}/{name}").read_text(encoding="utf-8"))["instances"]
    return [Post(row["text"], CLASSES.index(row["label"]), tuple(map(bool, row.get("rationale", ())))) for row in rows]


@dataclass(frozen=True)
class Review:
    """The words of a review, its label and the words that each of three people marked."""

    words: tuple[str, ...]
    label: int
    maps: tuple[tuple[bool, ...], ...]


def marked_words(html: str) -> list[tuple[str, bool]]:
    """Return the words of an annotation, and whether each was marked; empty elements are left out."""
    found = ((match["word"].strip(), match["marked"] is not None) for match in WORD.finditer(html))
    return [(word, marked) for word, marked in found if word]


def reviews(folder: Path, words: int) -> Iterator[Review]:
    """Yield the reviews of about so many words on whose words three annotations agree."""
    name = HAT[words]
    path = fetched(folder, name, f"{REVIEWS}/{name.replace('(', '%28').replace(')', '%29')}")
    grouped: dict[str, list[dict[str, str]]] = {}
    with path.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            grouped.setdefault(row["Input.text"], []).append(row)
    for rows in grouped.values():
        annotations = [marked_words(row["Answer.html_output"]) for row in rows]
        texts = {tuple(word for word, _ in annotation) for annotation in annotations}
        maps = tuple(tuple(marked for _, marked in annotation) for annotation in annotations)
        if len(rows) == 3 and len(texts) == 1 and all(any(one) and not all(one) for one in maps):
            yield Review(texts.pop(), int(rows[0]["Input.label"]), maps)
