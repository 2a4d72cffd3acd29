"""The sets of bench/measures: git clones them on first use into a folder of yours; not part of whyformer.

HateXplain   hate-alert/HateXplain (MIT; the posts CC BY 4.0), as two files of SanneHoeken/evaluation_with_explanation
             (no licence stated): the posts of its split, rationales are the union over three annotators
XAI-Units    XAI-Units/xaiunits_public (MIT): a package
"""

from __future__ import annotations

import json
import subprocess
from dataclasses import dataclass
from pathlib import Path

HOST = "https://github.com"
REPOSITORIES = {  # folder: owner, commit
    "evaluation_with_explanation": ("SanneHoeken", "2aa12ec5d941df50659d51680392f11d55c2815d"),
    "xaiunits_public": ("XAI-Units", "a6cd7091ae211d30f09c0721fe9dd7e0ba748617"),
}
POSTS = "evaluation_with_explanation"
CLASSES = ("hatespeech", "normal", "offensive")


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
