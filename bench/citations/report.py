"""The tables of bench/citations: which method finds the sources, and which drop makes a source a citation.

What is fitted (the least share of the largest drop, AT2's weights of the heads) is fitted on the cases with an even
number for those with an odd one, and the other way round: every case is judged by what was fitted without it.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bench.needle_report import table, written
from whyformer.evidence import interval
from whyformer.language.citations import LEAST_SHARE, METHOD, SUPPORT

Row = dict[str, Any]
ABLATION, HEADS, TOP = "ablation", "AT2", 3
THRESHOLDS = tuple(sorted({0.0, SUPPORT, math.log(2), 1.0, 2.0, 3.0, 4.0, 5.0, 6.0}))
SHARES = tuple(sorted({0.0, LEAST_SHARE, 0.1, 0.3, 0.5, 0.7, 0.9}))
FITTED_ON = ("needle", "verifiability", "xor_attriqa", "morehopqa")  # neither thoughts nor calls
STEPS, RATE, DECAY = 300, 0.02, 0.03  # of the training of AT2's weights
Judged = tuple[float, float, float]  # precision, recall and F1


def merged(rows: list[Row]) -> list[Row]:
    """One row per case, with the methods of all runs."""
    cases: dict[tuple[str, int], Row] = {}
    for row in rows:
        known = cases.setdefault((row["set"], row["case"]), {**row, "scores": {}, "seconds": {}})
        known |= {key: row[key] for key in ("drops", "with", "without", "features") if key in row}
        known["scores"] |= row["scores"]
        known["seconds"] |= row["seconds"]
        if "drops" in row:
            known["scores"][ABLATION] = row["drops"]
    return list(cases.values())


def heads_trained(rows: list[Row]) -> None:
    """Add AT2's scores: attention of heads, weighted so that the sums correlate with the drops of the other half."""
    import torch

    usable = [row for row in rows if row.get("features") and row.get("drops") and len(set(row["drops"])) > 1]
    for odd in (0, 1):
        torch.manual_seed(0)
        train = [row for row in usable if row["case"] % 2 != odd and row["set"] in FITTED_ON]
        if len(train) < 2:
            return
        width = len(train[0]["features"][0])
        weights = torch.full((width,), 1 / width, requires_grad=True)
        optimizer = torch.optim.AdamW([weights], lr=RATE / width, weight_decay=DECAY)
        pairs = [(torch.tensor(row["features"]), torch.tensor(row["drops"])) for row in train]
        for _ in range(STEPS):
            optimizer.zero_grad()
            loss = torch.stack([-torch.corrcoef(torch.stack([x @ weights, y]))[0, 1] for x, y in pairs]).mean()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
        for row in rows:
            if row.get("features") and row["case"] % 2 == odd:
                row["scores"][HEADS] = (torch.tensor(row["features"]) @ weights).tolist()


def cited(row: Row, method: str, share: float, threshold: float = SUPPORT, top: int = TOP) -> set[int]:
    """The sources that wf.cite shows: of the first ``top`` by score, those whose drop is above the threshold and at
    least this share of the largest."""
    best = np.argsort(-np.array(row["scores"][method]), kind="stable")[:top]
    largest = max(row["drops"][i] for i in best)
    return {int(i) for i in best if row["drops"][i] > threshold and row["drops"][i] >= share * largest}


def judged(row: Row, method: str, share: float, threshold: float = SUPPORT, top: int = TOP) -> Judged:
    """Precision, recall and F1 of the citations; all are 0 if nothing is cited."""
    shown, gold = cited(row, method, share, threshold, top), {i for i, source in enumerate(row["gold"]) if source}
    right = len(shown & gold)
    precision, recall = right / max(len(shown), 1), right / len(gold)
    return precision, recall, 2 * right / (len(shown) + len(gold))


def hit(row: Row, method: str) -> bool:
    """Whether a source has the highest score; a tie with another unit does not count."""
    scores, gold = np.array(row["scores"][method]), np.array(row["gold"], bool)
    return bool(scores[gold].max() > scores[~gold].max())


def mean_f1(rows: list[Row], method: str, share: float, threshold: float = SUPPORT, top: int = TOP) -> float:
    """The mean over sets of the mean over cases."""
    values: dict[str, list[float]] = {}
    for row in rows:
        values.setdefault(row["set"], []).append(judged(row, method, share, threshold, top)[2])
    return float(np.mean([np.mean(some) for some in values.values()]))


def measured(rows: list[Row], method: str) -> list[Row]:
    """The rows of FITTED_ON that have drops and the method."""
    return [row for row in rows if row["set"] in FITTED_ON and row.get("drops") and method in row["scores"]]


def best_share(rows: list[Row], method: str) -> float:
    """The share with the highest mean F1; of equal ones the lowest."""
    return max(SHARES, key=lambda share: mean_f1(rows, method, share))


