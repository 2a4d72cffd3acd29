"""Questions to ContextCite and AT2: documents, a question and an answer. Their code is bench/citations/packages.py."""

from __future__ import annotations

from typing import Any

import numpy as np

from bench.citations.packages import attention_features, context_cite
from bench.citations.sets import Case, case_of
from bench.peers.questions import Question

ABLATIONS = 32


def case(model: Any, tokenizer: Any, question: str, documents: list[str], answer: str) -> Case:
    """The same prompt, answer and sentences for all."""
    from whyformer.explainer import CoreExplainer

    return case_of(CoreExplainer(model, tokenizer), "", question, documents, answer, [[] for _ in documents])


def context_cite_sentences(model: Any, tokenizer: Any, question: str, documents: list[str], answer: str) -> Any:
    known = case(model, tokenizer, question, documents, answer)

    def call() -> Any:
        return context_cite(model, tokenizer, known, ABLATIONS)

    return call


def our_citations(model: Any, tokenizer: Any, question: str, documents: list[str], answer: str) -> Any:
    import whyformer as wf

    def call() -> Any:
        return wf.cite(model, question, documents, processor=tokenizer, answer=answer).scores[0]

    return call


def at2_attention(model: Any, tokenizer: Any, question: str, documents: list[str], answer: str) -> Any:
    known = case(model, tokenizer, question, documents, answer)

    def call() -> Any:
        return np.mean(attention_features(model, tokenizer, known), axis=1)

    return call


def our_attention(model: Any, tokenizer: Any, question: str, documents: list[str], answer: str) -> Any:
    import whyformer as wf

    known = case(model, tokenizer, question, documents, answer)

    def call() -> Any:
        how = {"method": "raw_attention", "layers": "mean", "span": True, "units": list(known.units)}
        return wf.explain(model, (known.prompt, known.written), tokenizer, **how).scores

    return call


LASSO = "a lasso over 32 random prompts there, attn_lrp here"

QUESTIONS: dict[str, list[Question]] = {
    "context-cite": [
        Question(
            "sentences behind an answer",
            "documents",
            context_cite_sentences,
            our_citations,
            LASSO,
            counted=context_cite,
        )
    ],
    "at2": [
        Question("attention to sentences", "documents", at2_attention, our_attention, counted=attention_features),
    ],
}
