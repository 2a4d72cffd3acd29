"""Can most heads go, what do the layers of a model do, and are induction heads found where they are?

    python -m bench.heads_by_layer [--data SST] [--photos TAR] [--plot FILE]

The shipped models, on inputs that they were not trained on: drawn pictures, rows of the census, with SST (a folder with
train.tsv and dev.tsv) sentences, and with TAR (images/*.jpg, and labels.csv: name, split, species) photos of its test.
Heads go in the order of ``head_importance`` on other inputs. Then a Llama of two layers that learns to repeat random
words; its head 0.0 begins as one that looks at the word before.
"""

from __future__ import annotations

import argparse
import csv
import tarfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from PIL import Image

import whyformer as wf
from bench import hops
from bench.heads_pruning import sentences
from bench.known_truth.task import Array
from bench.timing import machine
from whyformer import heads
from whyformer.capture.roles import Gate
from whyformer.demo.pictures import picture
from whyformer.evidence import share_interval
from whyformer.heads import importance_kinds as kinds
from whyformer.heads.pruning import _values
from whyformer.run.session import passing_through

KEPT = (1.0, 0.75, 0.5, 0.25, 0.0)  # shares of the heads
WORDS, START, LENGTH = 40, 2, 12  # in use, the start token, and the words that are repeated
QUIET: dict[str, Any] = {"progress": False, "batch_size": 32}


class Sample(NamedTuple):
    name: str
    model: Any
    processor: Any
    inputs: list[Any]
    labels: list[Any]
    order_from: int  # the first inputs find the order of the heads, the others measure


def photos(path: Path, count: int) -> tuple[list[Any], list[str]]:
    """Photos of the split "test", and their species."""
    archive = tarfile.open(path)
    opened: Any = archive.extractfile
    lines = opened("labels.csv").read().decode().splitlines()
    rows = [row for row in csv.DictReader(lines) if row["split"] == "test"]
    chosen = [rows[i] for i in np.random.default_rng(0).permutation(len(rows))[:count]]
    images = [Image.open(opened(f"images/{row['name']}.jpg")).convert("RGB") for row in chosen]
    return images, [row["species"] for row in chosen]


def samples(data: Path | None, pets: Path | None) -> Iterator[Sample]:
    if data is not None:
        both = [sentences(data / f"{part}.tsv", count) for part, count in (("train", 128), ("dev", 400))]
        yield Sample("sentiment", *wf.demo.load_sentiment(), both[0][0] + both[1][0], both[0][1] + both[1][1], 128)
    kinds = [(shape, texture) for shape in ("horse", "fish", "house", "ball") for texture in ("striped", "dotted")]
    drawn = [(picture(*kinds[seed % 8], seed), kinds[seed % 8]) for seed in range(264)]
    labels = ["zebra-like" if kind == ("horse", "striped") else f"{kind[0]}-like" for _, kind in drawn]
    yield Sample("textures", *wf.demo.load_textures(), [image for image, _ in drawn], labels, 64)
    if pets is not None:
        yield Sample("pets", *wf.demo.load_pets(), *photos(pets, 232), 32)
    model, table = wf.demo.load_adult()
    rows = wf.demo.census.adult_rows()
    yield Sample("adult", model, table, rows, [row["income"] for row in rows], 16)


def share(value: float, count: int) -> str:
    low, high = share_interval(np.array(value), count)
    return f"{value:.3f} ({low:.3f}–{high:.3f})"


def pruned(sample: Sample) -> None:
    """The accuracy by the share of heads that are kept."""
    start = sample.order_from
    how = {"processor": sample.processor, **QUIET}
    order = wf.head_importance(sample.model, sample.inputs[:start], **how)
    tests, labels = sample.inputs[start:], sample.labels[start:]
    curve = heads.pruning_curve(sample.model, tests, labels, order=order, points=len(KEPT), **how)
    cells = [share(value, len(tests)) for value in curve.values]
    print(f"|{sample.name}|{curve.heads}|{len(tests)}|" + "|".join(cells) + "|", flush=True)
    if sample.name == "sentiment":
        few = [share(value, 8) for value in curve.samples[:8].mean(0)]
        print("|the same|16|8|" + "|".join(few) + "|")