def by_halves(rows: list[Row], method: str) -> dict[int, float]:
    """The shares for cases with an even (0) and an odd number (1), each fitted on the others."""
    return {odd: best_share([row for row in rows if row["case"] % 2 != odd], method) for odd in (0, 1)}


def by_set(rows: list[Row], methods: list[str], shares: dict[int, float]) -> str:
    lines = []
    for name in dict.fromkeys(row["set"] for row in rows):
        for method in methods:
            some = [row for row in rows if row["set"] == name and method in row["scores"]]
            if not some:
                continue
            line = [name, method, str(len(some)), written(sum(hit(row, method) for row in some), len(some))]
            known = [row for row in some if row.get("drops")]
            values = np.array([judged(row, method, shares[row["case"] % 2]) for row in known])
            if known:
                low, high = np.clip(interval(values[:, 2]), 0, 1)
                mean = values.mean(0)
                line += [f"{mean[0]:.2f}", f"{mean[1]:.2f}", f"{mean[2]:.2f} [{float(low):.2f}, {float(high):.2f}]"]
            lines.append(line + [""] * (7 - len(line)))
    return table(["set", "method", "cases", "hit@1", "precision", "recall", "F1"], lines)


def over_sets(rows: list[Row], methods: list[str], shares: dict[int, float]) -> str:
    """All sets of FITTED_ON together, on the cases that every method has."""
    some = [row for row in rows if row["set"] in FITTED_ON and row.get("drops")]
    some = [row for row in some if all(method in row["scores"] for method in methods)]
    lines = []
    for method in methods:
        values = np.array([judged(row, method, shares[row["case"] % 2]) for row in some])
        low, high = np.clip(interval(values[:, 2]), 0, 1)
        mean = values.mean(0)
        line = [method, written(sum(hit(row, method) for row in some), len(some)), f"{mean[0]:.2f}", f"{mean[1]:.2f}"]
        lines.append([*line, f"{mean[2]:.2f} [{float(low):.2f}, {float(high):.2f}]"])
    lines.sort(key=lambda line: -float(line[1].split("%")[0]))
    return f"{len(some)} cases\n" + table(["method", "hit@1", "precision", "recall", "F1"], lines)


def by_rule(rows: list[Row], method: str) -> str:
    """F1 by what makes a source a citation."""
    lines = [
        [f"{threshold:.2f}", *(f"{mean_f1(rows, method, share, threshold):.2f}" for share in SHARES)]
        for threshold in THRESHOLDS
    ]
    return table(["drop above", *(f"share {share:.2f}" for share in SHARES)], lines)


def by_top(rows: list[Row], method: str) -> str:
    lines = [[str(top), f"{mean_f1(rows, method, LEAST_SHARE, top=top):.2f}"] for top in (1, 2, 3, 5)]
    return table(["most citations", "F1"], lines)


def by_support(rows: list[Row]) -> str:
    """How often ``influenced`` is true, with the sources and if they are removed from the prompt."""
    both = [row for row in rows if row.get("without") is not None]
    lines = []
    for threshold in THRESHOLDS:
        true = sum(max(row["with"]) > threshold for row in both)
        false = sum(max(row["without"], default=-np.inf) > threshold for row in both)
        lines.append([f"{threshold:.2f}", written(true, len(both)), written(false, len(both))])
    return table(["drop above", "influenced, with the sources", "influenced, without them"], lines)


def shortened(rows: list[Row]) -> list[Row]:
    """One row per case, rounded, with AT2's scores instead of the attention that they are computed from."""
    rows = merged(rows)
    heads_trained(rows)
    kept = []
    for row in rows:
        numbers = {key: [float(f"{x:.5g}") for x in row[key]] for key in ("drops", "with", "without") if key in row}
        scores = {name: [float(f"{x:.5g}") for x in some] for name, some in row["scores"].items() if name != ABLATION}
        facts = {key: row[key] for key in ("set", "case", "gold", "tokens")}
        kept.append(facts | numbers | {"scores": scores, "seconds": {}})
    return kept


def report(rows: list[Row]) -> None:
    rows = merged(rows)
    heads_trained(rows)
    names = list(dict.fromkeys(name for row in rows for name in row["scores"]))
    everywhere = [name for name in names if any(name in r["scores"] and r["set"] in FITTED_ON for r in rows)]
    packages = {"ContextCite", HEADS}
    fit = measured(rows, METHOD)
    shares = by_halves(fit, METHOD)
    print(f"least share of the largest drop, each fitted on the other half: {shares[0]}, {shares[1]}")
    print("\n" + over_sets(rows, [name for name in everywhere if name not in packages], shares))
    if packages & set(names):
        print("\n" + over_sets(rows, everywhere, shares))
    for text in (by_rule(fit, METHOD), by_top(fit, METHOD), by_support(fit), by_set(rows, names, shares)):
        print("\n" + text)
