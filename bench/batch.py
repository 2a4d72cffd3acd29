"""Rows per second of a job: a loop over single calls, the local engine, Ray, and the bare batched forward + backward.

    python -m bench.batch [--rows 2000] [--data sentences.tsv] [--rounds 3] [--ray] [--method generic_attention]

The shipped sentiment model on sentences as long as those of SST-2 (drawn from its vocabulary; --data takes real ones,
one per line, a label behind a tab). The bare rate is what no explanation can pass: texts tokenised in batches of like
length, the model run on their embeddings, and the gradient of the prediction there. Ray's rate leaves out its start.
The table of a million rows in docs/guide/batch.md is the one printed here: arithmetic on the local engine's rate.
"""

from __future__ import annotations

import argparse
import random
import tempfile
import time
from pathlib import Path

import torch

import whyformer as wf
from bench.timing import fastest, machine
from whyformer.demo import SENTIMENT
from whyformer.jobs.plan import batches_of
from whyformer.jobs.store import EXPLANATIONS
from whyformer.jobs.worker import sizes_for

TOKENS = 20  # of a row in the table of a million; options of methods as they are by default


def sentences(count: int, seed: int = 0) -> list[str]:
    """Words of the model's vocabulary; as many as in SST-2's sentences: 19 on average, from 1 to 50."""
    words = [w for w in (SENTIMENT / "vocab.txt").read_text(encoding="utf-8").split() if w.isalpha()]
    draw = random.Random(seed)
    lengths = [min(50, max(1, round(draw.gauss(19, 9)))) for _ in range(count)]
    return [" ".join(draw.choice(words) for _ in range(length)) for length in lengths]


def bare(model: torch.nn.Module, tokenizer: object, texts: list[str], tokens: int, most: int) -> None:
    """Forward and backward, batch by batch, and nothing else."""
    lengths = [len(ids) for ids in tokenizer(texts)["input_ids"]]  # type: ignore[operator]
    for batch in batches_of(lengths, tokens, most):
        inputs = tokenizer([texts[i] for i in batch], padding=True, return_tensors="pt")  # type: ignore[operator]
        vectors = model.get_input_embeddings()(inputs["input_ids"]).detach().requires_grad_(True)  # type: ignore[operator]
        logits = model(inputs_embeds=vectors, attention_mask=inputs["attention_mask"]).logits
        torch.autograd.grad(logits.amax(1).sum(), vectors)


def job(x: wf.Explainer, texts: list[str], **how: object) -> float:
    """Explain all of them; seconds between the first part that was done and the last, per row of those between."""
    with tempfile.TemporaryDirectory() as folder:
        dataset = wf.explain_dataset(x, texts, out=folder, top=0, **how)
        times = sorted(path.stat().st_mtime for path in (Path(folder) / EXPLANATIONS).iterdir())
        return (times[-1] - times[0]) / max(1, dataset.rows - dataset.parts[0].rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=2000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--ray", action="store_true", help="with 2 workers, too")
    parser.add_argument("--method", default="generic_attention")
    chosen = parser.parse_args()
    model, tokenizer = wf.demo.load_sentiment()
    texts = sentences(chosen.rows)
    if chosen.data is not None:
        lines = chosen.data.read_text(encoding="utf-8").splitlines()[: chosen.rows]
        texts = [line.split("\t")[0] for line in lines]
    x = wf.Explainer(model, tokenizer)
    some = texts[:: max(1, len(texts) // 200)]
    how = {"method": chosen.method}
    print(f"{machine()}; {len(texts)} sentences, {chosen.method}")
    seconds = fastest(
        {
            "loop": lambda: [x.explain(text, **how) for text in some],
            "local": lambda: job(x, texts, **how),
            "bare": lambda: bare(model, tokenizer, texts, *sizes_for(x)),
        },
        chosen.rounds,
    )
    rates = {
        "a loop over single calls": len(some) / seconds["loop"],
        "local engine": len(texts) / seconds["local"],
        "bare forward + backward": len(texts) / seconds["bare"],
    }
    local, unhindered = rates["local engine"], rates["bare forward + backward"]
    for name, rate in rates.items():
        print(f"{name:26} {rate:7.1f} rows/s")
    loop = rates["a loop over single calls"]
    print(f"local engine: {local / loop:.1f} × the loop, {local / unhindered:.0%} of the bare rate")
    forwards, backwards = wf.list_methods()[chosen.method].cost(TOKENS)
    hours = 1e6 / local / 3600
    print(f"one million rows: {hours:.2f} core hours of {chosen.method}, {hours / (forwards + backwards):.2f} per pass")
    print("so much for other methods, by passes:")
    for name in ("raw_attention", "generic_attention", "occlusion", "smooth_grad", "integrated_gradients"):
        passes = sum(wf.list_methods()[name].cost(TOKENS))
        print(f"| {name} | {passes:.0f} | {hours / (forwards + backwards) * passes:.1f} |")
    if chosen.ray:
        started = time.perf_counter()
        part = max(1, len(texts) // 16)
        on_ray = [1 / job(x, texts, engine="ray", workers=2, part_rows=part, **how) for _ in range(chosen.rounds)]
        here = [1 / job(x, texts, part_rows=part, **how) for _ in range(chosen.rounds)]
        print(f"2 workers of Ray           {max(on_ray):7.1f} rows/s")
        print(f"local, parts of that size  {max(here):7.1f} rows/s: Ray has {max(on_ray) / max(here):.0%} of it")
        print(f"({time.perf_counter() - started:.0f} s with its starts)")


if __name__ == "__main__":
    main()
