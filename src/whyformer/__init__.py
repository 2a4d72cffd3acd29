"""whyformer: why did your transformer say that?

What is named here, and what ``whyformer.extend`` offers to methods of your own, is public; everything else is internal.
"""

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any

from whyformer.version import __version__ as __version__

logging.getLogger(__name__).addHandler(logging.NullHandler())  # who wants to hear says so: docs/guide/interop.md

if TYPE_CHECKING:
    from whyformer import checks as checks
    from whyformer import concepts as concepts
    from whyformer import demo as demo
    from whyformer import errors as errors
    from whyformer import evaluate as evaluate
    from whyformer import extend as extend
    from whyformer import heads as heads
    from whyformer import jobs as jobs
    from whyformer import language as language
    from whyformer import methods as methods
    from whyformer import reports as reports
    from whyformer import tables as tables
    from whyformer import views as views
    from whyformer.capture.intercept import mark_attention as mark_attention
    from whyformer.checks.check import check as check
    from whyformer.checks.checkup import CheckUp as CheckUp
    from whyformer.checks.retrained import retrained_attention as retrained_attention
    from whyformer.checks.training import masked_surrogate as masked_surrogate
    from whyformer.concepts.activation_maximization import activation_maximization as activation_maximization
    from whyformer.concepts.concept_vectors import tcav as tcav
    from whyformer.evaluate.compare import compare as compare
    from whyformer.evaluate.comparison import Comparison as Comparison
    from whyformer.evaluate.recommend import recommend as recommend
    from whyformer.evaluate.recommendation import Recommendation as Recommendation
    from whyformer.heads.importance import head_importance as head_importance
    from whyformer.inputs.completions import CompletionServer as CompletionServer
    from whyformer.inputs.table_schema import Standardize as Standardize
    from whyformer.inputs.table_schema import Table as Table
    from whyformer.jobs.dataset import ExplainedDataset as ExplainedDataset
    from whyformer.jobs.job import explain_dataset as explain_dataset
    from whyformer.language.citations import Citations as Citations
    from whyformer.language.citations import cite as cite
    from whyformer.registry import list_methods as list_methods
    from whyformer.registry import list_metrics as list_metrics
    from whyformer.reports.report import Report as Report
    from whyformer.reports.report import report as report
    from whyformer.results.interop import to_captum as to_captum
    from whyformer.results.interop import to_quantus as to_quantus
    from whyformer.results.interop import to_shap as to_shap
    from whyformer.results.result import load as load
    from whyformer.results.types import ByMethod as ByMethod
    from whyformer.results.types import Explanation as Explanation
    from whyformer.results.types import Explanations as Explanations
    from whyformer.results.types import Generation as Generation
    from whyformer.results.types import Record as Record
    from whyformer.results.types import Target as Target
    from whyformer.results.types import Units as Units
    from whyformer.tables.global_explanation import explain_global as explain_global
    from whyformer.tables.permutation import feature_permutation as feature_permutation
    from whyformer.verbs import Explainer as Explainer
    from whyformer.verbs import explain as explain

# What needs torch is imported when it is first asked for, so that `whyformer --help` answers at once.
_HOMES = {
    "ByMethod": "whyformer.results.types",
    "CheckUp": "whyformer.checks.checkup",
    "Citations": "whyformer.language.citations",
    "Comparison": "whyformer.evaluate.comparison",
    "CompletionServer": "whyformer.inputs.completions",
    "ExplainedDataset": "whyformer.jobs.dataset",
    "Explainer": "whyformer.verbs",
    "Explanation": "whyformer.results.types",
    "Explanations": "whyformer.results.types",
    "Generation": "whyformer.results.types",
    "Recommendation": "whyformer.evaluate.recommendation",
    "Record": "whyformer.results.types",
    "Report": "whyformer.reports.report",
    "Standardize": "whyformer.inputs.table_schema",
    "Table": "whyformer.inputs.table_schema",
    "Target": "whyformer.results.types",
    "Units": "whyformer.results.types",
    "activation_maximization": "whyformer.concepts.activation_maximization",
    "check": "whyformer.checks.check",
    "cite": "whyformer.language.citations",
    "compare": "whyformer.evaluate.compare",
    "explain": "whyformer.verbs",
    "explain_dataset": "whyformer.jobs.job",
    "explain_global": "whyformer.tables.global_explanation",
    "feature_permutation": "whyformer.tables.permutation",
    "head_importance": "whyformer.heads.importance",
    "list_methods": "whyformer.registry",
    "list_metrics": "whyformer.registry",
    "load": "whyformer.results.result",
    "mark_attention": "whyformer.capture.intercept",
    "masked_surrogate": "whyformer.checks.training",
    "recommend": "whyformer.evaluate.recommend",
    "report": "whyformer.reports.report",
    "retrained_attention": "whyformer.checks.retrained",
    "tcav": "whyformer.concepts.concept_vectors",
    "to_captum": "whyformer.results.interop",
    "to_quantus": "whyformer.results.interop",
    "to_shap": "whyformer.results.interop",
}

_ROOMS = (
    "checks",
    "concepts",
    "demo",
    "errors",
    "evaluate",
    "extend",
    "heads",
    "jobs",
    "language",
    "methods",
    "reports",
    "tables",
    "views",
)

__all__ = [
    "ByMethod",
    "CheckUp",
    "Citations",
    "Comparison",
    "CompletionServer",
    "ExplainedDataset",
    "Explainer",
    "Explanation",
    "Explanations",
    "Generation",
    "Recommendation",
    "Record",
    "Report",
    "Standardize",
    "Table",
    "Target",
    "Units",
    "__version__",
    "activation_maximization",
    "check",
    "checks",
    "cite",
    "compare",
    "concepts",
    "demo",
    "errors",
    "evaluate",
    "explain",
    "explain_dataset",
    "explain_global",
    "extend",
    "feature_permutation",
    "head_importance",
    "heads",
    "jobs",
    "language",
    "list_methods",
    "list_metrics",
    "load",
    "mark_attention",
    "masked_surrogate",
    "methods",
    "recommend",
    "report",
    "reports",
    "retrained_attention",
    "tables",
    "tcav",
    "to_captum",
    "to_quantus",
    "to_shap",
    "views",
]


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"whyformer.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'whyformer' has no attribute {name!r}")
    value = getattr(import_module(_HOMES[name]), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return __all__
