"""Tables: global explanations, permutation importance, and models whose rows attend to other rows.

>>> model, table = wf.demo.load_adult()
>>> wf.tables.explain_global(model, wf.demo.census.adult_rows()[:8], table).to_frame()
"""

from whyformer.inputs.table_reference import same_columns
from whyformer.tables.global_explanation import CorpusExplanation, CsvRows, explain_global
from whyformer.tables.in_context import RowAttention, explain_in_context, row_attention
from whyformer.tables.permutation import feature_permutation
from whyformer.tables.table_results import (
    Agreement,
    ContextExplanation,
    FeaturePermutation,
    GlobalExplanation,
    load_model,
    save_model,
)

__all__ = [
    "Agreement",
    "ContextExplanation",
    "CorpusExplanation",
    "CsvRows",
    "FeaturePermutation",
    "GlobalExplanation",
    "RowAttention",
    "explain_global",
    "explain_in_context",
    "feature_permutation",
    "load_model",
    "row_attention",
    "same_columns",
    "save_model",
]
