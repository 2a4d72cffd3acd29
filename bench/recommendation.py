"""What recommend chooses for the shipped sentiment model, and how that does on sentences that did not choose it.

``python -m bench.recommendation --data dev.tsv`` reads lines of ``sentence<TAB>label`` (SST-2); ``--out`` writes the
results as JSON and pages. Sentences are drawn with a seed; the first draw chooses and the second tests.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import numpy as np

import whyformer as wf
from bench.timing import machine
from whyformer.demo import load_sentiment

SLOW = {"random", "shap", "value_zeroing", "attention_flow", "decompx"}  # --all takes them too


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--inputs", type=int, default=200)
    parser.add_argument("--scopes", nargs="*", default=["dataset", "label", "instance"])
    parser.add_argument("--value", default="logit", help="RFT of the logit, or (the authors) of the probability")
    parser.add_argument("--replace", default=None)
    parser.add_argument("--compare", action="store_true", help="compare all methods on the same sentences, too")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--cache", type=Path)
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    print(machine())
    lines = [line.split("\t")[0] for line in given.data.read_text(encoding="utf-8").splitlines() if line.strip()]
    drawn = np.random.default_rng(given.seed).permutation(len(lines))[: given.inputs]
    texts = [lines[i] for i in drawn]
    methods = [m for m in wf.list_methods() if given.all or m not in SLOW]
    explainer = wf.Explainer(*load_sentiment())
    how = {"methods": methods, "replace": given.replace, "seed": given.seed, "cache": given.cache, "progress": True}
    for scope in given.scopes:
        started = time.perf_counter()
        result = explainer.recommend(texts, scope=scope, value=given.value, **how)
        print(
            f"\n{scope}: {result.candidates} candidates, {result.variants} variants, "
            f"{time.perf_counter() - started:.0f} s"
        )
        print(result.verdict)
        for outcome in result.outcomes:
            gain = "{:+.3f} ({:+.3f} to {:+.3f})".format(*outcome.over_attention)
            print(
                f"  {outcome.cost_class:24} AOPC {outcome.mean:.3f} ({outcome.low:.3f} to {outcome.high:.3f}), "
                f"over last-layer attention {gain}  {outcome.name}"
            )
        if given.out is not None:
            given.out.mkdir(parents=True, exist_ok=True)
            for ending in ("json", "html", "png"):
                result.save(given.out / f"recommend-{scope}.{ending}")
    if given.compare:
        compared = explainer.compare(texts, **how)
        compared.show()
        if given.out is not None:
            for ending in ("json", "html", "png"):
                compared.save(given.out / f"compare.{ending}")


if __name__ == "__main__":
    main()
