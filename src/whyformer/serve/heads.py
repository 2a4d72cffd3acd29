"""Layers × heads: who attends to whom in an input, and how much the explained score depends on each head."""

from __future__ import annotations

import math
from base64 import b64encode
from collections import defaultdict
from typing import Any

import numpy as np

from whyformer.errors import NotOffered, WhyformerError
from whyformer.serve.explaining import Working
from whyformer.serve.models import ServedModel
from whyformer.serve.store import Store
from whyformer.serve.subject import aim_of, numbers_of, require_same_answer, stored, subject_of
from whyformer.types import Explanation, Units
from whyformer.views.image import shrunk

MOST_CELLS = 600_000  # of all heads together
WIDEST = 96  # rows and columns of one head; of longer inputs, neighbours stand together


def heads(served: ServedModel, identity: str, store: Store, item: int = 0) -> Working:
    """The attention of every head over one stream, and its importance."""
    subject = subject_of(store, identity, item)
    raw, explanation = served.opened(subject.question.input, store), subject.first
    require_same_answer(served, raw, explanation, subject.question.units)
    if served.kind == "similarity":
        raise NotOffered("two texts are read one after the other here: their heads have no map in common.")
    record = served.explainer.record([raw])
    sites = [site for site in record.sites if site.kind == "self" and site.windows == 1]
    if not sites:
        raise NotOffered("this model attends within windows or between streams: its heads have no map over the input.")
    side = min(WIDEST, int(math.sqrt(MOST_CELLS / max(1, sum(site.attention_BHQK.shape[1] for site in sites)))))
    several = len({site.streams for site in sites}) > 1
    names: list[list[str]] = []
    layers = []
    for site in sites:
        maps_HQK = site.attention_BHQK[0].float().cpu().numpy()
        cells = np.stack([shrunk(map_QK, side) for map_QK in maps_HQK])
        steps = np.rint(cells / (cells.max(axis=(1, 2), keepdims=True) + 1e-12) * 255).clip(0, 255).astype(np.uint8)
        entropy_H = -(maps_HQK * np.log(maps_HQK + 1e-12)).sum(-1).mean(-1)
        labels = labels_of(explanation.units, site.streams[1], maps_HQK.shape[-1])
        if labels is not None and labels not in names:
            names.append(labels)
        layers.append(
            {
                "path": site.path,
                "stream": site.streams[1] if several else None,
                "names": None if labels is None else names.index(labels),
                "heads": len(cells),
                "rows": cells.shape[1],
                "columns": cells.shape[2],
                "whole": cells.shape[1:] == maps_HQK.shape[1:],
                "highest": [round(float(m.max()), 5) for m in maps_HQK],
                "entropy": [round(float(e), 4) for e in entropy_H],
                "data": b64encode(steps.tobytes()).decode(),
            }
        )
    yield
    about = {"layers": layers, "names": names, "importance": _importance(served, raw, explanation, layers)}
    return stored(store, subject, "heads", about)


def labels_of(units: Units, stream: str, count: int) -> list[str] | None:
    """What stands at the positions of a stream, where the units say so: all of them, or those of that stream."""
    members = [label for label, at in zip(units.labels, units.stream, strict=True) if at == stream]
    return next((list(each) for each in (units.labels, members) if len(each) == count), None)


def _importance(
    served: ServedModel, raw: Any, explanation: Explanation, layers: list[dict[str, Any]]
) -> list[list[float | None]] | None:
    """A row per layer that is shown. Layers are known by their path: those that have no map are measured, too."""
    from whyformer.heads.importance import head_importance

    explainer = served.explainer
    try:
        aim = aim_of(served, explanation)
        importance = head_importance(explainer.model, [raw], processor=explainer.processor, target=aim)
    except WhyformerError:  # the maps are there without it
        return None
    rows: dict[str, list[list[float | None]]] = defaultdict(list)
    for path, scores in zip(importance.paths, importance.scores, strict=True):
        rows[path].append(numbers_of(scores))
    paths = [layer["path"] for layer in layers]
    if any(len(rows[path]) != paths.count(path) for path in paths):
        return None
    return [rows[path].pop(0) for path in paths]
