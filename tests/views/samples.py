"""Explanations and records made by hand: the same on every machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from whyformer.results.types import Cost, Explanation, Generation, Record, Site, Target, Units

TEXT = "I did not like it, but unbelievable!"
TOKENS = ("[CLS]", "i", "did", "not", "like", "it", ",", "but", "un", "##believable", "!", "[SEP]")
SPANS = ((0, 0), (0, 1), (2, 5), (6, 9), (10, 14), (15, 17), (17, 18), (19, 22), (23, 25), (25, 35), (35, 36), (0, 0))
WORDS = (-1, 0, 1, 2, 3, 4, 5, 6, 7, 7, 8, -1)
SCORES = (1.25, 0.01, 0.02, 0.3, 0.12, 0.005, 0.0, 0.08, 0.15, 0.2, 0.03, 0.04)
GRID = (3, 4)
STORED = Path(__file__).parent / "old_results"


def still(html: str) -> str:
    """A page as browsers without scripts have it."""
    return re.sub(r"<script.*?</script>", "", html, flags=re.DOTALL)


def text(
    method: str = "generic_attention", *, signed: bool = False, scores: Any = SCORES, **changes: Any
) -> Explanation:
    units = Units(
        labels=TOKENS,
        special=tuple(t.startswith("[") for t in TOKENS),
        stream=("text",) * len(TOKENS),
        word=WORDS,
        spans=SPANS,
        text=TEXT,
    )
    values = np.asarray(scores, np.float32) * (np.where(np.arange(len(TOKENS)) % 3 == 0, -1, 1) if signed else 1)
    explanation = Explanation(
        scores=values.astype(np.float32),
        units=units,
        target=Target(1, "positive"),
        scalar="logit",
        value=3.43125,
        prediction=Target(1, "positive"),
        method=method,
        cost=Cost(forwards=1, backwards=1, seconds=0.0123),
        readout="first position",
        signed=signed,
        model="BertForSequenceClassification",
    )
    return explanation.replace(**changes)


def long_text(size: int) -> Explanation:
    """Words w0, w1, …, the last with the highest score, and a map between them."""
    units = Units(tuple(f"w{i}" for i in range(size)), (False,) * size, ("text",) * size)
    matrix = np.random.default_rng(0).random((size, size), dtype=np.float32)
    return text(scores=np.linspace(0, 1, size)).replace(units=units, matrix=matrix, readout="")


def image(method: str = "generic_attention", *, signed: bool = False, **changes: Any) -> Explanation:
    rows, columns = GRID
    count = rows * columns
    values = np.linspace(-1 if signed else 0.1, 1, count)
    explanation = text(method, signed=False).replace(
        scores=np.concatenate([[3.0], values]).astype(np.float32),
        units=Units(
            labels=("[CLS]", *(f"patch {r},{c}" for r in range(1, rows + 1) for c in range(1, columns + 1))),
            special=(True, *[False] * count),
            stream=("image",) * (count + 1),
            grid=GRID,
            image_size=(48, 64),
        ),
        signed=signed,
        target=Target(2, "zebra"),
        prediction=Target(2, "zebra"),
        model="ViTForImageClassification",
    )
    return explanation.replace(**changes)


def table(**changes: Any) -> Explanation:
    labels = ("age", "income", "city")
    explanation = text("occlusion", signed=False).replace(
        scores=np.array([0.4, -0.2, 0.1], np.float32),
        units=Units(labels=labels, special=(False,) * 3, stream=("table",) * 3),
        signed=True,
        readout="",
        model="FTTransformer",
    )
    return explanation.replace(**changes)


def picture() -> np.ndarray[Any, Any]:
    """(48, 64, 3) a slope of colours."""
    ys, xs = np.mgrid[:48, :64]
    return np.stack([ys * 5, xs * 4, (ys + xs) * 2], -1).astype(np.uint8)


def attention(batch: int = 1, heads: int = 2, queries: int = 4, keys: int = 4, seed: int = 0) -> torch.Tensor:
    values = np.random.default_rng(seed).random((batch, heads, queries, keys)).astype(np.float32) ** 4
    return torch.from_numpy(values / values.sum(-1, keepdims=True))


def encoder_record() -> Record:
    sites = tuple(Site(f"layer.{i}.attention", "self", ("", ""), attention(2, seed=i)) for i in range(2))
    return Record(sites, torch.zeros(2, 3))


def encoder_decoder_record() -> Record:
    sites = []
    for i in range(2):
        sites.append(Site(f"encoder.layer.{i}.self", "self", ("", ""), attention(keys=5, queries=5, seed=i)))
    for i in range(2):
        sites.append(Site(f"decoder.layer.{i}.self", "self", ("", ""), attention(keys=3, queries=3, seed=i)))
        sites.append(Site(f"decoder.layer.{i}.cross", "cross", ("", ""), attention(keys=5, queries=3, seed=i)))
    return Record(tuple(sites), torch.zeros(1, 3))


ANSWER = ("In", " Lis", "bon.", " Ask", " him.")


def generation(*, signed: bool = False, method: str = "generic_attention") -> Generation:
    """A chat with an answer of two sentences: each token came from the word of its number, and a bit of all others."""
    stored, tokens = Generation.load(STORED / "Generation.json"), []
    for step in stored.tokens:
        scores = np.where(np.arange(len(step.scores)) == 2, -0.5, step.scores) if signed else step.scores
        checks = {"first_token_share": float(3.0 / np.abs(scores.astype(np.float32)).sum())}
        tokens.append(step.replace(scores=scores.astype(np.float32), checks=checks, method=method, signed=signed))
    return Generation(tuple(tokens), stored.text, stored.sentences)


def prompt(scores: Any, labels: list[str], **changes: Any) -> Explanation:
    """The next token of a language model, after a plain prompt."""
    spans: list[tuple[int, int]] = []
    for label in labels:
        start = spans[-1][1] + 1 if spans else 0
        spans.append((start, start + len(label)))
    count, written = len(labels), " ".join(labels)
    units = Units(tuple(labels), (False,) * count, ("text",) * count, word=tuple(range(count)), spans=tuple(spans),
                  text=written)  # fmt: skip
    values = np.asarray(scores, np.float32)
    made = text(checks={"first_token_share": float(abs(values[0]) / np.abs(values).sum())}, readout="last position")
    paris = Target(3, " Paris")
    return made.replace(scores=values, units=units, target=paris, prediction=paris, model="GPT2LMHeadModel", **changes)


def long_prompt(strong: int) -> Explanation:
    """A thousand words, one of which counts."""
    scores = np.full(1000, 0.01)
    scores[0], scores[strong] = 20.0, 1.0
    return prompt(scores, [f"word{i}" for i in range(1000)])


def contrast(signed: bool) -> Explanation:
    made = prompt([0.1, 0.6, -0.4 if signed else 0.4, 0.2], ["The", "capital", "of", "France"], signed=signed)
    return made.replace(target=Target(3, " Paris", versus=4, versus_label=" London"), method="occlusion")
