"""Many sentences of one model: learned explanations against guided Shapley values. Time, and faithfulness.

    python -m bench.learn_dataset reviews.csv.xz [--model FOLDER] [--sentences 20000] [--learn 40000 96000]
                                  [--timed 300] [--judged 200] [--device cuda]

Sentences are those of reviews (csv.xz) or lines of ``sentence<TAB>label``. Learned: wf.learn with so many forwards,
certificate included, and one explanation of each sentence. Guided: shap with 64 evaluations, timed on some of the
sentences and multiplied. Faithfulness is compared on sentences that were not learned from; differences are paired, with
95 % limits.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import whyformer as wf
from bench.finetune import cut, labelled
from bench.frontier.claims import difference
from bench.frontier.subject import Row
from bench.frontier.text import Sentences, load_classifier, read_sentences
from bench.timing import machine
from whyformer.demo import load_sentiment

GUIDED: dict[str, Any] = {"method": "shap", "evaluations": 64, "guide": "auto"}
WORDS = (4, 40)  # of a sentence
BATCH = 64


def sentences(path: Path, count: int) -> list[str]:
    if path.suffix != ".xz":
        return read_sentences(path, count, 0)
    found: list[str] = []
    for review, _ in labelled(path):
        parts = review.replace("<br />", " ").replace("!", ".").replace("?", ".").split(". ")
        found += [part.strip() for part in parts if WORDS[0] <= len(part.split()) <= WORDS[1]]
        if len(found) >= count:
            return found[:count]
    raise SystemExit(f"{path} holds {len(found)} sentences, not {count}.")


def timed(device: str, work: Callable[[], Any]) -> tuple[float, Any]:
    started = time.perf_counter()
    done = work()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return time.perf_counter() - started, done


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", type=Path, help="folder of a classifier, instead of the shipped one")
    parser.add_argument("--sentences", type=int, default=20_000)
    parser.add_argument("--learn", nargs="+", type=int, default=[40_000])
    parser.add_argument("--timed", type=int, default=300, help="sentences of which guided values are timed")
    parser.add_argument("--judged", type=int, default=200)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    model, tokenizer = load_sentiment() if asked.model is None else load_classifier(asked.model)
    texts = [cut(tokenizer, text) for text in sentences(asked.data, asked.sentences + asked.judged)]
    texts, held = texts[: asked.sentences], texts[asked.sentences :]
    explainer = wf.Explainer(model.to(asked.device), tokenizer)
    print(machine(asked.device), f"{type(model).__name__}, {len(texts):,} sentences", flush=True)
    judge = Sentences(explainer, held)
    guided = judge.of_method("shap 64, guided", "shap", {k: v for k, v in GUIDED.items() if k != "method"})
    explainer.explain(texts[:2], **GUIDED, progress=False)
    seconds, _ = timed(asked.device, lambda: explainer.explain(texts[: asked.timed], **GUIDED, progress=False))
    slow = seconds / asked.timed * len(texts)
    print(
        f"guided: {1000 * seconds / asked.timed:.1f} ms a sentence, {slow:,.0f} s for all; {said(guided)}", flush=True
    )
    for forwards in asked.learn:
        learning, learned = timed(
            asked.device, lambda forwards=forwards: explainer.learn(texts, forwards=forwards, progress=False)
        )
        explaining, _ = timed(
            asked.device,
            lambda learned=learned: [
                explainer.explain(texts[i : i + 1024], method=learned, batch_size=BATCH, progress=False)
                for i in range(0, len(texts), 1024)
            ],
        )
        row = judge.of_method("learned", learned.name, {})
        mean, low, high = difference(row, guided)
        words = ", ".join(f"{m:+.3f} ({a:+.3f} to {b:+.3f})" for m, a, b in zip(mean, low, high, strict=True))
        print(
            f"learned, {forwards:,} forwards: {learning:.0f} s to learn, {explaining:.0f} s to explain, "
            f"{slow / (learning + explaining):.1f} times as fast; {said(row)}; over guided (comprehensiveness, "
            f"sufficiency; positive is better) {words}",
            flush=True,
        )
    return 0


def said(row: Row) -> str:
    comprehensiveness, sufficiency = row.values_IM.mean(0)[:2]
    return f"comprehensiveness {comprehensiveness:.3f}, sufficiency {sufficiency:.3f}"


if __name__ == "__main__":
    sys.exit(main())
