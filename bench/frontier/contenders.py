"""Who takes part: every registered method of one pass, and the ways to spend more of them."""

from __future__ import annotations

from typing import Any

import whyformer as wf
from bench.known_truth.scoring import VARIANTS

Contenders = dict[str, tuple[str, dict[str, Any]]]
FEW = 2  # forwards, and backwards, at most: a method of one pass
UNITS = 50  # at which a cost is asked for
SLOW = {"attention_flow"}  # one pass, and then a network flow for every unit
EVALUATIONS = (64, 128, 256)
AVERAGED = ("value_x_gradient", "attn_lrp")  # over maskings of the input, alone and as guides
ON_REQUEST = ("shap 256",)  # how names of rows begin that are measured only where --methods names them
OURS = {"auto", "two_ended", "shap 64, guided", "shap 128, guided", "shap 256, guided"}  # not to be had elsewhere
REFERENCE = "generic_attention"  # the method of one pass that the others of one pass are compared with


def of_one_pass() -> Contenders:
    """By the registry: a method that is added there takes part."""
    cheap = {}
    for name, method in wf.list_methods().items():
        forwards, backwards = method.cost(UNITS, **method.defaults)
        if forwards <= FEW and backwards <= FEW and name not in SLOW:
            cheap[name] = (name, dict[str, Any]())
    return cheap | VARIANTS


def of_many_passes(replace: str | None, guided: bool = True, hold: int | None = None) -> Contenders:
    """``replace``: what stands for the absent, the same for methods and judge; ``hold``: what never is."""
    away: dict[str, Any] = {} if replace is None else {"replace": replace}
    among = away if hold is None else away | {"hold": hold}
    made: Contenders = {
        "auto": ("auto", {}),  # the default: what it takes of each input, and what it fills in, is its own choice
        "integrated_gradients": ("integrated_gradients", {}),
        "smooth_grad": ("smooth_grad", {}),
        "occlusion": ("occlusion", away),
        "two_ended": ("two_ended", among),
    }
    for base in AVERAGED:
        averaged = f"{base}(maskings=8)"
        made[averaged] = (base, {"maskings": 8})
        for passes in (128, 512):
            made[f"two_ended {passes}, {averaged}"] = ("two_ended", {"guide": averaged, "passes": passes} | among)
    for count in EVALUATIONS:
        made[f"shap {count}"] = ("shap", {"evaluations": count} | among)
        made[f"shap {count}, regression"] = ("shap", {"evaluations": count, "algorithm": "regression"} | among)
        if guided:
            made[f"shap {count}, guided"] = ("shap", {"evaluations": count, "guide": "auto"} | among)
    return made
