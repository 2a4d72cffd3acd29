"""Rows per second of a job: a loop over single calls, the local engine, Ray, and the bare batched forward + backward.

    python -m bench.batch [--rows 2000] [--data sentences.tsv] [--rounds 3] [--workers 2] [--ray]

The shipped sentiment model on sentences as long as those of SST-2 (drawn from its vocabulary; --data takes real ones,
one per line, a label behind a tab). Everybody has the threads that the first line says: torch's own choice, or
OMP_NUM_THREADS; workers share them. The bare rate is that of texts tokenised in batches of like length, the model run
on their embeddings, and the gradient of the prediction there. Of workers, here and on Ray, the second half of the rows
is timed, when all of them are there. A table of core hours per million rows is printed, too:
arithmetic on the local engine's rate. On a busy machine --clock process with OMP_NUM_THREADS=1 counts this process's
own seconds; of workers it says nothing.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

import whyformer as wf
from bench.timing import machine, rounds_of
from whyformer.demo import model_folder
from whyformer.jobs.folder import EXPLANATIONS
from whyformer.jobs.job import PART_ROWS
from whyformer.jobs.source import batches_of
from whyformer.jobs.worker import sizes_for

TOKENS = 20  # of a row in the table of a million; options of methods as they are by default
PARTS = 16  # of a job with workers: so many that the last one, which only some have, hardly counts


def sentences(count: int, seed: int = 0) -> list[str]:
    """Words of the model's vocabulary; as many as in SST-2's sentences: 19 on average, from 1 to 50."""
    words = [w for w in (model_folder("sentiment") / "vocab.txt").read_text(encoding="utf-8").split() if w.isalpha()]
    draw = random.Random(seed)
    lengths = [min(50, max(1, round(draw.gauss(19, 9)))) for _ in range(count)]
    return [" ".join(draw.choice(words) for _ in range(length)) for length in lengths]


def bare(model: torch.nn.Module, tokenizer: Any, texts: list[str], tokens: int, most: int) -> None:
    """Forward and backward, batch by batch, and nothing else."""
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]]
    for batch in batches_of(lengths, tokens, most):
        inputs = tokenizer([texts[i] for i in batch], padding=True, return_tensors="pt")
        vectors = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_(True)  # type: ignore[operator]
        logits = model(inputs_embeds=vectors, attention_mask=inputs["attention_mask"]).logits
        torch.autograd.grad(logits.amax(1).sum(), vectors)


def padding(x: wf.Explainer, texts: list[str]) -> float:
    """The share of positions that the local engine's batches have for nothing."""
    positions = tokens = 0
    for start in range(0, len(texts), PART_ROWS):
        lengths = [len(ids) for ids in x.processor(texts[start : start + PART_ROWS])["input_ids"]]
        tokens += sum(lengths)
        positions += sum(len(batch) * max(lengths[i] for i in batch) for batch in batches_of(lengths, *sizes_for(x)))
    return 1 - tokens / positions


def job(x: wf.Explainer, texts: list[str], **how: Any) -> float:
    """Explain all of them; rows per second of the second half, when all workers are there."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = wf.explain_dataset(x, texts, out=folder, top=0, **how)
        done = sorted((path.stat().st_mtime, path.name) for path in (Path(folder) / EXPLANATIONS).iterdir())
        rows = {f"part-{commit.part:06d}.parquet": commit.rows for commit in dataset.parts}
        half = len(done) // 2
        return sum(rows[name] for _, name in done[half + 1 :]) / max(1e-9, done[-1][0] - done[half][0])


def with_workers(x: wf.Explainer, texts: list[str], rounds: int, workers: int, on_ray: bool, method: str) -> None:
    """Rates of one process, of several here, and of several on Ray, on parts of one size, in turn."""
    part = -(-len(texts) // PARTS)
    engines: dict[str, dict[str, Any]] = {"one process": {}, f"{workers} workers": {"workers": workers}}
    if on_ray:
        engines[f"{workers} workers of Ray"] = {"engine": "ray", "workers": workers}
    rates: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(rounds):
        for name, how in engines.items():
            rates[name].append(job(x, texts, part_rows=part, method=method, **how))
    first = max(rates["one process"])
    print(f"in parts of {part} rows, when workers are there:")
    for name, each in rates.items():
        print(f"{name:26} {max(each):7.1f} rows/s, {max(each) / first:.0%} of one process")
    if on_ray:
        here, there = (max(rates[name]) for name in [*engines][1:])
        print(f"Ray has {there / here:.0%} of the local engine with as many workers")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--workers", type=int, default=2, help="1: no workers")
    parser.add_argument("--ray", action="store_true", help="workers of Ray, too")
    parser.add_argument("--method", default="generic_attention")
    parser.add_argument("--clock", choices=("wall", "process"), default="wall")
    chosen = parser.parse_args()
    model, tokenizer = wf.demo.load_sentiment()
    texts = sentences(chosen.rows)
    if chosen.data is not None:
        lines = chosen.data.read_text(encoding="utf-8").splitlines()[: chosen.rows]
        texts = [line.split("\t")[0] for line in lines]
    x = wf.Explainer(model, tokenizer)
    some = texts[:: max(1, len(texts) // 200)]
    how = {"method": chosen.method}
    print(f"{machine()}; {len(texts)} sentences, {chosen.method}, {padding(x, texts):.1%} of positions are padding")
    clock = time.perf_counter if chosen.clock == "wall" else time.process_time
    times = rounds_of(
        {
            "loop": lambda: [x.explain(text, **how) for text in some],
            "local": lambda: job(x, texts, **how),
            "bare": lambda: bare(model, tokenizer, texts, *sizes_for(x)),
            "bare, singly": lambda: bare(model, tokenizer, some, 1, 1),
        },
        chosen.rounds,
        clock,
    )
    seconds = {name: min(each) for name, each in times.items()}  # what else the machine does can only add to it
    rates = {
        "a loop over single calls": len(some) / seconds["loop"],
        "local engine": len(texts) / seconds["local"],
        "bare forward + backward": len(texts) / seconds["bare"],
        "… one text at a time": len(some) / seconds["bare, singly"],
    }
    local, unhindered = rates["local engine"], rates["bare forward + backward"]
    for name, rate in rates.items():
        print(f"{name:26} {rate:7.1f} rows/s")
    loop = rates["a loop over single calls"]
    print(f"local engine: {local / loop:.1f} × the loop, {local / unhindered:.0%} of the bare rate")
    forwards, backwards = wf.list_methods()[chosen.method].cost(TOKENS)
    hours = 1e6 / local / 3600
    per_pass = hours / (forwards + backwards)
    print(f"one million rows: {hours:.2f} hours of {chosen.method}, {per_pass:.2f} per pass")
    print("so much for other methods, by passes:")
    for name in ("raw_attention", "generic_attention", "occlusion", "smooth_grad", "integrated_gradients"):
        passes = sum(wf.list_methods()[name].cost(TOKENS))
        print(f"| {name} | {passes:.0f} | {per_pass * passes:.1f} |")
    if chosen.workers > 1:
        with_workers(x, texts, chosen.rounds, chosen.workers, chosen.ray, chosen.method)


if __name__ == "__main__":
    main()
