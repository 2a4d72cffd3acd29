"""Units that have no bar of their own: special tokens, and what is not on the scale of the others. One line tells."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from whyformer.types import Explanation, Units
from whyformer.views.facts import number, percent
from whyformer.views.scales import first_token, in_template, outshining, plain_units

MOST_NAMED = 3
TEMPLATE_WORDS = "What the chat template put in"


def folded_units(explanation: Explanation) -> list[int]:
    """What [CLS] gets is often tens of times what any word gets, and no word's doing. None where nothing is left."""
    aside = {first_token(explanation), outshining(explanation)}
    plain = {i for i in plain_units(explanation.units) if i not in aside}
    return [i for i in range(len(explanation.units)) if i not in plain] if plain else []


def folded_words(explanation: Explanation, members: Sequence[int] | None = None) -> str:
    """[CLS] and [SEP], added by the tokenizer, hold 81.2 % of all scores (1.003) and have no bar."""
    kinds: dict[str, list[int]] = {}
    for i in folded_units(explanation):
        if members is None or i in members:
            kinds.setdefault(_kind(explanation, i), []).append(i)
    return " ".join(_sentence(explanation, kind, group) for kind, group in kinds.items())


def _kind(explanation: Explanation, index: int) -> str:
    units = explanation.units
    if index == first_token(explanation):
        return "the first token, where language models often park attention"
    if index == outshining(explanation):
        return "where the answer is read"
    if in_template(units, index):
        return TEMPLATE_WORDS
    if _is_written(units, index):
        return "special and written in the text"
    return "added by the tokenizer" if units.grid is None and "table" not in units.stream else "added by the model"


def _is_written(units: Units, index: int) -> bool:
    """Its characters are there to be read: what a tokenizer adds has none."""
    if units.text is None:
        return False
    if units.spans is None:
        return units.labels[index] in units.text
    start, end = units.spans[index]
    return end > start


def _sentence(explanation: Explanation, kind: str, group: list[int]) -> str:
    units, scores = explanation.units, explanation.scores
    total, held = float(np.abs(scores).sum()), float(np.abs(scores[group]).sum())
    share = f"{percent(held / total)} of all scores ({number(float(scores[group].sum()))})" if held else "no score"
    if kind == TEMPLATE_WORDS:
        return f"{kind} holds {share} and has no bar."
    labels = [units.labels[i] if units.special[i] else repr(units.labels[i].lstrip("Ġ▁")) for i in group]
    hold, have = ("hold", "have") if len(group) > 1 else ("holds", "has")
    return f"{_listed(list(dict.fromkeys(labels)))}, {kind}, {hold} {share} and {have} no bar."


def _listed(names: list[str]) -> str:
    """a, b and c; of many the first, and how many more"""
    if len(names) > MOST_NAMED:
        return f"{', '.join(names[:MOST_NAMED])} and {len(names) - MOST_NAMED} more"
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
