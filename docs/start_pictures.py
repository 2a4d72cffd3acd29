"""The pictures of start pages and some others are what their code saves: ``python -m docs.start_pictures`` runs it.

Only as far as the block that writes why.png: what follows needs no picture. A picture knows the code that made it;
``--check`` names those whose page says something else now.
"""

from __future__ import annotations

import hashlib
import os
import sys
import tempfile
from pathlib import Path

from PIL import Image, PngImagePlugin

from docs.code_blocks import Block, blocks_of, run

FOLDER = Path(__file__).parent
PAGES = ("start/text", "start/image", "start/table", "start/language_model", "methods/value_norms")
WIDEST = 900  # pixels


def first_blocks(name: str) -> list[Block]:
    """Those of a page up to the one that saves its picture."""
    blocks = blocks_of(FOLDER / f"{name}.md")
    last = next(i for i, block in enumerate(blocks) if "why.png" in block.code)
    return blocks[: last + 1]


def digest(blocks: list[Block]) -> str:
    return hashlib.sha256("\n".join(block.code for block in blocks).encode()).hexdigest()[:16]


def picture_of(name: str) -> Path:
    return FOLDER / "images" / "start" / f"{Path(name).name}.png"


def draw(name: str) -> None:
    blocks, here = first_blocks(name), Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            run(FOLDER / f"{name}.md", blocks)
            picture = Image.open("why.png").convert("RGB")
        finally:
            os.chdir(here)
    size = (WIDEST, round(picture.height * WIDEST / picture.width)) if picture.width > WIDEST else picture.size
    told = PngImagePlugin.PngInfo()
    told.add_text("code", digest(blocks))
    picture_of(name).parent.mkdir(parents=True, exist_ok=True)
    small = picture.resize(size, Image.Resampling.LANCZOS).quantize(128, dither=Image.Dither.NONE)
    small.save(picture_of(name), optimize=True, pnginfo=told)


def stale() -> list[str]:
    wrong = []
    for name in PAGES:
        path = picture_of(name)
        if not path.exists():
            wrong.append(name)
            continue
        with Image.open(path) as stored:
            if stored.info.get("code") != digest(first_blocks(name)):
                wrong.append(name)
    return wrong


def main() -> int:
    if "--check" in sys.argv:
        wrong = stale()
        for name in wrong:
            print(f"docs/images/start/{name}.png is not of the code on its page. Run `python -m docs.start_pictures`.")
        return 1 if wrong else 0
    for name in PAGES:
        draw(name)
    return 0


if __name__ == "__main__":
    sys.exit(main())
