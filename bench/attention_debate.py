"""Is attention an explanation? The protocol of the debate on a BiLSTM and on a transformer, over several seeds.

    python -m bench.attention_debate --data SST --seeds 5 [--device cuda] [--processes 5] [--out debate.json]

SST holds train.tsv, dev.tsv and test.tsv, one "sentence<TAB>label" per line. For each architecture and seed:

* a base model, and the same with uniform attention (Wiegreffe & Pinter 2019, section 3.1);
* the diagnostic: a token-level MLP whose words are weighted by uniform weights, weights it learns itself, the base
  model's, and those of a model-consistent adversary (section 3.4): the table of four rows;
* model-consistent adversaries over a sweep of λ: how far attention moves (JSD) for how much change of the output (TVD);
* beside the curve: other seeds of the base model, the uniform model, and Jain & Wallace's adversary per sentence.

Needs torch, numpy and scipy. Prints tables with 95 % limits over seeds, writes everything as JSON.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from functools import partial
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy import stats

from bench.attention_debate_models import BiLSTM, Debated, TokenMLP, Transformer
from bench.attention_debate_training import (
    Said,
    Split,
    adversary_loss,
    jsd,
    per_instance,
    read,
    said,
    scored,
    train,
    tvd,
    uniform,
)
from bench.jobs import Job, done_jobs

LAMBDAS = (0.0, 1e-4, 1e-3, 5e-3, 1e-2, 2e-2, 5e-2, 1e-1)
MODELS: dict[str, tuple[Any, float]] = {"BiLSTM": (BiLSTM, 1e-3), "transformer": (Transformer, 5e-4)}
GUIDES = ("uniform", "learned by the MLP", "base model", "adversary")
SLACK = 0.02  # TVD that an adversary may have beyond one that only imitates the output (λ = 0)
Splits = dict[str, Split]


def say(model: Debated, data: Splits, imposed: dict[str, torch.Tensor] | None = None) -> dict[str, Said]:
    return {name: said(model, split, None if imposed is None else imposed[name]) for name, split in data.items()}


def apart(a: Said, b: Said) -> dict[str, float]:
    """Mean distance of outputs and of attention."""
    return {
        "tvd": float(tvd(a.probability_N, b.probability_N).mean()),
        "jsd": float(jsd(a.attention_NT, b.attention_NT).mean()),
    }


def one_seed(
    make: Callable[[], Debated], lr: float, mlp: Callable[[], Debated], data: Splits, seed: int, steps: int
) -> tuple[dict[str, Any], Said]:
    """Everything for one architecture and seed, and what its base model says about the test part."""
    even = {name: uniform(split) for name, split in data.items()}
    base_model = train(make, data, seed, steps, lr=lr)
    base = say(base_model, data)
    flat_model = train(make, data, seed, steps, imposed=even, lr=lr)
    flat = say(flat_model, data, even)
    curve, adversaries = [], []
    for weight in LAMBDAS:
        loss = adversary_loss(base["train"], weight)
        adversaries.append(say(train(make, data, seed + 1000, steps, loss=loss, lr=lr), data))
        point = apart(adversaries[-1]["test"], base["test"])
        curve.append({"lambda": weight, **point, **scored(adversaries[-1]["test"], data["test"])})
    # The adversary that guides the MLP is chosen on dev: the most different attention whose output is imitated as
    # well as it is without any pressure on attention.
    on_dev = [apart(a["dev"], base["dev"]) for a in adversaries]
    same = [i for i, point in enumerate(on_dev) if point["tvd"] <= on_dev[0]["tvd"] + SLACK]
    chosen = max(same, key=lambda i: on_dev[i]["jsd"])
    guides: dict[str, dict[str, torch.Tensor] | None] = {
        GUIDES[0]: even,
        GUIDES[1]: None,
        GUIDES[2]: {name: s.attention_NT for name, s in base.items()},
        GUIDES[3]: {name: s.attention_NT for name, s in adversaries[chosen].items()},
    }
    table = {}
    for name, guide in guides.items():
        model = train(mlp, data, seed, steps, imposed=guide)
        table[name] = scored(said(model, data["test"], guide and guide["test"]), data["test"])
    change, divergence = per_instance(base_model, data["test"], seed, steps=min(200, steps))
    return {
        "seed": seed,
        "base": scored(base["test"], data["test"]),
        "uniform": scored(flat["test"], data["test"]),
        "guides": table,
        "curve": curve,
        "adversary": {"lambda": LAMBDAS[chosen], "dev": on_dev[chosen], **curve[chosen]},
        "uniform_apart": apart(flat["test"], base["test"]),
        "per_instance": {"tvd": change, "jsd": divergence},
    }, Said(base["test"].probability_N.cpu(), base["test"].attention_NT.cpu())


def work(job: Job, folder: Path, count: int | None, device: str, steps: int) -> tuple[dict[str, Any], Said]:
    """One job, in a process of its own or in this one."""
    torch.set_num_threads(1)
    name, seed = job
    data, vocabulary = read(folder, count, device)
    make, lr = MODELS[name]
    return one_seed(partial(make, vocabulary), lr, partial(TokenMLP, vocabulary), data, seed, steps)


def limits(values: list[float]) -> dict[str, float]:
    """Mean with 95 % limits of Student's t over seeds."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return {"mean": mean, "low": float("nan"), "high": float("nan")}
    half = float(stats.t.ppf(0.975, len(values) - 1) * stats.sem(values))
    return {"mean": mean, "low": mean - half, "high": mean + half}


