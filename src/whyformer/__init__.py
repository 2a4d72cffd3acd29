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
    from whyformer.checks.attention_debate import attention_debate as attention_debate
    from whyformer.checks.check import check as check
    from whyformer.checks.exam import CheckUp as CheckUp
    from whyformer.checks.retrained import retrained_attention as retrained_attention
    from whyformer.checks.training import masked_surrogate as masked_surrogate
    from whyformer.concepts.activation_maximization import activation_maximization as activation_maximization
    from whyformer.concepts.concept_vectors import tcav as tcav
    from whyformer.evaluate.compare import compare as compare
    from whyformer.evaluate.comparison import Comparison as Comparison
    from whyformer.evaluate.recommend import recommend as recommend
    from whyformer.evaluate.recommendation import Recommendation as Recommendation
    from whyformer.heads.importance import head_importance as head_importance
    from whyformer.inputs.completions import ChatServer as ChatServer
    from whyformer.inputs.completions import CompletionServer as CompletionServer
    from whyformer.inputs.table_schema import Standardize as Standardize
    from whyformer.inputs.table_schema import Table as Table
    from whyformer.jobs.dataset import ExplainedDataset as ExplainedDataset
    from whyformer.jobs.job import explain_dataset as explain_dataset
    from whyformer.language.citations import Citations as Citations
    from whyformer.language.citations import cite as cite
    from whyformer.language.traces import Trace as Trace
    from whyformer.language.tracing import trace as trace
    from whyformer.learned.learned import Learned as Learned
    from whyformer.learned.learning import learn as learn
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
    from whyformer.verbs import estimate as estimate
    from whyformer.verbs import explain as explain

# Public names by module. Imported on first use, so that `whyformer --help` answers without torch.
_HOMES = {
    name: f"whyformer.{home}"
    for home, names in {
        "capture.intercept": "mark_attention",
        "checks.check": "check",
        "checks.attention_debate": "attention_debate",
        "checks.exam": "CheckUp",
        "checks.retrained": "retrained_attention",
        "checks.training": "masked_surrogate",
        "concepts.activation_maximization": "activation_maximization",
        "concepts.concept_vectors": "tcav",
        "evaluate.compare": "compare",
        "evaluate.comparison": "Comparison",
        "evaluate.recommend": "recommend",
        "evaluate.recommendation": "Recommendation",
        "heads.importance": "head_importance",
        "inputs.completions": "ChatServer CompletionServer",
        "inputs.table_schema": "Standardize Table",
        "jobs.dataset": "ExplainedDataset",
        "jobs.job": "explain_dataset",
        "language.citations": "Citations cite",
        "language.traces": "Trace",
        "language.tracing": "trace",
        "learned.learned": "Learned",
        "learned.learning": "learn",
        "registry": "list_methods list_metrics",
        "reports.report": "Report report",
        "results.interop": "to_captum to_quantus to_shap",
        "results.result": "load",
        "results.types": "ByMethod Explanation Explanations Generation Record Target Units",
        "tables.global_explanation": "explain_global",
        "tables.permutation": "feature_permutation",
        "verbs": "Explainer estimate explain",
    }.items()
    for name in names.split()
}
_ROOMS = "checks concepts demo errors evaluate extend heads jobs language methods reports tables views".split()
__all__ = sorted(["__version__", *_HOMES, *_ROOMS])  # noqa: PLE0605  (type checkers read the imports above)


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
