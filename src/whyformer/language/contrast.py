"""Why one answer rather than another: the explanations of two continuations of a prompt, held against each other."""

from __future__ import annotations

from typing import Any

import numpy as np

from whyformer.errors import BadInput
from whyformer.explainer import Explainer
from whyformer.inputs.base import Source
from whyformer.inputs.language import ANSWER, says_tokens
from whyformer.inputs.processing import processed
from whyformer.inputs.units import pick
from whyformer.types import Cost, Explanation, Target

DIFFERENCE = (
    "scores are those of the first answer's {} less those of the second's, over the prompt, which both "
    "follow; what stands in the answers themselves has none."
)


def is_of_answers(source: Source, target: Any) -> bool:
    """``target=(a, b)`` names texts of which one at least is no single token of a language model."""
    modality = source.modality
    if not source.raw or not says_tokens(modality.model) or modality.processor is None or modality.multi_input:
        return False
    texts = [text for text in target if isinstance(text, str)]
    tokenizer = getattr(modality.processor, "tokenizer", modality.processor)
    return len(texts) == 2 and any(
        len(processed(tokenizer, t, add_special_tokens=False)["input_ids"]) > 1 for t in texts
    )


def contrast(explainer: Explainer, source: Source, target: tuple[str, str], method: Any, **how: Any) -> Any:
    """One Explanation per prompt (a dict of them by method for several): why the first answer, not the second."""
    if any(not isinstance(prompt, str) for prompt in source.raw):
        raise BadInput("target=(one answer, another) is asked of a prompt: give the prompt alone, without an answer.")
    if target[0] == target[1]:
        raise BadInput(f"target=({target[0]!r}, {target[1]!r}): both are the same answer. Name two that differ.")
    if how.get("generate") is not None or how.get("choices") is not None:
        raise BadInput("target=(one answer, another) names both answers: leave generate and choices out.")
    if how.pop("span") not in (True, False):
        raise BadInput("target=(one answer, another) is about whole answers: leave span out.")
    how["span"] = True
    said = [explainer.explain([(p, answer) for p in source.raw], method=method, **how) for answer in target]
    if isinstance(said[0], dict):
        both = {name: [_less(*pair) for pair in zip(said[0][name], said[1][name], strict=True)] for name in said[0]}
        return {name: each[0] for name, each in both.items()} if source.single else both
    differences = [_less(*pair) for pair in zip(*said, strict=True)]
    return differences[0] if source.single else differences


def _less(one: Explanation, other: Explanation) -> Explanation:
    roles = one.units.role or ()
    prompt = [index for index, role in enumerate(roles) if role != ANSWER]
    units = pick(one.units, prompt)
    scores: Any = (one.scores[prompt] - other.scores[prompt]).astype(np.float32)
    value = one.value - other.value
    target = Target(0, one.target.label, 1, other.target.label, one.target.position)
    likelier = one if value >= 0 else other
    return one.replace(
        scores=scores,
        units=units,
        target=target,
        value=value,
        prediction=Target(0 if likelier is one else 1, likelier.target.label, position=one.target.position),
        cost=Cost.of_all([one.cost, other.cost]),
        checks={one.scalar: one.value, f"{one.scalar}_versus": other.value},
        warnings=(*dict.fromkeys((*one.warnings, *other.warnings)), DIFFERENCE.format(one.scalar.replace("_", "-"))),
        matrix=None,
        layers=None,
        detail=None,
        signed=True,
    )
