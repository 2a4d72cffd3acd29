"""Questions to ContextCite (context-cite 0.0.4) and AT2 (at2 0.0.1): documents, a question and an answer.

ContextCite: random prompts with half of the sources, and a lasso regression of the answer's log-odds on which sources
are there. AT2: attention of every head from the answer to every source; its weights of the heads are for other models,
so the mean over heads is compared.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from bench.peers.questions import Question

ABLATIONS = 32


@dataclass(frozen=True)
class Case:
    """The same prompt, answer and sentences for all."""

    prompt: str
    written: str
    units: tuple[tuple[int, int], ...]  # characters of the prompt


def case(model: Any, tokenizer: Any, question: str, documents: list[str], answer: str) -> Case:
    from whyformer.explainer import CoreExplainer
    from whyformer.inputs.units import sentences
    from whyformer.language.citations import prompt_with

    names = [f"document {number}" for number in range(1, len(documents) + 1)]
    prompt, places = prompt_with(CoreExplainer(model, tokenizer), question, names, documents)
    texts = zip(documents, places, strict=True)
    units = tuple((begin + a, begin + b) for text, (_, begin) in texts for a, b in sentences(text))
    return Case(str(prompt), answer, units)


def context_cite(model: Any, tokenizer: Any, known: Case) -> list[float]:
    """ContextCite's weight of each source."""
    from context_cite import ContextCiter  # type: ignore[import-not-found]
    from context_cite.context_partitioner import BaseContextPartitioner  # type: ignore[import-not-found]

    class Units(BaseContextPartitioner):  # type: ignore[misc]
        """A prompt, of which some units can be left out."""

        def __init__(self) -> None:
            super().__init__(known.prompt)
            self.units = known.units

        @property
        def num_sources(self) -> int:
            return len(self.units)

        def split_context(self) -> None:
            pass

        def get_source(self, index: int) -> str:
            return str(self.context[slice(*self.units[index])])

        def get_context(self, mask: Any = None) -> str:
            text = str(self.context)
            for at in reversed(range(len(self.units))):
                if mask is not None and not mask[at]:
                    text = text[: self.units[at][0]] + text[self.units[at][1] :]
            return text

    class Citer(ContextCiter):  # type: ignore[misc]
        """ContextCite on a prompt that has its chat template already."""

        def _get_prompt_ids(self, mask: Any = None, return_prompt: bool = False) -> Any:
            prompt = self.partitioner.get_context(mask)
            ids = self.tokenizer.encode(prompt, add_special_tokens=False)
            return (ids, prompt) if return_prompt else ids

    citer = Citer(model, tokenizer, known.prompt, "", num_ablations=ABLATIONS, partitioner=Units())
    citer._cache["output"] = known.prompt + known.written
    scores = citer.get_attributions(0, len(known.written), verbose=False)
    return [float(score) for score in np.asarray(scores)]


def attention_features(model: Any, tokenizer: Any, known: Case) -> list[list[float]]:
    """AT2's features: attention of every head from the answer to each source."""
    import torch
    from at2.attribution.attention import get_attention_weights  # type: ignore[import-not-found]

    coded = tokenizer(known.prompt + known.written, return_offsets_mapping=True, add_special_tokens=False)
    ids, places = torch.tensor([coded["input_ids"]], device=model.device), np.array(coded["offset_mapping"])
    answer = np.flatnonzero(places[:, 1] > len(known.prompt))
    read = {"attribution_start": int(answer[0]), "attribution_end": int(answer[-1]) + 1, "model_type": "llama"}
    with torch.no_grad():
        states = [layer[:, :-1] for layer in model(ids, output_hidden_states=True).hidden_states]
        attention = get_attention_weights(model, states, **read).mean(2).flatten(0, 1).cpu().numpy()  # heads x tokens
    inside = [(places[:-1, 1] > a) & (places[:-1, 0] < b) for a, b in known.units]
    return [[round(float(value), 6) for value in attention[:, one].sum(1)] for one in inside]


def context_cite_sentences(*asked: Any) -> Any:
    known = case(*asked)
    return lambda: context_cite(*asked[:2], known)


def our_citations(model: Any, tokenizer: Any, question: str, documents: list[str], answer: str) -> Any:
    import whyformer as wf

    def call() -> Any:
        return wf.cite(model, question, documents, processor=tokenizer, answer=answer).scores[0]

    return call


def at2_attention(*asked: Any) -> Any:
    known = case(*asked)
    return lambda: np.mean(attention_features(*asked[:2], known), axis=1)


def our_attention(model: Any, tokenizer: Any, *asked: Any) -> Any:
    import whyformer as wf

    known = case(model, tokenizer, *asked)

    def call() -> Any:
        how = {"method": "raw_attention", "layers": "mean", "span": True, "units": list(known.units)}
        return wf.explain(model, (known.prompt, known.written), tokenizer, **how).scores

    return call


LASSO = "a lasso over 32 random prompts there, attn_lrp here"
SUBJECT = "documents"

QUESTIONS: dict[str, list[Question]] = {
    "context-cite": [
        Question(
            "sentences behind an answer", SUBJECT, context_cite_sentences, our_citations, LASSO, counted=context_cite
        )
    ],
    "at2": [
        Question("attention to sentences", SUBJECT, at2_attention, our_attention, counted=attention_features),
    ],
}
