"""HateXplain in ERASER form: do the highest tokens agree with people, and does the prediction depend on them?

As in the authors' testing_with_rational.py: posts of the test split that are hateful or offensive, word pieces of BERT,
the predicted class, and the five highest tokens named. Other than there, the model has six layers (all-MiniLM-L6-v2,
fine-tuned here), texts are not cleaned again, and special tokens are never named.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer

import whyformer as wf
from bench.measures.eraser import TOP, auprc, iou_parts, named, token_f1
from bench.measures.sets import CLASSES, Post, posts
from training.machine import say
from training.sentiment.classifier import encode, fit, forward
from whyformer.shapes import Array

Row = dict[str, Any]
METHODS: dict[str, dict[str, Any]] = {
    "raw_attention": {},  # of the last layer, mean over heads: "Attn" of the paper
    "generic_attention": {},
    "attn_lrp": {},
    "input_x_gradient": {},
    "random": {},
    "occlusion": {},
    "two_ended": {},
    "integrated_gradients": {"steps": 20},
}
TRAINED, BATCH, RATE = 10_000, 32, 1e-4  # posts, in one epoch
TUNED = "hatexplain-minilm"


def tuned(folder: Path, base: Path) -> tuple[Any, Any]:
    """Return the classifier and its tokenizer; it is trained on first use, and kept in the folder."""
    path = folder / TUNED
    if not path.exists():
        torch.manual_seed(0)
        tokenizer = AutoTokenizer.from_pretrained(base)
        model = AutoModelForSequenceClassification.from_pretrained(
            base, num_labels=len(CLASSES), id2label=dict(enumerate(CLASSES)), dtype=torch.float32
        )
        train = posts(folder, "train")[:TRAINED]
        ids, lengths = encode(tokenizer, [post.text for post in train], model.device)
        labels = torch.tensor([post.label for post in train])
        settings = {"seed": 0, "batch": BATCH, "lr": RATE, "epochs": 1}
        fit(model, ids, lengths, lambda logits, batch: F.cross_entropy(logits, labels[batch]), settings, said)
        model.save_pretrained(path)
        tokenizer.save_pretrained(path)
    model = AutoModelForSequenceClassification.from_pretrained(path, attn_implementation="eager").eval()
    return model, AutoTokenizer.from_pretrained(path)


def said(epoch: int, loss: float) -> None:
    say(f"epoch {epoch}, loss {loss:.3f}")


@torch.no_grad()
def accuracy(model: Any, tokenizer: Any, texts: list[Post]) -> float:
    """Return the share of posts whose class is predicted."""
    ids, lengths = encode(tokenizer, [post.text for post in texts], model.device)
    batches = torch.arange(len(texts)).split(64)
    right = [forward(model, ids, lengths, batch).argmax(1) for batch in batches]
    return float((torch.cat(right) == torch.tensor([post.label for post in texts])).float().mean())


def pieces_of(tokenizer: Any, post: Post) -> tuple[list[int], Array]:
    """Return the word pieces of a post, without special tokens, and which of them belong to a marked word."""
    ids: list[int] = []
    marked: list[bool] = []
    for word, mark in zip(post.text.split(" "), post.marked, strict=True):
        pieces = tokenizer(word, add_special_tokens=False)["input_ids"]
        ids, marked = ids + pieces, marked + [mark] * len(pieces)
    return ids, np.array(marked)


@torch.no_grad()
def chances(model: Any, tokenizer: Any, ids: list[int]) -> torch.Tensor:
    """Return the probabilities of the classes for these word pieces."""
    tokens = torch.tensor([[tokenizer.cls_token_id, *ids, tokenizer.sep_token_id]])
    return torch.softmax(model(input_ids=tokens).logits[0], 0)


def judged(model: Any, tokenizer: Any, ids: list[int], marked_P: Array, scores_P: Array) -> dict[str, float]:
    """Return all metrics of one explanation of a post."""
    full = chances(model, tokenizer, ids)
    predicted = int(full.argmax())
    chosen = named(scores_P)
    drops = {}
    for name, kept in (("comprehensiveness", ~chosen), ("sufficiency", chosen)):
        part = chances(model, tokenizer, [piece for piece, keep in zip(ids, kept, strict=True) if keep])
        drops[name] = float(full[predicted] - part[predicted])
    precision, recall = iou_parts(scores_P, marked_P)
    plausible = {"token_f1": token_f1(scores_P, marked_P), "auprc": auprc(scores_P, marked_P)}
    return {"iou_precision": precision, "iou_recall": recall, **plausible, **drops}


def rows_of(folder: Path, base: Path, count: int) -> Iterator[Row]:
    """Yield the accuracy of the model, then one row per method with the metrics of all posts."""
    model, tokenizer = tuned(folder, base)
    test = posts(folder, "test")
    right = accuracy(model, tokenizer, test)
    yield {"part": "hatexplain", "accuracy": right, "trained": TRAINED, "tested": len(test)}
    explainer = wf.Explainer(model, tokenizer)
    cases = []
    for post in test:
        if any(post.marked):
            ids, marked_P = pieces_of(tokenizer, post)
            same = tokenizer(post.text, add_special_tokens=False)["input_ids"] == ids
            if same and len(ids) > TOP and not marked_P.all():
                cases.append((post, ids, marked_P))
    cases = cases[:count]
    for name, options in METHODS.items():
        found: list[dict[str, float]] = []
        for number, (post, ids, marked_P) in enumerate(cases):
            why = explainer.explain(post.text, method=name, progress=False, seed=number, **options)
            found.append(judged(model, tokenizer, ids, marked_P, np.asarray(why.scores)[1:-1]))
        values = {key: [round(one[key], 4) for one in found] for key in found[0]}
        yield {"part": "hatexplain", "method": name, "values": values}
