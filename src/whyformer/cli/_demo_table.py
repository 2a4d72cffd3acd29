"""The part of the demo with a table: one row of census data, and all of them together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

METHODS = ("raw_attention", "generic_attention", "integrated_gradients", "occlusion")
ABOUT = {
    "raw_attention": "how much the last layer looks at each column",
    "generic_attention": "the attention that raised the score",
    "integrated_gradients": "slopes added up on the way from a typical row",
    "occlusion": "what the score loses with a typical value in place of the column's own",
}
CENSUS = (
    "A small FT-Transformer guesses from census data of 1994 whether somebody earned more than 50,000 dollars. It is "
    "here to show what an explanation of a table looks like: it must not be used to judge people."
)


def table_views(row: int = 1) -> list[Any]:
    """One row by several methods, and the columns over all rows that are shipped."""
    try:
        from whyformer.demo.census import adult_rows, load_adult
        from whyformer.explainer import Explainer
        from whyformer.tables.overall import explain_global
        from whyformer.views import side_by_side
        from whyformer.views.table import view_of_columns

        model, table = load_adult()
    except ImportError:  # the library of the model is an extra: the rest of the demo does without
        return []
    rows = adult_rows()
    explainer = Explainer(model, table)
    explained = explainer.explain(rows[row], method=list(METHODS), progress=False)
    one = side_by_side(explained, notes=ABOUT, title="A row of a table")
    everything = explain_global(explainer, rows, method="integrated_gradients", target=">50K", progress=False)
    return [
        replace(one, caption=f"{CENSUS} {one.caption}"),
        replace(view_of_columns(everything), title="The same model, over forty rows"),
    ]
