"""whyformer: why did your transformer say that?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The folder first: below, its name becomes the function that lists what is in it.
import whyformer.methods as _methods  # noqa: F401
from whyformer.registry import methods as methods
from whyformer.registry import metrics as metrics
from whyformer.version import __version__ as __version__

if TYPE_CHECKING:
    from whyformer.capture.intercept import mark_attention as mark_attention
    from whyformer.checks.check import check as check
    from whyformer.checks.result import CheckUp as CheckUp
    from whyformer.concepts.activation_maximization import activation_maximization as activation_maximization
    from whyformer.concepts.tcav import tcav as tcav
    from whyformer.evaluate.compare import Comparison as Comparison
    from whyformer.evaluate.compare import compare as compare
    from whyformer.evaluate.recommend import Recommendation as Recommendation
    from whyformer.evaluate.recommend import recommend as recommend
    from whyformer.explainer import Explainer as Explainer
    from whyformer.explainer import explain as explain
    from whyformer.heads.importance import head_importance as head_importance
    from whyformer.inputs.table_schema import Standardize as Standardize
    from whyformer.inputs.table_schema import Table as Table
    from whyformer.result import load as load
    from whyformer.result import to_shap as to_shap
    from whyformer.tables.global_explanation import explain_global as explain_global
    from whyformer.tables.permutation import feature_permutation as feature_permutation
    from whyformer.types import Explanation as Explanation
    from whyformer.types import Record as Record
    from whyformer.types import Target as Target
    from whyformer.types import Units as Units

# What needs torch is imported when it is first asked for, so that `whyformer --help` answers at once.
_HOMES = {
    "CheckUp": "whyformer.checks.result",
    "Comparison": "whyformer.evaluate.compare",
    "Explainer": "whyformer.explainer",
    "Explanation": "whyformer.types",
    "Recommendation": "whyformer.evaluate.recommend",
    "Record": "whyformer.types",
    "Standardize": "whyformer.inputs.table_schema",
    "Table": "whyformer.inputs.table_schema",
    "Target": "whyformer.types",
    "Units": "whyformer.types",
    "activation_maximization": "whyformer.concepts.activation_maximization",
    "check": "whyformer.checks.check",
    "compare": "whyformer.evaluate.compare",
    "explain": "whyformer.explainer",
    "explain_global": "whyformer.tables.global_explanation",
    "feature_permutation": "whyformer.tables.permutation",
    "head_importance": "whyformer.heads.importance",
    "load": "whyformer.result",
    "mark_attention": "whyformer.capture.intercept",
    "recommend": "whyformer.evaluate.recommend",
    "tcav": "whyformer.concepts.tcav",
    "to_shap": "whyformer.result",
}

__all__ = [
    "CheckUp",
    "Comparison",
    "Explainer",
    "Explanation",
    "Recommendation",
    "Record",
    "Standardize",
    "Table",
    "Target",
    "Units",
    "__version__",
    "activation_maximization",
    "check",
    "compare",
    "explain",
    "explain_global",
    "feature_permutation",
    "head_importance",
    "load",
    "mark_attention",
    "methods",
    "metrics",
    "recommend",
    "tcav",
    "to_shap",
]


def __getattr__(name: str) -> Any:
    if name in ("demo", "heads", "tables", "views"):
        return import_module(f"whyformer.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'whyformer' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
