"""What do millions of explanations cost, what grows with the number of rows, and does a cluster lose any?

    python -m bench.scale --part cost [--device cuda]       # seconds per explanation, hours per million, growth
    python -m bench.scale --part rows [--rows 200000]       # one job, and 10 million rows on paper
    python -m bench.scale --part ray [--rows 6000]          # three Ray nodes on this machine, one is killed

cost: random weights of BERT-base (text), ViT-B (picture) and an FT-Transformer of width 192 with three blocks (table),
float32, in batches of like length. On the CPU the process's own seconds are counted, so that a busy machine changes
little: use OMP_NUM_THREADS=1, and they are core seconds. On a GPU it is the time until the scores are on the CPU.
rows: the shipped model of a table on its forty rows with another number in each, in a process of its own; then the
finished job is called again (continuing reads and hashes the whole input), and its summary is made.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import whyformer as wf
from bench.timing import machine
from whyformer.jobs.folder import COMMITS, EXPLANATIONS
from whyformer.loan.spread import resident

MILLION, PAPER = 1_000_000, 10_000_000
# Methods by what they cost: one pass, about a hundred, about a thousand.
METHODS: dict[str, dict[str, Any]] = {
    "attention_rollout": {},
    "generic_attention": {},
    "attn_lrp": {},
    "two_ended": {"passes": 128},
    "shap": {"guide": "attn_lrp", "evaluations": 512},
}
SLOW = ("two_ended", "shap")  # timed once; on a CPU, of one input
LENGTHS = {"text": (32, 128, 512), "picture": (49, 196, 576), "table": (8, 32, 128)}
UNITS = {"text": "tokens", "picture": "patches", "table": "columns"}
BATCHES = {"cpu": 32, "cuda": 256}
MOST_POSITIONS = {"cpu": 1024, "cuda": 16384}
PATCH = 16  # pixels
WIDTH: dict[str, int] = {}  # of BERT and ViT: the base size
KEPT = 48  # bytes of memory per explanation in a summary, at most: tests/jobs/test_dataset.py
HOW: dict[str, Any] = {"method": "generic_attention", "batch_size": 256, "batch_tokens": 16384, "top": 0}


def hours_per_million(seconds: float) -> float:
    """Hours of one core or GPU for a million explanations."""
    return seconds * MILLION / 3600


def growth(lengths: Sequence[int], seconds: Sequence[float]) -> float:
    """The exponent between the two longest inputs: 1 where twice the length takes twice the time."""
    (short, long), (less, more) = lengths[-2:], seconds[-2:]
    return math.log(more / less) / math.log(long / short)


def on_paper(lines: Sequence[dict[str, float]], name: str, to: int = PAPER) -> float:
    """A number of the log at ``to`` rows: its line of least squares from the third entry on, when all is warm."""
    rows, values = ([line[key] for line in lines[2:]] for key in ("row", name))
    slope, _ = statistics.linear_regression(rows, values)
    return values[-1] + slope * (to - rows[-1])


# Models of usual size, and inputs of a given length


class Columns(nn.Module):
    """An FT-Transformer of numbers: a token per column, a token of its own in front."""

    def __init__(self, columns: int, width: int = 192, blocks: int = 3) -> None:
        super().__init__()
        self.weight, self.bias = (nn.Parameter(torch.randn(columns, width) / 8) for _ in range(2))
        self.first = nn.Parameter(torch.randn(1, 1, width) / 8)
        layer = nn.TransformerEncoderLayer(width, 8, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, blocks, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor) -> Tensor:
        tokens = x[..., None] * self.weight + self.bias
        return self.head(self.blocks(torch.cat([self.first.expand(len(x), -1, -1), tokens], 1))[:, 0])


def case_of(kind: str, length: int, device: str) -> tuple[wf.Explainer, Callable[[int], Any]]:
    """A model of usual size, and so many inputs of this length for it."""
    from transformers import BertConfig, BertForSequenceClassification, ViTConfig, ViTForImageClassification

    torch.manual_seed(0)
    if kind == "text":
        _, tokenizer = wf.demo.load_sentiment()
        tokenizer.model_max_length = 512  # as BERT's, not as the shipped model's
        words = [word for word in tokenizer.get_vocab() if word.isalpha()]
        model: nn.Module = BertForSequenceClassification(BertConfig(vocab_size=len(tokenizer), **WIDTH))
        draw = random.Random(0)
        return wf.Explainer(model.to(device).eval(), tokenizer), lambda count: [
            " ".join(draw.choice(words) for _ in range(length - 2)) for _ in range(count)
        ]
    if kind == "picture":
        side = PATCH * math.isqrt(length)
        model = ViTForImageClassification(ViTConfig(image_size=side, patch_size=PATCH, **WIDTH))
        return wf.Explainer(model.to(device).eval()), lambda count: {
            "pixel_values": torch.randn(count, 3, side, side).to(device)
        }
    names = [f"c{i}" for i in range(length)]

    def rows(count: int) -> list[dict[str, float]]:
        return [dict(zip(names, row, strict=True)) for row in torch.randn(count, length).tolist()]

    table = wf.Table(numerical=names, classes=["no", "yes"], reference=rows(64))
    return wf.Explainer(Columns(length).to(device).eval(), table), rows


def cost(device: str, kinds: Sequence[str], limit: float, rounds: int) -> list[dict[str, Any]]:
    """Seconds per explanation by kind, method and length; longer inputs are left out where they would take too long."""
    clock = time.process_time if device == "cpu" else time.perf_counter
    found: list[dict[str, Any]] = []
    for kind in kinds:
        seconds: dict[str, list[float]] = {name: [] for name in METHODS}
        for number, length in enumerate(LENGTHS[kind]):
            explainer, inputs = case_of(kind, length, device)
            count = max(1, min(BATCHES[device], MOST_POSITIONS[device] // length))
            several, few = inputs(count), inputs(1 if device == "cpu" else min(8, count))
            for name, options in METHODS.items():
                before, slow = seconds[name], name in SLOW
                if len(before) < number or (before and before[-1] * 8 > limit):
                    continue
                asked = few if slow else several
                times = []
                for _ in range(1 if slow else rounds + 1):  # the first of several warms up
                    start = clock()
                    explainer.explain(asked, method=name, **options)
                    times.append(clock() - start)
                before.append(min(times) / size_of(asked))
                print(f"{kind} {length} {name}: {before[-1]:.5f} s, batch {size_of(asked)}", flush=True)
        found += [{"kind": kind, "method": name, "seconds": each} for name, each in seconds.items()]
    return found


def size_of(inputs: Any) -> int:
    return len(next(iter(inputs.values()))) if isinstance(inputs, dict) else len(inputs)


def cost_table(found: Sequence[dict[str, Any]], unit: str) -> str:
    """Hours per million by length, and the exponent of growth between the two longest inputs."""
    lines = []
    for kind in dict.fromkeys(row["kind"] for row in found):
        lengths = LENGTHS[kind]
        names = " | ".join(f"{length} {UNITS[kind]}" for length in lengths)
        lines += [f"| {unit} per million: {kind} | {names} | exponent |", "|---" * (len(lengths) + 2) + "|"]
        for row in found:
            if row["kind"] == kind:
                each = row["seconds"]
                hours = [f"{hours_per_million(s):,.3g}" for s in each] + ["–"] * (len(lengths) - len(each))
                exponent = f"{growth(lengths[: len(each)], each):.2f}" if len(each) > 1 else "–"
                lines.append(f"| {row['method']} | {' | '.join(hours)} | {exponent} |")
    return "\n".join(lines)


# One job with many rows


def census(rows: int) -> Iterator[dict[str, Any]]:
    """Rows of the shipped table, each with an age of its own: no two of them are alike."""
    from whyformer.demo.census import adult_rows

    known = adult_rows()
    for i in range(rows):
        yield known[i % len(known)] | {"age": 17 + i / rows * 60}


def explain_rows(out: Path, rows: int) -> None:
    """In a process of its own: the job, and on stdout its memory and time, ten times and in the end."""
    model, table = wf.demo.load_adult()
    started = time.perf_counter()

    def tell(row: int) -> None:
        facts = {"row": row, "megabytes": resident() / 2**20, "seconds": time.perf_counter() - started}
        print(json.dumps(facts | {"cpu": time.process_time()}), flush=True)

    def source() -> Iterator[dict[str, Any]]:
        for i, row in enumerate(census(rows)):
            if i % max(1, rows // 10) == 0:
                tell(i)
            yield row

    wf.explain_dataset(model, source(), out=out, processor=table, **HOW)
    tell(rows)


def exactly_once(out: Path, rows: int) -> str:
    """A name for all explanations, in order; raises unless every row has one."""
    dataset = wf.jobs.ExplainedDataset(out)
    places: Counter[int] = Counter()
    name = hashlib.blake2b(digest_size=8)
    for commit in dataset.parts:
        table = dataset.table(commit.part, ["place", "row_id"])
        places.update(table["place"].to_pylist())
        name.update("".join(table["row_id"].to_pylist()).encode())
    lost, doubled = rows - len(places), sum(count > 1 for count in places.values())
    if lost or doubled or dataset.errors or max(places) != rows - 1:
        raise SystemExit(f"{lost} rows are lost, {doubled} are there twice, {dataset.errors} have errors")
    return name.hexdigest()


def log_of(out: Path, rows: int) -> list[dict[str, float]]:
    command = [sys.executable, "-m", "bench.scale", "--part", "job", "--out", str(out), "--rows", str(rows)]
    lines: list[dict[str, float]] = []
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as job:
        for line in job.stdout or ():
            print(line, end="", flush=True)  # as it goes: the job is a long one
            lines.append(json.loads(line))
    if job.returncode:
        raise SystemExit(f"the job ended with {job.returncode}")
    return lines


def rows_part(rows: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out"
        first = log_of(out, rows)
        files = list((out / EXPLANATIONS).iterdir())
        sizes = {"files": len(files), "MB of files": sum(path.stat().st_size for path in files) / 2**20}
        sizes["MB of commits.jsonl"] = (out / COMMITS).stat().st_size / 2**20
        again = log_of(out, rows)  # all parts are there: the input is read and hashed, and that is all
        exactly_once(out, rows)
        dataset, started, before = wf.jobs.ExplainedDataset(out), time.process_time(), resident()
        dataset.summarize()
        sizes["core seconds of the summary"] = time.process_time() - started
        kept = (resident() - before) / 2**20
    print(f"{machine()}; {rows:,} rows of a table, {HOW}; every row once")
    print(f"{rows / first[-1]['seconds']:.0f} rows/s, {rows / first[-1]['cpu']:.0f} rows per core second")
    for what, log in {"job": first, "continuing": again}.items():
        told = (f"{line['row']:,.0f}: {line['megabytes']:.0f} MB, {line['cpu']:.0f} s" for line in log)
        print(f"{what}, memory and core seconds at row {'; '.join(told)}")
    print(f"\n| | {rows:,} rows | {PAPER:,} rows, on paper |\n|---|---|---|")
    for what, log in {"the job": first, "continuing it when all is done": again}.items():
        for unit, name in {"core seconds": "cpu", "MB of memory": "megabytes"}.items():
            print(f"| {unit} of {what} | {log[-1][name]:,.0f} | {on_paper(log, name):,.0f} |")
    for name, value in sizes.items():
        print(f"| {name} | {value:,.3g} | {value * PAPER / rows:,.4g} |")
    print(f"| MB of memory of the summary | {kept:.0f} | {kept + KEPT * (PAPER - rows) / 2**20:.0f} |")


# Several nodes of a Ray cluster, one of which is killed


def ray_part(rows: int, nodes: int) -> None:
    import ray
    from ray.cluster_utils import Cluster

    model, table = wf.demo.load_adult()
    noticed = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": noticed}
    handler = signal.getsignal(signal.SIGTERM)
    cluster = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(nodes - 1):
            cluster.add_node(num_cpus=1)
        killed: list[int] = []

        def disturbed() -> Iterator[dict[str, Any]]:
            for i, row in enumerate(census(rows)):
                if i == rows // 2:
                    cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
                    killed.append(i)
                yield row

        with tempfile.TemporaryDirectory() as folder:
            here, there = Path(folder) / "here", Path(folder) / "there"
            how = HOW | {"part_rows": 128, "processor": table}
            started = time.perf_counter()
            wf.explain_dataset(model, disturbed(), out=there, engine="ray", address=cluster.address, **how)
            seconds = time.perf_counter() - started
            wf.explain_dataset(model, census(rows), out=here, **how)
            same = exactly_once(there, rows) == exactly_once(here, rows)
            alive = len(cluster.list_all_nodes())
        print(f"{machine()}; Ray {ray.__version__}, {nodes} nodes with one CPU each")
        print(
            f"{rows} rows in {seconds:.0f} s; one node killed at row {killed[0]}, {alive} left; every row once: {same}"
        )
    finally:
        ray.shutdown()
        cluster.shutdown()
        signal.signal(signal.SIGTERM, handler)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=("cost", "rows", "ray", "job"), required=True)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--kinds", nargs="*", choices=[*LENGTHS], default=[*LENGTHS])
    parser.add_argument("--limit", type=float, default=20.0, help="seconds that one explanation may take")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(argv)
    if chosen.part == "cost":
        found = cost(chosen.device, chosen.kinds, chosen.limit, chosen.rounds)
        print(f"\n{machine(chosen.device)}\n")
        print(cost_table(found, "core hours" if chosen.device == "cpu" else "GPU hours"))
    elif chosen.part == "rows":
        rows_part(chosen.rows)
    elif chosen.part == "ray":
        ray_part(chosen.rows, chosen.nodes)
    else:
        explain_rows(chosen.out, chosen.rows)


if __name__ == "__main__":
    main()
