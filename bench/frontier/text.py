"""Texts of a classifier: the probability of the predicted class, [MASK] for absent tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch

import whyformer as wf
from bench.finetune import cut, labelled
from bench.frontier.contenders import Contenders, of_many_passes, of_one_pass
from bench.frontier.subject import Array, Row, Subject
from whyformer.demo import load_sentiment

GRADIENT_FORM = "two ends by gradient"


class Sentences(Subject):
    """[CLS] and [SEP] are always there."""

    name = "text"
    masking: ClassVar[dict[str, Any]] = {"replace": "mask"}

    def __init__(self, explainer: wf.Explainer, texts: Sequence[str], others: Sequence[str] = ()) -> None:
        super().__init__(explainer, len(texts))
        self.others = others
        self.texts = list(texts)
        self.known: dict[tuple[int, bytes], float] = {}  # by text and by what of it is there
        self.model: Any = explainer.model
        self.tokenizer: Any = explainer.processor
        self.ids = [torch.tensor(self.tokenizer(text)["input_ids"]) for text in self.texts]
        special = torch.tensor(self.tokenizer.all_special_ids)
        self.free = [(~torch.isin(ids, special)).numpy() for ids in self.ids]
        self.classes = [int(self._logits(ids[None])[0].argmax()) for ids in self.ids]
        kind, layers = type(self.model).__name__, getattr(self.model.config, "num_hidden_layers", "?")
        tokens = np.mean([f.sum() for f in self.free])
        self.made_of = f"{self.count} sentences of {tokens:.1f} tokens; {kind}, {layers} layers"

    @torch.no_grad()
    def _logits(self, ids: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.model(input_ids=ids.to(self.model.device)).logits
        return logits.cpu()

    def inputs(self, rows: Sequence[int]) -> list[str]:
        return [self.texts[i] for i in rows]

    def further(self, count: int) -> list[str]:
        return list(self.others[:count]) or made_sentences(count, 1)

    def scores_P(self, number: int, explanation: wf.Explanation) -> Array:
        scores: Array = explanation.scores[self.free[number]]
        return scores

    def values(self, number: int, present_VP: Array) -> Array:
        """Methods agree on much of what to take away first: the model is asked once for each."""
        asked = [(number, present_P.tobytes()) for present_P in present_VP]
        rows = list({key: row for row, key in enumerate(asked) if key not in self.known}.values())
        if rows:
            self.known |= zip([asked[row] for row in rows], self._probabilities(number, present_VP[rows]), strict=True)
        return np.array([self.known[key] for key in asked])

    def _probabilities(self, number: int, present_VP: Array) -> list[float]:
        free = torch.from_numpy(self.free[number])
        batch = self.ids[number].repeat(len(present_VP), 1)
        batch[:, free] = torch.where(torch.from_numpy(present_VP), batch[:, free], self.tokenizer.mask_token_id)
        probabilities: list[float] = self._logits(batch).softmax(-1)[:, self.classes[number]].tolist()
        return probabilities

    def of_method(self, name: str, method: str, options: dict[str, Any]) -> Row:
        return self.by_gradient() if name == GRADIENT_FORM else super().of_method(name, method, options)

    def by_gradient(self) -> Row:
        """Input x gradient at both ends of the path from all [MASK] to the sentence: two forwards, two backwards."""
        embedding = self.model.get_input_embeddings()
        scores = []
        for ids, free, index in zip(self.ids, self.free, self.classes, strict=True):
            nothing = torch.where(torch.from_numpy(free), self.tokenizer.mask_token_id, ids)
            ends = embedding(torch.stack([nothing, ids]).to(self.model.device)).detach().requires_grad_()
            gradient = torch.autograd.grad(self.model(inputs_embeds=ends).logits[:, index].sum(), ends)[0]
            scores.append(((ends[1] - ends[0]) * gradient.mean(0)).sum(-1).detach().cpu().numpy()[free])
        return self.row(GRADIENT_FORM, scores, 2, 2)


def contenders() -> Contenders:
    others: Contenders = {
        "integrated_gradients, [PAD]": ("integrated_gradients", {"baseline": "pad"}),
        "integrated_gradients, [CLS] stays": ("integrated_gradients", {"baseline": "mask", "keep_special": True}),
        "input_x_gradient, first block": ("input_x_gradient", {"at": "embeddings"}),
        GRADIENT_FORM: (GRADIENT_FORM, {}),
    }
    return of_one_pass() | of_many_passes("mask") | others


def subject(
    count: int,
    seed: int,
    data: Path | None = None,
    device: str = "cpu",
    folder: Path | None = None,
    others: Path | None = None,
) -> Sentences:
    texts = made_sentences(count, seed) if data is None else read_sentences(data, count, seed)
    more = [] if others is None else read_sentences(others, 10**6, seed)
    model, tokenizer = load_sentiment() if folder is None else load_classifier(folder)
    judged, learned_from = ([cut(tokenizer, text) for text in some] for some in (texts, more))
    return Sentences(wf.Explainer(model.to(device), tokenizer), judged, learned_from)


def load_classifier(folder: Path) -> tuple[Any, Any]:
    """A classifier of texts as transformers saves it; what is absent is masked, so its tokenizer has to know a mask."""
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    if tokenizer.mask_token_id is None:
        raise SystemExit(f"The tokenizer of {folder} has no mask token, and absent words are masked here.")
    return AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval(), tokenizer


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
    """Some of the texts of a file, lines of ``text<TAB>label`` or a csv.xz of reviews."""
    if path.suffix == ".xz":
        lines = [text for text, _ in labelled(path)]
    else:
        lines = [line.split("\t")[0] for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [lines[i] for i in np.random.default_rng(seed).permutation(len(lines))[:count]]
