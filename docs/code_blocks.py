"""Blocks of Python in the pages: tests run them all, and the pictures of the start pages are what they save."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Block:
    code: str
    line: int  # of its first line in the page
    excuse: str | None  # why it is not run


def blocks_of(page: Path) -> list[Block]:
    read: list[Block] = []
    begun: tuple[int, str, str] | None = None
    lines: list[str] = []
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
        fence = re.match(r"\s*```+\s*(.*)", line)
        if begun is None and fence:
            language, _, rest = fence.group(1).partition(" ")
            begun, lines = (number + 1, language, rest), []
        elif begun is not None and fence:
            first, language, rest = begun
            if language.lower() in ("python", "py", "python3", "pycon"):
                assert language == "python", f"{page}:{first}: write ```python"
                assert not rest or re.match(r"notest: \w.{5,}", rest), f"{page}:{first}: ```python notest: why"
                read.append(Block("\n".join(lines), first, rest.removeprefix("notest: ") or None))
            begun = None
        else:
            lines.append(line)
    assert begun is None, f"{page}: a block that is never closed"
    return read


def run(page: Path, blocks: list[Block]) -> None:
    """In order, in one namespace; errors name the page's own lines."""
    names: dict[str, Any] = {"__name__": "__main__"}
    for block in blocks:
        exec(compile("\n" * (block.line - 1) + block.code, str(page), "exec", dont_inherit=True), names)


# What a page tells readers to install: the first line of a fenced block that begins with "pip install", such as
# pip install 'whyformer[hf,plot]', or pip install -c constraints.txt ./models '.[hf]' in a clone of the repository.
INSTALL = re.compile(
    r"^pip install (?:-c constraints\.txt )?(\./models )?'(?:whyformer|(\.))(?:\[([\w,]+)\])?'([\w -]*)", re.MULTILINE
)


@dataclass(frozen=True)
class Environment:
    extras: str  # of whyformer, as pip reads them
    others: tuple[str, ...] = ()  # packages that the line names besides
    in_clone: bool = False  # whether the working directory is a clone of the repository

    def __str__(self) -> str:
        return " ".join([f"'whyformer[{self.extras}]'", *self.others])


def environments_of(page: Path) -> list[Environment]:
    """Return what the install lines of a page name, in order. The first one is the environment of its blocks."""
    return [
        Environment(f"{extras},models" if models and extras != "all" else extras, tuple(others.split()), bool(clone))
        for models, clone, extras, others in INSTALL.findall(page.read_text(encoding="utf-8"))
    ]


if __name__ == "__main__":  # without the clone: in an environment that a release is installed in
    for named in sys.argv[1:]:
        run(Path(named), [block for block in blocks_of(Path(named)) if block.excuse is None])
