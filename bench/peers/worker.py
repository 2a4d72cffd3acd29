"""Asks a peer all its questions, in its environment: ``python -m bench.peers.worker NAME --out FILE``.

Started by ``python -m bench.peers``; the result is one JSON object, written as soon as a question is answered.
"""

from __future__ import annotations

import argparse
import importlib
import json
import platform
import sys
import warnings
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from bench.peers.environments import PEERS
from bench.peers.questions import Question, Row, answered, told

FILES = ("classifiers", "pictures", "language", "citing")
SHOWN = ("torch", "transformers", "numpy")


def declare_nms() -> None:
    """Make torchvision importable beside a CPU build of torch.

    The package index has it for CUDA only. Its compiled operators do not load then, and its import fails unless these
    are declared; questions here use none of them.
    """
    import torch

    try:
        import torchvision  # type: ignore[import-not-found,unused-ignore] # noqa: F401
    except RuntimeError:
        for name in [name for name in sys.modules if name.partition(".")[0] == "torchvision"]:
            del sys.modules[name]
        for name in ("nms", "qnms"):
            torch.library.define(f"torchvision::{name}", "(Tensor boxes, Tensor scores, float threshold) -> Tensor")
    except ImportError:
        pass


def asked(name: str) -> list[Question]:
    """Return the questions for a peer, of all files."""
    modules = [importlib.import_module(f"bench.peers.{file}") for file in FILES]
    return [question for module in modules for question in module.QUESTIONS.get(name, [])]


def versions(name: str) -> dict[str, str]:
    """Versions that ran: of the pinned packages, torch and transformers."""
    packages = [requirement.partition("==")[0] for requirement in PEERS[name].requirements]
    out = {"python": platform.python_version()}
    for package in dict.fromkeys([*packages, *SHOWN]):
        try:
            out[package] = version(package)
        except PackageNotFoundError:
            continue
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("name", choices=list(PEERS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--folder", type=Path, help="of SmolLM2")
    parser.add_argument("--seconds", type=float, default=20.0, help="for the rounds of a question")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    import torch

    declare_nms()
    from bench.peers.subjects import Subjects

    warnings.simplefilter("ignore")
    torch.set_num_threads(given.threads)
    subjects = Subjects(given.device, given.folder)
    row: Row = {"versions": versions(given.name), "questions": []}
    for question in asked(given.name):
        try:
            row["questions"].append(answered(question, subjects, given.device, given.seconds))
        except Exception as error:
            row["questions"].append({"about": question.about, "failed": told(error)})
        given.out.write_text(json.dumps(row), encoding="utf-8")
    given.out.write_text(json.dumps(row | {"done": True}), encoding="utf-8")


if __name__ == "__main__":
    main()