def by_layer(sample: Sample) -> None:
    """Entropy, distance and relevance of each layer, and the accuracy without its heads."""
    start, how = sample.order_from, {"processor": sample.processor, **QUIET}
    tests, labels = sample.inputs[start:], sample.labels[start:]
    profile = heads.layer_profile(sample.model, tests[:64], **how).rows()
    with passing_through(sample.model, tests, **how) as session:
        gates = [kinds.open_gates(session) for _ in profile]
        for layer, table in enumerate(gates):
            table[layer] = 0
        values = session.gather(lambda run, rows: _values(run, rows, gates, labels, "accuracy"), label="layers")
    for row, value in zip(profile, values.mean(0), strict=True):
        numbers = "|".join(f"{row[name]:.2f}" for name in ("entropy", "distance", "relevance added"))
        print(f"|{sample.name}|{row['layer']}|{numbers}|{share(value, len(tests))}|", flush=True)


def repeated(rng: np.random.Generator, count: int, length: int) -> torch.Tensor:
    words = np.stack([rng.permutation(np.arange(START + 1, WORDS))[:length] for _ in range(count)])
    return torch.from_numpy(np.concatenate([np.full((count, 1), START), words, words], 1))


def repeats(seed: int = 0) -> tuple[Any, Array]:
    """A model that has learnt to repeat, and what it is tested on."""
    torch.manual_seed(seed)
    rng, model = np.random.default_rng(seed), hops.language_model(WORDS, 64)
    held_out = repeated(np.random.default_rng(seed + 1), 64, LENGTH)

    def drawn() -> tuple[torch.Tensor, torch.Tensor]:
        length = int(rng.integers(4, 17))
        ids = repeated(rng, 32, length)
        labels = ids.clone()
        labels[:, : length + 1] = -100
        return ids[:, :-1], labels[:, 1:]

    hops.fitted(model, drawn, lambda: right(model, held_out), 0.99, 600, 50)
    return model.eval(), held_out.numpy()


@torch.no_grad()
def right(model: Any, ids: torch.Tensor) -> Array:
    """(I, LENGTH - 1) whether each word of the second copy is predicted, from its second word on."""
    best = model(input_ids=ids[:, :-1], use_cache=False).logits[:, LENGTH + 1 :].argmax(-1)
    found: Array = (best == ids[:, LENGTH + 2 :]).float().numpy()
    return found


def induced(plot: Path | None) -> None:
    """Scores of each head, whether its circuit copies, and the share of words that are repeated without it."""
    model, held_out = repeats()
    scores, copying = heads.induction(model, length=LENGTH, sequences=32), heads.circuits(model).copying
    ids = torch.from_numpy(held_out)

    def without(gone: Sequence[tuple[int, int]]) -> float:
        with passing_through(model, {"input_ids": ids}, batch_size=len(ids), progress=False) as session:
            gates = torch.ones(scores.induction.shape)
            for at in gone:
                gates[at] = 0
            with Gate(len(ids), session.names, session.study.batch_axes, gates=gates):
                return float(right(model, ids).mean())

    print("\n| head | word before | induction | copying | repeated without it |\n|---|---|---|---|---|")
    for row in scores.to_frame().itertuples():
        at = (row.layer, row.head)
        numbers = (row.previous_token, row.induction, copying[at], without([at]))
        print(f"| {row.layer}.{row.head} | {' | '.join(f'{number:.2f}' for number in numbers)} |")
    layers = scores.induction.shape[1]
    print(f"repeated by the whole model: {without([]):.2f}, without the heads of layer 1: "
          f"{without([(1, head) for head in range(layers)]):.2f}")  # fmt: skip
    if plot is not None:
        scores.save(plot)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="folder with train.tsv and dev.tsv")
    parser.add_argument("--photos", type=Path, help="archive of photos of cats and dogs")
    parser.add_argument("--plot", type=Path, help="draw the scores of the induction heads")
    given = parser.parse_args()
    started, every = time.perf_counter(), list(samples(given.data, given.photos))
    print("|model|heads|inputs|" + "|".join(f"{kept:.0%} kept" for kept in KEPT) + "|")
    print("|---" * (len(KEPT) + 3) + "|")
    for sample in every:
        pruned(sample)
    print("\n|model|layer|entropy|distance|relevance added|accuracy without its heads|")
    print("|---" * 6 + "|")
    for sample in every:
        by_layer(sample)
    induced(given.plot)
    print(f"\n{time.perf_counter() - started:.0f} s; {machine()}")


if __name__ == "__main__":
    main()
