"""Tables as a whole: many rows explained together, columns shuffled, and rows that look at other rows.

>>> model, table = wf.demo.load_adult()
>>> wf.tables.explain_global(model, wf.demo.census.adult_rows()[:8], table).to_frame()
"""

from whyformer.tables.global_explanation import CorpusExplanation as CorpusExplanation
from whyformer.tables.global_explanation import CsvRows as CsvRows
from whyformer.tables.global_explanation import explain_global as explain_global
from whyformer.tables.in_context import RowAttention as RowAttention
from whyformer.tables.in_context import explain_in_context as explain_in_context
from whyformer.tables.in_context import row_attention as row_attention
from whyformer.tables.permutation import feature_permutation as feature_permutation
from whyformer.tables.table_results import ContextExplanation as ContextExplanation
from whyformer.tables.table_results import FeaturePermutation as FeaturePermutation
from whyformer.tables.table_results import GlobalExplanation as GlobalExplanation
from whyformer.tables.table_results import load_model as load_model
from whyformer.tables.table_results import save_model as save_model

__all__ = [
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
    "save_model",
]
