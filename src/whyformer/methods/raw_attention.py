"""Raw attention: the map itself, read in one of many ways."""

from __future__ import annotations

from typing import Annotated

from whyformer.engines.attention.chain import READINGS, attention_heads, read_layers, readable_folded
from whyformer.engines.attention.maps import Heads, Layers
from whyformer.errors import NotOffered
from whyformer.parameters import OneOf
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run


@method(
    paper="Bahdanau, Cho & Bengio 2015, arXiv:1409.0473; readings after Gorishniy 2021, Borisov 2022, Mylonas 2022",
    needs={"attention"},
    cost=constant(1, 0),
    cost_text="1 forward",
    signed=False,
    class_specific=False,
    specificity="attention",
    rowwise=lambda *, read, **options: read == "row",
    folds=readable_folded,
)
def raw_attention(
    run: Run,
    *,
    layers: Layers = "last",
    heads: Heads = "mean",
    read: Annotated[str, OneOf(*READINGS)] = "row",
) -> Attribution:
    """Where the model looked: attention weights, averaged over heads and read at the position that feeds the head.

    ``layers``: "last", "mean", "product" (A_L···A_1 without residual), a number, or a list (its mean).
    ``heads``: "mean", "max", "min", "sum", a number, or a list (its mean).
    ``read``: "row" (what the readout attends to), "column" (who attends to it), "column_mean", "column_sum",
    "column_max" (attention received), "diagonal". With several streams, layers are counted for each pair of streams
    (who asks whom), and the row is the only reading.

    Misleads when: layers mix tokens before the one that is read, so a weight on a position is no longer a weight on
    the word that stood there; and it is the same for every class.
    """
    if (run.multi_stream or run.windowed) and (read != "row" or layers == "product"):
        raise NotOffered(
            "with several streams of tokens, or attention inside windows, raw attention is read by row, layer by "
            "layer: read='row' and layers='last', 'mean', a number or a list."
        )
    return read_layers(run, attention_heads(heads), layers, read, streams=True)
