"""Attention × gradient: attention that raised the score, read in one of many ways."""

from __future__ import annotations

from typing import Annotated

from whyformer.engines.attention.chain import READINGS, raised_heads, read_layers, readable_folded
from whyformer.engines.attention.maps import Heads, Layers
from whyformer.parameters import OneOf
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run


@method(
    paper="weights: Serrano & Smith 2019, arXiv:1906.03731; clamped: Chefer, Gur & Wolf 2021; readings: Mylonas 2022",
    needs={"attention_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=False,
    class_specific=True,
    specificity="attention",
    folds=readable_folded,
)
def attention_x_gradient(
    run: Run,
    *,
    layers: Layers = "last",
    heads: Heads = "mean",
    read: Annotated[str, OneOf(*READINGS)] = "row",
) -> Attribution:
    """Where the model looked and where looking raised the score: attention times its gradient, clamped at zero.

    Ā_h = max(0, A_h ∘ ∂s/∂A_h) per head, then as ``raw_attention``: ``layers``: "last", "mean", "product", a number or
    a list; ``heads``: "mean", "max", "min", "sum", a number or a list; ``read``: "row", "column", "column_mean",
    "column_sum", "column_max", "diagonal".

    Misleads when: one layer is read as if it were the input: layers mix tokens before it. In the last layer only the
    row that feeds the head has a gradient, so the columns there hold that row and nothing else.
    """
    return read_layers(run, raised_heads(heads), layers, read)
