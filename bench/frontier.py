"""Faithfulness against passes: what every method reaches on the shipped sentiment model, and for how many forwards.

    python -m bench.frontier [--data dev.tsv] [--inputs 150] [--methods two_ended occlusion] [--out frontier.json]

Sentences are made here from templates, or read from lines of ``sentence<TAB>label`` (SST-2) and drawn with a seed.
Judged is the probability of the predicted class with [MASK] for what is absent, [CLS] and [SEP] always there:
comprehensiveness is how far it falls without the highest 1, 5, 10, 20 and 50 % of the tokens, sufficiency how far with
these alone. Differences are paired: the same sentences, 95 % limits by bootstrap over them.
"""

from __future__ import annotations

import argparse
import itertools
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

import whyformer as wf
from bench.timing import machine
from whyformer.demo import load_sentiment
from whyformer.engines.perturbation.ranking import only_top, without_top
from whyformer.intervals import spread

Array = np.ndarray[Any, Any]

SHARES = (0.01, 0.05, 0.1, 0.2, 0.5)
EVALUATIONS = (64, 128, 256)
MASKED = {"baseline": "mask", "keep_special": True}
CONTENDERS: dict[str, tuple[str, dict[str, Any]]] = {
    "random": ("random", {}),
    "generic_attention": ("generic_attention", {}),
    "value_x_gradient": ("value_x_gradient", {}),
    "attn_lrp": ("attn_lrp", {}),
    "integrated_gradients": ("integrated_gradients", {}),
    "integrated_gradients, [MASK]": ("integrated_gradients", MASKED),
    "occlusion": ("occlusion", {"replace": "mask"}),
    "two_ended": ("two_ended", {"replace": "mask"}),
    **{f"shap {n}": ("shap", {"evaluations": n}) for n in EVALUATIONS},
    **{f"shap {n}, regression": ("shap", {"evaluations": n, "algorithm": "regression"}) for n in EVALUATIONS},
    **{f"shap {n}, guided": ("shap", {"evaluations": n, "guide": "auto"}) for n in EVALUATIONS},
    "shap auto, guided": ("shap", {"evaluations": "auto", "guide": "auto"}),
}
GRADIENT_FORM = "two ends by gradient"


@dataclass(frozen=True)
class Row:
    """One method: passes per sentence, and per sentence comprehensiveness and sufficiency."""

    name: str
    forwards: float
    backwards: float
    values_I2: Array


class Judge:
    """Sentences of the shipped model with what it says of them when some of their tokens are masked."""

    def __init__(self, explainer: wf.Explainer, texts: Sequence[str]) -> None:
        self.explainer, self.texts = explainer, list(texts)
        self.model: Any = explainer.model
        self.tokenizer: Any = explainer.processor
        self.ids = [torch.tensor(self.tokenizer(text)["input_ids"]) for text in self.texts]
        special = torch.tensor(self.tokenizer.all_special_ids)
        self.free = [(~torch.isin(ids, special)).numpy() for ids in self.ids]
        self.classes = [int(self._logits(ids[None])[0].argmax()) for ids in self.ids]

    @torch.no_grad()
    def _logits(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=ids).logits
        return logits

    def judged(self, number: int, scores_U: Array) -> tuple[float, float]:
        """Comprehensiveness and sufficiency of scores for one sentence."""
        ids, free = self.ids[number], self.free[number]
        scores_P = np.asarray(scores_U)[free]
        present = np.concatenate([np.ones((1, len(scores_P)), bool), without_top(scores_P, SHARES)])
        present = np.concatenate([present, only_top(scores_P, SHARES)])
        batch = ids.repeat(len(present), 1)
        batch[:, torch.from_numpy(free)] = torch.where(
            torch.from_numpy(present), batch[:, torch.from_numpy(free)], self.tokenizer.mask_token_id
        )
        probability = self._logits(batch).softmax(-1)[:, self.classes[number]].numpy()
        falls = probability[0] - probability[1:].reshape(2, len(SHARES)).mean(1)
        return float(falls[0]), float(falls[1])

    def row(self, name: str, scores: Sequence[Array], forwards: float, backwards: float) -> Row:
        values = [self.judged(number, scores_U) for number, scores_U in enumerate(scores)]
        return Row(name, forwards, backwards, np.array(values))

    def of_method(self, name: str, method: str, options: dict[str, Any]) -> Row:
        explained = self.explainer.explain(self.texts, method=method, **options)
        costs = [(e.cost.forwards, e.cost.backwards) for e in explained]
        return self.row(name, [e.scores for e in explained], *np.mean(costs, 0).tolist())

    def by_gradient(self) -> Row:
        """Input x gradient at both ends of the path from all [MASK] to the sentence: two forwards, two backwards."""
        embedding = self.model.get_input_embeddings()
        scores = []
        for ids, free, index in zip(self.ids, self.free, self.classes, strict=True):
            nothing = torch.where(torch.from_numpy(free), self.tokenizer.mask_token_id, ids)
            ends = embedding(torch.stack([nothing, ids])).detach().requires_grad_()
            gradient = torch.autograd.grad(self.model(inputs_embeds=ends).logits[:, index].sum(), ends)[0]
            scores.append(((ends[1] - ends[0]) * gradient.mean(0)).sum(-1).detach().numpy())
        return self.row(GRADIENT_FORM, scores, 2, 2)


