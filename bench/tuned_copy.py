"""Do averages over maskings gain on a copy of the model that was tuned on masked inputs (IDSDS, arXiv:2407.11910)?

    python -m bench.tuned_copy --train train.tsv --data dev.tsv [--model FOLDER] [--inputs 200] [--examples 400]
    python -m bench.tuned_copy --photos pets.tar [--inputs 60] [--examples 200]

The shipped model of sentences (or of pets) is explained; falls are those of its copy. With --own the copy is explained,
as in the paper. Brackets are 95 % confidence intervals (bootstrap over inputs); differences are paired.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
import torch

import whyformer as wf
from bench.frontier.image import pictures
from bench.frontier.text import load_classifier, read_sentences
from bench.timing import machine
from whyformer.demo import load_pets, load_sentiment
from whyformer.evidence import spread

BASE = "attn_lrp"
METHODS = [BASE, {"method": BASE, "maskings": 8}, "auto", "occlusion"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="sentences to explain")
    parser.add_argument("--train", type=Path, help="sentences to tune the copy on")
    parser.add_argument("--model", type=Path, help="folder of a classifier of texts, instead of the shipped one")
    parser.add_argument("--photos", type=Path, help="tar file of photos, instead of sentences")
    parser.add_argument("--inputs", type=int, default=200)
    parser.add_argument("--examples", type=int, default=400, help="that the copy is tuned on")
    parser.add_argument("--own", action="store_true", help="explain the copy")
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    if asked.photos is None:
        model, processor = load_sentiment() if asked.model is None else load_classifier(asked.model)
        inputs = read_sentences(asked.data, asked.inputs, 0)
        examples = read_sentences(asked.train, asked.examples, 0)
    else:
        (model, processor), photos = load_pets(), pictures(asked.photos, asked.inputs + asked.examples)
        inputs, examples = photos[: asked.inputs], photos[asked.inputs :]
    print(machine(asked.device))
    model = model.float().to(asked.device)
    copy = wf.masked_surrogate(model, examples, processor=processor, progress=False)
    print(f"accuracy on masked inputs {copy.before:.3f}, of the copy {copy.after:.3f}")
    how = {"method": METHODS, "metric": "single_deletion", "progress": False}
    for surrogate in (None, copy.model):
        found = wf.compare(copy.model if asked.own else model, inputs, processor, surrogate=surrogate, **how)
        values = {name: np.asarray(each) for name, each in found.values["single_deletion"].items()}
        print(f"\n{'the model itself' if surrogate is None else 'the copy'}, {len(inputs)} inputs")
        for name, values_I in values.items():
            columns = np.stack([values_I, values_I - values[BASE]], 1)
            (mean, ahead), (low, least), (high, most) = spread(columns)
            print(
                f"{name:40s} {mean:.3f} [{low:.3f}, {high:.3f}]  over {BASE}: {ahead:+.3f} [{least:+.3f}, {most:+.3f}]"
            )


if __name__ == "__main__":
    torch.set_num_threads(1)
    main()