def summary(runs: list[dict[str, Any]], bases: list[Said]) -> dict[str, Any]:
    def over(get: Callable[[dict[str, Any]], float]) -> dict[str, float]:
        return limits([get(run) for run in runs])

    pairs = [apart(a, b) for a, b in combinations(bases, 2)]
    points = {
        "other seeds": {k: limits([p[k] for p in pairs]) for k in ("tvd", "jsd")} if pairs else {},
        "uniform": {k: over(lambda r, k=k: r["uniform_apart"][k]) for k in ("tvd", "jsd")},
        "per sentence": {k: over(lambda r, k=k: r["per_instance"][k]) for k in ("tvd", "jsd")},
    }
    return {
        "base": {k: over(lambda r, k=k: r["base"][k]) for k in ("f1", "accuracy")},
        "uniform": {k: over(lambda r, k=k: r["uniform"][k]) for k in ("f1", "accuracy")},
        "guides": {g: {k: over(lambda r, g=g, k=k: r["guides"][g][k]) for k in ("f1", "accuracy")} for g in GUIDES},
        "curve": [
            {"lambda": weight} | {k: over(lambda r, i=i, k=k: r["curve"][i][k]) for k in ("tvd", "jsd", "f1")}
            for i, weight in enumerate(LAMBDAS)
        ],
        "points": points,
    }


def shown(value: dict[str, float]) -> str:
    return f"{value['mean']:.3f} [{value['low']:.3f}, {value['high']:.3f}]"


def report(found: dict[str, dict[str, Any]]) -> None:
    """The tables as markdown."""
    names = list(found)
    rule = "|---" * (len(names) + 1) + "|"
    print("\n| F1 on test | " + " | ".join(names) + " |\n" + rule)
    for row in ("base", "uniform"):
        label = {"base": "its own attention", "uniform": "uniform attention, retrained"}[row]
        print(f"| {label} | " + " | ".join(shown(found[n][row]["f1"]) for n in names) + " |")
    print("\n| MLP guided by: F1 on test | " + " | ".join(names) + " |\n" + rule)
    for guide in GUIDES:
        print(f"| {guide} | " + " | ".join(shown(found[n]["guides"][guide]["f1"]) for n in names) + " |")
    for name in names:
        print(f"\n| {name} | TVD of the output | JSD of attention | F1 |\n|---|---|---|---|")
        for point in found[name]["curve"]:
            cells = " | ".join(shown(point[k]) for k in ("tvd", "jsd", "f1"))
            print(f"| adversary, λ = {point['lambda']:g} | {cells} |")
        for label, point in found[name]["points"].items():
            if point:
                print(f"| {label} | {shown(point['tvd'])} | {shown(point['jsd'])} | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with train.tsv, dev.tsv and test.tsv")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=500, help="training steps of 128 sentences, for every model")
    parser.add_argument("--train", type=int, help="training sentences (all); a smaller number is a smoke test")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--processes", type=int, default=1, help="seeds and architectures at the same time")
    parser.add_argument("--out", type=Path, default=Path("attention_debate.json"), help="where the JSON goes")
    parser.add_argument("--plot", type=Path, help="draw TVD against JSD (needs matplotlib)")
    arguments = parser.parse_args()
    started = time.perf_counter()
    data, vocabulary = read(arguments.data, arguments.train, "cpu")
    sizes = {name: len(split.labels_N) for name, split in data.items()}
    settings = {"sentences": sizes, "vocabulary": vocabulary, "seeds": arguments.seeds, "steps": arguments.steps}
    settings |= {"torch": str(torch.__version__), "device": arguments.device, "processes": arguments.processes}
    if arguments.device.startswith("cuda"):
        settings["device"] = torch.cuda.get_device_name()
    result: dict[str, Any] = {"settings": settings, "runs": {}, "summary": {}}
    jobs = [(name, seed) for seed in range(arguments.seeds) for name in arguments.models]
    task = partial(work, folder=arguments.data, count=arguments.train, device=arguments.device, steps=arguments.steps)
    done: dict[Job, tuple[dict[str, Any], Said]] = {}
    for (name, seed), found in done_jobs(jobs, arguments.processes, task):
        done[name, seed] = found
        spent = time.perf_counter() - started
        print(f"{name}, seed {seed}: base F1 {found[0]['base']['f1']:.3f}, {spent:.0f} s", flush=True)
        own = [done[job] for job in sorted(done) if job[0] == name]
        result["runs"][name] = [run for run, _ in own]
        result["summary"][name] = summary([run for run, _ in own], [base for _, base in own])
        settings["seconds"] = round(spent)
        arguments.out.write_text(json.dumps(result, indent=1), encoding="utf-8")  # an interrupted study keeps this
    result["summary"] = {name: result["summary"][name] for name in arguments.models}
    report(result["summary"])
    print(f"\n{settings}\nwrote {arguments.out}")
    if arguments.plot:
        from bench.attention_debate_plot import draw

        draw(result["summary"], arguments.plot)


if __name__ == "__main__":
    main()
