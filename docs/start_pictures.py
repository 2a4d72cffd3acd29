"""The pictures of the start pages are what their own code saves: ``python -m docs.start_pictures`` runs them.

Only as far as the block that writes why.png: what follows needs no picture.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from PIL import Image

from docs.code_blocks import blocks_of, run

FOLDER = Path(__file__).parent
PAGES = ("text", "image", "table", "language_model")
WIDEST = 900  # pixels


def main() -> None:
    (FOLDER / "images" / "start").mkdir(parents=True, exist_ok=True)
    here = Path.cwd()
    for name in PAGES:
        page = FOLDER / "start" / f"{name}.md"
        blocks = blocks_of(page)
        last = next(i for i, block in enumerate(blocks) if "why.png" in block.code)
        with tempfile.TemporaryDirectory() as folder:
            os.chdir(folder)
            try:
                run(page, blocks[: last + 1])
                picture = Image.open("why.png").convert("RGB")
            finally:
                os.chdir(here)
        size = (WIDEST, round(picture.height * WIDEST / picture.width)) if picture.width > WIDEST else picture.size
        small = picture.resize(size, Image.Resampling.LANCZOS).quantize(128, dither=Image.Dither.NONE)
        small.save(FOLDER / "images" / "start" / f"{name}.png", optimize=True)


if __name__ == "__main__":
    main()
