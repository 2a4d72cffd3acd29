"""Every kind of head importance, on the tiny models."""

from __future__ import annotations

from typing import Any

from tests.methods.properties import model_of
from tests.models import CASES
from whyformer.heads import HeadImportance, head_importance

TARGET = 1
KINDS: list[dict[str, Any]] = [
    {"kind": "gradient"},
    {"kind": "gradient", "per": "token"},
    {"kind": "confidence"},
    {"kind": "relevance"},
    {"kind": "relevance", "rule": "generic"},
    {"kind": "ablation"},
    {"kind": "ablation", "ablate": "all_but_one"},
]
NAMES = [" ".join(map(str, kind.values())) for kind in KINDS]


def found(name: str, inputs: Any = None, **how: Any) -> HeadImportance:
    if how["kind"] != "confidence":
        how.setdefault("target", TARGET)
    return head_importance(model_of(name), CASES[name].inputs() if inputs is None else inputs, **how)
