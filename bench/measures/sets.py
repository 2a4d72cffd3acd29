"""The sets of bench/measures: git clones them on first use into a folder of yours; not part of whyformer.

HateXplain   hate-alert/HateXplain (MIT; the posts CC BY 4.0), as two files of SanneHoeken/evaluation_with_explanation
             (no licence stated): the posts of its split, rationales are the union over three annotators
YELP-HAT     cansusen/Human-Attention-for-Text-Classification (no licence stated): reviews of 50, 100 and 200 words,
             each with words that three people marked
XAI-Units    XAI-Units/xaiunits_public (MIT): a package
RULER        NVIDIA/RULER (Apache-2.0): generators of prompts; the essays around its needles are in
             gkamradt/LLMTest_NeedleInAHaystack (MIT; the essays are their author's)
shapiq       on PyPI (MIT), with its data of California housing (no licence stated) and bike rentals (CC BY 4.0)
"""

from __future__ import annotations

import csv
import json
import re
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

HOST = "https://github.com"
REPOSITORIES = {  # folder: owner, commit
    "evaluation_with_explanation": ("SanneHoeken", "2aa12ec5d941df50659d51680392f11d55c2815d"),
    "Human-Attention-for-Text-Classification": ("cansusen", "205c1552bc7be7ec48623d79d85d4c6fbfe62362"),
    "xaiunits_public": ("XAI-Units", "a6cd7091ae211d30f09c0721fe9dd7e0ba748617"),
    "RULER": ("NVIDIA", "c3f5e3b4f87f97e048793bb510a3a6b19a46bf3a"),
    "LLMTest_NeedleInAHaystack": ("gkamradt", "7b90d285651b68d39a94f3d3bd3672f84192c989"),
}
POSTS, REVIEWS = "evaluation_with_explanation", "Human-Attention-for-Text-Classification"
HAT = {  # words of a review, or the part
    "50": "ham_part1(50words).csv",
    "100": "ham_part6(100words).csv",
    "200": "ham_part8(200words).csv",
    "part 7": "ham_part7.csv",  # 52 to 73 words
    "part 3": "ham_part3.csv",
    "part 4": "ham_part4.csv",
    "part 5": "ham_part5.csv",
}
CLASSES = ("hatespeech", "normal", "offensive")
WORD = re.compile(r"<span(?P<marked>[^>]*active[^>]*)?[^>]*>(?P<word>.*?)</span>", re.DOTALL)


def cloned(folder: Path, name: str, *paths: str) -> Path:
    """Return the folder of a repository with these paths of it, at a fixed commit; it is cloned on first use."""
    owner, commit = REPOSITORIES[name]
    path, address = folder / name, f"{HOST}/{owner}/{name}"
    wanted = ["git", "-C", str(path), "checkout", "--quiet", commit, "--", *paths]
    commands = [] if path.exists() else [["git", "clone", "--quiet", "--no-checkout", address, str(path)]]
    commands += [] if all((path / one).exists() for one in paths) else [wanted]
    for command in commands:
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip().splitlines() or ["git failed"])[-1]
            raise SystemExit(f"{reason}\nCannot fetch {', '.join(paths)} of {address}. Copy them into {path}.")
    return path


@dataclass(frozen=True)
class Post:
    """A post, its class and, in the test split, the words that one of three annotators marked."""

    text: str
    label: int
    marked: tuple[bool, ...] = ()


def posts(folder: Path, split: str) -> list[Post]:
    """Return the posts of "train" or "test"; words are separated by a space."""
    name = f"data/HateXplain-{split}.json"
    rows = json.loads((cloned(folder, POSTS, name) / name).read_text(encoding="utf-8"))["instances"]
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


def reviews(folder: Path, words: str) -> Iterator[Review]:
    """Yield the reviews of a part on whose words three annotations agree."""
    name = f"raw_data/{HAT[words]}"
    path = cloned(folder, REVIEWS, name) / name
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
