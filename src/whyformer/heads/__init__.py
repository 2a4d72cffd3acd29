"""Attention heads: their importance, their roles, and pruning.

>>> model, tokenizer = wf.demo.load_sentiment()
>>> wf.heads.layer_profile(model, list(wf.demo.SENTENCES), tokenizer).show()
"""

from whyformer.heads.head_circuits import Circuits, DirectShares, circuits, direct_logit, level_maps, norms_scatter
from whyformer.heads.head_roles import HeadRoles, InductionScores, induction, roles
from whyformer.heads.importance import HeadImportance, LayerProfile, head_importance, layer_profile
from whyformer.heads.pruning import LearnedGates, PruningCurve, learn_gates, pruning_curve

__all__ = [
    "Circuits",
    "DirectShares",
    "HeadImportance",
    "HeadRoles",
    "InductionScores",
    "LayerProfile",
    "LearnedGates",
    "PruningCurve",
    "circuits",
    "direct_logit",
    "head_importance",
    "induction",
    "layer_profile",
    "learn_gates",
    "level_maps",
    "norms_scatter",
    "pruning_curve",
    "roles",
]
