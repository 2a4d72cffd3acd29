"""The page docs/reports/peers.md from the rows of ``python -m bench.peers``: every figure on it comes from there.

Tables have no spaces beside bars: the documentation has a limit of words, and a bar between spaces counts as one.
"""

from __future__ import annotations

from bench.peers.environments import PEERS
from bench.peers.questions import AGREE, Row
from bench.peers.subjects import WORDS
from bench.stamp import stamp

FASTER = 1.1  # a ratio of times beyond this counts as faster
START = """# Beside other libraries

Do other libraries give the same numbers, and at what cost? Each ran in its own environment, with the same models,
inputs and questions as whyformer."""
# What peers do and whyformer does not; also in docs/limitations.md.
BETTER = (
    "shap: trees and linear models. captum, zennit, pytorch-grad-cam: convolutional networks.",
    "shapiq: interactions of more than two features. interpreto: Sobol indices, LIME, concepts.",
)
GPU = """{device}. {summary} SmolLM2 has random weights here. Not installed there: {missing}.

```
python -m bench.peers --here --device cuda --folder smol --data docs/reports/peers_gpu.json    # of this Python
python -m bench.peers --page
```"""
END = """## Method

One process per library, called in turn with whyformer after a warm-up, {device}, {threads}. (LXT changes classes of
transformers, so whyformer ran before it. inseq, bertviz and FlashTrace switch the model to eager attention, for
both.) Times: CPU milliseconds (*: wall clock, with a GPU), medians of at least three rounds, and of their
ratios (above 1: whyformer is faster). Memory: growth of the process's resident size in a warm call.
Lines: of the code in `bench/peers/` that ran, imports included. Difference: the largest, as a share of the largest
score.

```
python -m bench.smollm2 smol
python -m bench.peers --folder smol    # makes environments, asks, prints this page; --peer NAME: only one
```
"""