def table(rows: Sequence[Row]) -> str:
    """Means with 95 % limits."""
    lines = ["| scores | forwards + backwards | comprehensiveness ↑ | sufficiency ↓ |", "|---|---|---|---|"]
    for row in rows:
        mean, low, high = spread(row.values_I2)
        said = [f"{m:.3f} ({a:.3f} to {b:.3f})" for m, a, b in zip(mean, low, high, strict=True)]
        passes = f"{row.forwards:.3g}" + (f" + {row.backwards:.3g}" if row.backwards else "")
        lines.append(f"| {row.name} | {passes} | {said[0]} | {said[1]} |")
    return "\n".join(lines)


def difference(one: Row, other: Row) -> tuple[Array, Array, Array]:
    """How much better the one is than the other, in both: mean and limits, above zero is better."""
    return spread((one.values_I2 - other.values_I2) * [1, -1])


def claims(rows: dict[str, Row]) -> list[tuple[str, bool]]:
    """What is held of them, each with its figures and whether it holds."""
    said = []
    for better, other, holds, words in CLAIMS:
        if better in rows and other in rows:
            mean, low, high = difference(rows[better], rows[other])
            figures = [f"{m:+.3f} ({a:+.3f} to {b:+.3f})" for m, a, b in zip(mean, low, high, strict=True)]
            text = f"{better} {words} {other}: comprehensiveness {figures[0]}, sufficiency {figures[1]}"
            said.append((text, bool(holds(low, high).all())))
    return said


Holds = Callable[[Array, Array], Array]
CLAIMS: list[tuple[str, str, Holds, str]] = [
    ("two_ended", "occlusion", lambda low, high: low > 0, "is above"),
    ("two_ended", "integrated_gradients", lambda low, high: low > 0, "is above"),
    ("two_ended", "integrated_gradients, [MASK]", lambda low, high: low > 0, "is above"),
    ("shap 64, guided", "shap 64, regression", lambda low, high: low > 0, "is above"),
    ("shap 64, guided", "shap 128", lambda low, high: high >= 0, "is level with"),
    ("shap 64, guided", "shap 128, regression", lambda low, high: high >= 0, "is level with"),
    (GRADIENT_FORM, "two_ended", lambda low, high: high >= 0, "is level with"),
]


# Sentences of two or three clauses, of which one may contradict the other.

SUBJECTS = ("the film", "this movie", "the story", "the second half", "the cast", "the director 's latest work")
VERBS = ("is", "was", "turned out to be", "remains", "is never less than", "is hardly")
KINDS = {
    "good": ("wonderful", "moving", "a delight", "smart and funny", "beautifully acted", "an honest pleasure"),
    "bad": ("boring", "a mess", "dull and predictable", "painfully slow", "a waste of time", "badly written"),
}
LINKS = (", and", ", but", "; even so ,", "because")
ENDS = (".", "in the end .", ", as my friends told me after the show .", "for most of its two hours .")


def made_sentences(count: int, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)
    words = [word for kind in KINDS.values() for word in kind]
    clauses = [" ".join(parts) for parts in itertools.product(SUBJECTS, VERBS, words)]
    drawn = generator.choice(len(clauses), (count, 2))
    return [
        f"{clauses[one]} {generator.choice(LINKS)} {clauses[other]} {generator.choice(ENDS)}" for one, other in drawn
    ]


def read_sentences(path: Path, count: int, seed: int) -> list[str]:
    lines = [line.split("\t")[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [lines[i] for i in np.random.default_rng(seed).permutation(len(lines))[:count]]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--inputs", type=int, default=150)
    parser.add_argument("--methods", nargs="*", choices=[*CONTENDERS, GRADIENT_FORM], help="all where none is named")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args(argv)
    print(machine())
    texts = (
        made_sentences(options.inputs, options.seed)
        if options.data is None
        else read_sentences(options.data, options.inputs, options.seed)
    )
    judge = Judge(wf.Explainer(*load_sentiment()), texts)
    print(f"{len(texts)} sentences of {np.mean([f.sum() for f in judge.free]):.1f} tokens")
    rows: dict[str, Row] = {}
    for name in options.methods or [*CONTENDERS, GRADIENT_FORM]:
        started = time.perf_counter()
        rows[name] = judge.by_gradient() if name == GRADIENT_FORM else judge.of_method(name, *CONTENDERS[name])
        print(f"{time.perf_counter() - started:4.0f} s  {table([rows[name]]).splitlines()[-1]}", flush=True)
    print(table(list(rows.values())))
    held = claims(rows)
    for text, holds in held:
        print(f"{'holds' if holds else 'FAILS'}: {text}")
    if options.out is not None:
        options.out.write_text(json.dumps({name: row.values_I2.tolist() for name, row in rows.items()}))
    return 0


if __name__ == "__main__":
    main()
