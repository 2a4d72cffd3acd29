"""Attention heads: which of them matter, what they do, and how many the model needs.

>>> model, tokenizer = wf.demo.load_sentiment()
>>> wf.heads.layer_profile(model, list(wf.demo.SENTENCES), tokenizer).show()
"""

from whyformer.heads.head_circuits import Circuits as Circuits
from whyformer.heads.head_circuits import DirectShares as DirectShares
from whyformer.heads.head_circuits import circuits as circuits
from whyformer.heads.head_circuits import direct_logit as direct_logit
from whyformer.heads.head_roles import HeadRoles as HeadRoles
from whyformer.heads.head_roles import InductionScores as InductionScores
from whyformer.heads.head_roles import induction as induction
from whyformer.heads.head_roles import roles as roles
from whyformer.heads.importance import HeadImportance as HeadImportance
from whyformer.heads.importance import head_importance as head_importance
from whyformer.heads.profile import LayerProfile as LayerProfile
from whyformer.heads.profile import layer_profile as layer_profile
from whyformer.heads.pruning import LearnedGates as LearnedGates
from whyformer.heads.pruning import PruningCurve as PruningCurve
from whyformer.heads.pruning import gate_curve as gate_curve
from whyformer.heads.pruning import learn_gates as learn_gates
from whyformer.heads.pruning import pruning_curve as pruning_curve
from whyformer.heads.syntactic import SyntacticHeads as SyntacticHeads
from whyformer.heads.syntactic import syntactic as syntactic

__all__ = [
    "Circuits",
    "DirectShares",
    "HeadImportance",
    "HeadRoles",
    "InductionScores",
    "LayerProfile",
    "LearnedGates",
    "PruningCurve",
    "SyntacticHeads",
    "circuits",
    "direct_logit",
    "gate_curve",
    "head_importance",
    "induction",
    "layer_profile",
    "learn_gates",
    "pruning_curve",
    "roles",
    "syntactic",
]
