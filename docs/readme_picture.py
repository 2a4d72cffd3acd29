"""The picture of the README: two saved pages, side by side, as a browser shows them.

python -m docs.readme_picture [docs/images/readme.png]
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image

import whyformer as wf
from whyformer import demo
from whyformer.demo.pictures import picture

SENTENCE = "The plot is thin, but the actors are wonderful."  # that of the README's first example
SIZE, SHOWN = (1000, 860), (8, 50, 992, 800)  # the window, and the part of it that is kept


def main(path: str = "docs/images/readme.png") -> None:
    browser = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if browser is None:
        raise SystemExit("no chromium here: see `make setup-browser`.")
    model, tokenizer = demo.load_sentiment()
    vit, processor = demo.load_textures()
    explained = [
        wf.explain(model, SENTENCE, processor=tokenizer),
        wf.explain(vit, Image.fromarray(picture("horse", "striped", seed=5)), processor=processor),
    ]
    shots = []
    with tempfile.TemporaryDirectory() as folder:
        for number, why in enumerate(explained):
            page, shot = Path(folder, f"{number}.html"), Path(folder, f"{number}.png")
            why.save(page)
            size = ",".join(map(str, SIZE))
            options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={size}"]
            subprocess.run([browser, *options, f"--screenshot={shot}", page.as_uri()], check=True, capture_output=True)
            shots.append(Image.open(shot).convert("RGB").crop(SHOWN))
    wide, high = shots[0].size
    both = Image.new("RGB", (2 * wide, high), "white")
    for number, shot in enumerate(shots):
        both.paste(shot, (number * wide, 0))
    both.resize((wide * 3 // 2, high * 3 // 4), Image.Resampling.LANCZOS).save(path, optimize=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
