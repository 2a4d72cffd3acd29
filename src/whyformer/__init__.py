"""whyformer: why did your transformer say that?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# The folder first: below, its name becomes the function that lists what is in it.
import whyformer.methods as _methods  # noqa: F401
from whyformer.registry import methods as methods
from whyformer.registry import metrics as metrics
from whyformer.version import __version__ as __version__

if TYPE_CHECKING:
    from whyformer.bridges import to_shap as to_shap
    from whyformer.capture.marker import mark_attention as mark_attention
    from whyformer.concepts.activation_maximization import activation_maximization as activation_maximization
    from whyformer.concepts.tcav import tcav as tcav
    from whyformer.evaluate.checks.check import check as check
    from whyformer.evaluate.checks.checkup import CheckUp as CheckUp
    from whyformer.evaluate.compare import compare as compare
    from whyformer.evaluate.comparison import Comparison as Comparison
    from whyformer.evaluate.recommend import recommend as recommend
    from whyformer.evaluate.recommendation import Recommendation as Recommendation
    from whyformer.explainer import Explainer as Explainer
    from whyformer.explainer import explain as explain
    from whyformer.heads.importance import head_importance as head_importance
    from whyformer.io import load as load
    from whyformer.subjects.columns import Standardize as Standardize
    from whyformer.subjects.columns import Table as Table
    from whyformer.tables.overall import explain_global as explain_global
    from whyformer.tables.permutation import feature_permutation as feature_permutation
    from whyformer.types import Explanation as Explanation
    from whyformer.types import Record as Record
    from whyformer.types import Target as Target
    from whyformer.types import Units as Units

# What needs torch is imported when it is first asked for, so that `whyformer --help` answers at once.
_HOMES = {
    "CheckUp": "whyformer.evaluate.checks.checkup",
    "Comparison": "whyformer.evaluate.comparison",
    "Explainer": "whyformer.explainer",
    "Explanation": "whyformer.types",
    "Recommendation": "whyformer.evaluate.recommendation",
    "Record": "whyformer.types",
    "Standardize": "whyformer.subjects.columns",
    "Table": "whyformer.subjects.columns",
    "Target": "whyformer.types",
    "Units": "whyformer.types",
    "activation_maximization": "whyformer.concepts.activation_maximization",
    "check": "whyformer.evaluate.checks.check",
    "compare": "whyformer.evaluate.compare",
    "explain": "whyformer.explainer",
    "explain_global": "whyformer.tables.overall",
    "feature_permutation": "whyformer.tables.permutation",
    "head_importance": "whyformer.heads.importance",
    "load": "whyformer.io",
    "mark_attention": "whyformer.capture.marker",
    "recommend": "whyformer.evaluate.recommend",
    "tcav": "whyformer.concepts.tcav",
    "to_shap": "whyformer.bridges",
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