def table(heads: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table without spaces beside bars."""
    lines = [heads, tuple("---" for _ in heads), *rows]
    return "\n".join("|" + "|".join(line) + "|" for line in lines)


def short(value: float) -> str:
    """Two digits of a number that is not negative: 0.0042, 0.31, 5.3, 870, 1e-07."""
    if value == 0 or not 1e-3 <= value < 1000:
        return f"{value:.0e}" if value and value < 1 else f"{value:.0f}"
    return f"{value:.2g}" if value < 100 else f"{value:.0f}"


def answers(data: Row) -> list[tuple[str, Row]]:
    """All answered questions with the name of their peer."""
    return [(name, row) for name, peer in data["peers"].items() for row in peer["questions"] if "failed" not in row]


def agreed(row: Row) -> bool:
    """Whether two libraries give the same numbers."""
    return bool(row["difference"] <= AGREE)


def costs(data: Row) -> str:
    """The table of all questions: difference, time, memory and lines."""
    rows = []
    for name, row in answers(data):
        seconds, memory, lines = row["median"], row["megabytes"], row["lines"]
        wall = "" if row.get("clock") == "process_time" else "*"
        pair = [f"{memory['theirs']:.0f}/{memory['ours']:.0f}", f"{lines['theirs']}/{lines['ours']}"]
        took = [short(seconds[who] * 1e3) + wall for who in ("theirs", "ours")]
        rows.append((name, row["about"], short(row["difference"]), *took, short(row["ratio"]), *pair))
    return table(("library", "question", "difference", "ms", "ms here", "ratio", "MB", "lines"), rows)


def differing(data: Row) -> str:
    """The table of numbers that are not the same, with reasons; a difference without one is shown as unexplained."""
    rows = [
        (
            name,
            row["about"],
            "" if row["rank correlation"] is None else f"{row['rank correlation']:.2f}",
            row["differs"] or "**not explained**",
        )
        for name, row in answers(data)
        if not agreed(row)
    ]
    return table(("library", "question", "rank correlation", "why"), rows)


def refused(data: Row, most: int = 60) -> str:
    """The table of attempts that one of the two refused."""
    rows = []
    for name, peer in data["peers"].items():
        for row in peer["attempts"]:
            words = [row[who] if row[who] == "runs" else f"`{row[who][:most]}`" for who in ("theirs", "ours")]
            rows.append((name, row["about"], *words))
    return table(("library", "attempt", "there", "here"), [tuple(" ".join(c.split()) for c in row) for row in rows])


def failures(data: Row) -> str:
    """Peers and questions without a result, and the reason."""
    rows = [(name, "", peer["failed"]) for name, peer in data["peers"].items() if peer.get("failed")]
    for name, peer in data["peers"].items():
        rows += [(name, row["about"], row["failed"]) for row in peer["questions"] if "failed" in row]
    rows += [(name, "", "not asked in this run") for name in PEERS if name not in data["peers"]]
    return table(("library", "question", "reason"), [(a, b, f"`{c}`") for a, b, c in rows]) if rows else ""


def summary(data: Row) -> str:
    """Counts that the page begins with."""
    rows = [row for _, row in answers(data)]
    same, told = sum(map(agreed, rows)), sum(not agreed(row) and bool(row["differs"]) for row in rows)
    slower, faster = sum(row["ratio"] < 1 / FASTER for row in rows), sum(row["ratio"] > FASTER for row in rows)
    return (
        f"Of {len(rows)} questions to {len(data['peers'])} libraries, {same} have the same numbers (difference at most "
        f"{AGREE:g}) and {told} differ for a known reason. whyformer is faster in {faster} and slower in {slower}."
    )


def wins(data: Row) -> str:
    """What peers do better: measured times first, then what only they have."""
    slow = [(name, row) for name, row in answers(data) if row["ratio"] < 1 / FASTER]
    words = [f"{name}, {row['about']} ({short(1 / row['ratio'])})" for name, row in slow]
    items = [f"Faster there (how many times): {'; '.join(words)}."] if words else []
    return "\n".join(f"- {item}" for item in [*items, *BETTER])


def pins(data: Row) -> str:
    """Versions that ran, by peer."""
    rows = []
    for name, peer in data["peers"].items():
        ran = {k: v for k, v in peer.get("versions", {}).items() if k not in ("numpy", "python", "torch")}
        rows.append((name, ", ".join(f"{k} {v}" for k, v in ran.items()) or ", ".join(peer["pins"])))
    return table(("library", "versions"), rows)


def on_a_gpu(data: Row) -> list[str]:
    """The part of the page about another device: the same table, and who did not run there."""
    missing = ", ".join(name for name in PEERS if name not in data["peers"])
    said = GPU.format(device=data["machine"], summary=summary(data), missing=missing or "none")
    return ["## On a GPU", said, costs(data)]


def page(data: Row, gpu: Row | None = None) -> str:
    """The whole page."""
    peers = data["peers"].values()
    used = dict.fromkeys(name for _, row in answers(data) for name in (row["subject"], row["timed"]))
    parts = [START, summary(data), "## Numbers, time, memory, lines", costs(data)]
    if any(not agreed(row) for _, row in answers(data)):
        parts += ["## Why do numbers differ?", differing(data)]
    parts += on_a_gpu(gpu) if gpu else []
    parts += ["## Where are they better?", wins(data)]
    if any(peer["attempts"] for peer in peers):
        parts += ["## What is refused?", refused(data), "(`bench/peers/attempts.py`, commit 826731d8)"]
    if failures(data):
        parts += ["## What did not run?", failures(data)]
    dates = [peer["date"] for peer in peers if "date" in peer]
    device = {"device": data["machine"], "threads": f"{data['threads']} thread{'s' * (data['threads'] > 1)}"}
    parts += [END.format(**device).strip()]
    parts += ["Models: " + "; ".join(WORDS[name] for name in used) + ".", pins(data)]
    made = max(dates, default="1970-01-01"), data.get("commit", "0" * 8), data["machine"]
    parts += [stamp(*made, data.get("versions", ""), "python -m bench.peers")]
    return "\n\n".join(parts) + "\n"
