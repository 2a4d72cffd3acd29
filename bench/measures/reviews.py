"""YELP-HAT (Sen et al. 2020): do scores of words agree with the words that people marked in reviews?

Agreement is the area under the ROC curve (0.5: none) of the scores of a review against a map of marked words: that of
each of three people, their intersection (consensus) and their union. The same of people: one map against another.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import numpy as np
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import whyformer as wf
from bench.measures.eraser import auc
from bench.measures.sets import HAT, REVIEWS, Review, reviews
from training.machine import say
from whyformer.demo import load_sentiment
from whyformer.shapes import Array

Row = dict[str, Any]
METHODS = ("raw_attention", "generic_attention", "attn_lrp", "input_x_gradient", "integrated_gradients", "two_ended",
           "random")  # fmt: skip
PEOPLE = "one person against another"


def text_of(review: Review) -> tuple[str, list[tuple[int, int]]]:
    """Return the words joined by spaces, and the characters of each."""
    ends = np.cumsum([len(word) + 1 for word in review.words]) - 1
    return " ".join(review.words), [
        (int(end) - len(word), int(end)) for end, word in zip(ends, review.words, strict=True)
    ]


def agreement(scores_P: Array, maps_AP: Array) -> dict[str, float]:
    """Return the AUC against each person (mean), the consensus and the union; nan if a map has no or all words."""
    wholes = {"consensus": maps_AP.all(0), "union": maps_AP.any(0)}
    one = {"person": float(np.mean([auc(scores_P, map_P) for map_P in maps_AP]))}
    return one | {
        name: auc(scores_P, map_P) if 0 < map_P.sum() < len(map_P) else float("nan") for name, map_P in wholes.items()
    }


def among_people(maps_AP: Array) -> float:
    """Return the mean AUC of one person's map, as scores, against another's."""
    return float(np.mean([auc(a_P.astype(float), b_P) for a_P, b_P in permutations(maps_AP, 2)]))


def rows_of(folder: Path, model_folder: Path | None, count: int) -> Iterator[Row]:
    """Yield, per length of reviews, a row of people and one row per method."""
    if model_folder is None:
        model, tokenizer = load_sentiment()
    else:
        model = AutoModelForSequenceClassification.from_pretrained(model_folder, attn_implementation="eager").eval()
        tokenizer = AutoTokenizer.from_pretrained(model_folder)
    explainer, most = wf.Explainer(model, tokenizer), model.config.max_position_embeddings
    labels = list(model.config.id2label.values())  # negative, positive
    for words in HAT:
        common = {"part": "yelp_hat", "words": words if model_folder is None else f"{words}, {model_folder.name}"}
        try:
            known = list(reviews(folder, words))
        except SystemExit as error:  # without one part, the others can be measured
            if not (folder / REVIEWS).exists():
                raise
            say(f"YELP-HAT, {words}: left out. {error}")
            continue
        cases = []
        for review in known:
            text, spans = text_of(review)
            if len(tokenizer(text)["input_ids"]) <= most:
                cases.append((review, text, spans))
        cases = cases[:count]
        if not cases:
            yield {**common, "reviews": 0}
            continue
        yield {**common, "method": PEOPLE, "values": {"person": [among_people(np.array(r.maps)) for r, _, _ in cases]}}
        for name in METHODS:
            found, right = [], []
            for number, (review, text, spans) in enumerate(cases):
                how = {"method": name, "units": spans, "progress": False, "seed": number}
                why = explainer.explain(text, **how)
                right.append(labels.index(str(why.prediction)) == review.label)
                found.append(agreement(np.asarray(why.scores, float), np.array(review.maps)))
            values = {key: [round(one[key], 4) for one in found] for key in found[0]}
            yield {**common, "method": name, "values": values, "right": float(np.mean(right))}
