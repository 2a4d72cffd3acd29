"""Which method explains when none is named, per modality and cost: what tasks with a known answer say.

The numbers are in docs/guide/known_truth.md (``python -m bench.known_truth``). Methods with the patent remark (LRP)
are left to be chosen by name, although ``cp_lrp`` leads its class. Of the rest, ``generic_attention`` finds less of the
cause than a few others but puts most of its mass on it, moves with the target, and is offered on every family, several
streams included. Models of tables are small, so there the many passes of integrated gradients are worth it.
"""

from __future__ import annotations

CLASSES = ("one forward", "forward and backward", "many passes")
DEFAULTS = {
    "text": dict(zip(CLASSES, ("value_norms", "generic_attention", "occlusion"), strict=True)),
    "image": dict(zip(CLASSES, ("value_norms", "generic_attention", "shap"), strict=True)),
    "table": dict(zip(CLASSES, ("value_norms", "saliency", "integrated_gradients"), strict=True)),
}
COST = {"text": CLASSES[1], "image": CLASSES[1], "table": CLASSES[2]}
ANYWHERE = "generic_attention"  # several streams, sound, tensors of which nothing is known


def default_method(modality: str) -> str:
    return DEFAULTS[modality][COST[modality]] if modality in DEFAULTS else ANYWHERE
