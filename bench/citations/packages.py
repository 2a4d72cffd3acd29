"""ContextCite and AT2 on the cases of bench/citations, with the same model, prompt, answer and sources.

ContextCite (context-cite 0.0.4): random prompts with half of the sources, and a lasso regression of the answer's
log-odds on which sources are there. AT2 (at2 0.0.1): attention of every head from the answer to every source; its
weights of the heads are for other models and have to be trained, which ``report.heads_trained`` does.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from bench.citations.sets import Case

Row = dict[str, Any]


def context_cite(model: Any, tokenizer: Any, case: Case, ablations: int) -> list[float]:
    """ContextCite's weight of each source."""
    from context_cite import ContextCiter  # type: ignore[import-not-found]
    from context_cite.context_partitioner import BaseContextPartitioner  # type: ignore[import-not-found]

    class Units(BaseContextPartitioner):  # type: ignore[misc]
        """A prompt, of which some units can be left out."""

        def __init__(self) -> None:
            super().__init__(case.prompt)
            self.units = case.units

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

    citer = Citer(model, tokenizer, case.prompt, "", num_ablations=ablations, partitioner=Units())
    citer._cache["output"] = case.prompt + case.written
    scores = citer.get_attributions(*case.span, verbose=False)
    return [float(score) for score in np.asarray(scores)]


def attention_features(model: Any, tokenizer: Any, case: Case) -> list[list[float]]:
    """AT2's features: attention of every head from the answer to each source."""
    import torch
    from at2.attribution.attention import get_attention_weights  # type: ignore[import-not-found]

    coded = tokenizer(case.prompt + case.written, return_offsets_mapping=True, add_special_tokens=False)
    ids, places = torch.tensor([coded["input_ids"]], device=model.device), np.array(coded["offset_mapping"])
    start, end = (at + len(case.prompt) for at in case.span)
    answer = np.flatnonzero((places[:, 1] > start) & (places[:, 0] < end))
    read = {"attribution_start": int(answer[0]), "attribution_end": int(answer[-1]) + 1, "model_type": "llama"}
    with torch.no_grad():
        states = [layer[:, :-1] for layer in model(ids, output_hidden_states=True).hidden_states]
        attention = get_attention_weights(model, states, **read).mean(2).flatten(0, 1).cpu().numpy()  # heads x tokens
    inside = [(places[:-1, 1] > a) & (places[:-1, 0] < b) for a, b in case.units]
    return [[round(float(value), 6) for value in attention[:, one].sum(1)] for one in inside]


def packages(model: Any, tokenizer: Any, ablations: int) -> Callable[[Case, bool], Row]:
    """Return what measures a case: AT2's features, one row per source, and if wanted the scores of ContextCite."""

    def work(case: Case, ablated: bool) -> Row:
        row: Row = {"scores": {}, "seconds": {}}
        started = time.perf_counter()
        row["features"] = attention_features(model, tokenizer, case)
        row["seconds"]["AT2"] = time.perf_counter() - started
        if ablated:
            started = time.perf_counter()
            row["scores"]["ContextCite"] = context_cite(model, tokenizer, case, ablations)
            row["seconds"]["ContextCite"] = time.perf_counter() - started
        return row

    return work
