"""What an edit changed: probabilities of classes and scores of units, before and after."""

from __future__ import annotations

from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Any

from whyformer.types import Explanation, Target


def difference(before: Sequence[Explanation], after: Sequence[Explanation]) -> dict[str, Any]:
    """Of explanations of two inputs, those that answer one question; the first ones where none do."""
    one, two = next(((b, a) for b in before for a in after if _asked(b) == _asked(a)), (before[0], after[0]))
    said = [_probabilities(e.prediction) for e in (one, two)]
    names = list(dict.fromkeys([*said[1], *said[0]]))
    classes = [{"label": name, "before": said[0].get(name), "after": said[1].get(name)} for name in names]
    return {
        "prediction": [str(one.prediction), str(two.prediction)],
        "value": [float(one.value), float(two.value)],
        "scalar": two.scalar,
        "same": _asked(one) == _asked(two),
        "explained": [f"{e.method}, {e.target}" for e in (one, two)],
        "classes": classes,
        "units": _units(one, two),
    }


def _asked(explanation: Explanation) -> tuple[Any, ...]:
    return explanation.method, explanation.target, explanation.scalar, explanation.options


def _probabilities(prediction: Target) -> dict[str, float | None]:
    listed: dict[str, float | None] = {str(prediction): prediction.probability}
    return listed | {str(choice): choice.probability for choice in prediction.next or ()}


def _units(before: Explanation, after: Explanation) -> list[dict[str, Any]]:
    """In the order of the text; what was put in place of something else stands behind it."""
    old, new = before.units, after.units
    told = []
    for _, i, j, k, m in SequenceMatcher(None, old.labels, new.labels, autojunk=False).get_opcodes():
        if old.labels[i:j] == new.labels[k:m]:
            pairs: list[tuple[int | None, int | None]] = list(zip(range(i, j), range(k, m), strict=True))
        else:
            pairs = [(a, None) for a in range(i, j)] + [(None, b) for b in range(k, m)]
        for a, b in pairs:
            label = new.labels[b] if b is not None else old.labels[a or 0]
            told.append(
                {
                    "label": label,
                    "values": [_value(before, a), _value(after, b)],
                    "before": _score(before, a),
                    "after": _score(after, b),
                }
            )
    return told


def _score(explanation: Explanation, unit: int | None) -> float | None:
    return None if unit is None else round(float(explanation.scores[unit]), 6)


def _value(explanation: Explanation, unit: int | None) -> str | None:
    """What stood in a column."""
    values = explanation.units.values
    return None if unit is None or values is None else values[unit]
