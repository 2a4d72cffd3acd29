"""What a method or metric of your own is written with; nothing else of whyformer's inside is promised to stay.

A method is one function: it asks a ``Run`` for what it needs and returns an ``Attribution`` with one score per position
of the model's attention. This is a whole one:

```python
import torch

from whyformer.extend import Attribution, Run, constant, maps_of, method, over_heads, read_row, real


@method(
    paper="Doe 2030, arXiv:3001.00001",
    needs={"attention"},
    cost=constant(1, 0),
    cost_text="1 forward",
    signed=False,
    class_specific=False,
    specificity="attention",
)
def mean_attention(run: Run, *, heads: str = "mean", start_layer: int = 0) -> Attribution:
    \"\"\"What the position that feeds the prediction attends to, on average over the layers.

    Misleads when: a layer passes on what others gathered; its attention is then not to the inputs any more.
    \"\"\"
    rows = []
    for site in maps_of(run.record(), start_layer):
        layer = real(over_heads(site.attention_BHQK.float(), heads), run.keep_BN, site)
        rows.append(read_row(layer, run.readout_BN, site.first_query))
    return Attribution(torch.stack(rows).mean(0))
```

Its package declares the module; from then on ``wf.explain(…, method="mean_attention")``, ``wf.compare``, the command
line and the rest know it, with its options:

```toml
[project.entry-points."whyformer.methods"]
mean_attention = "my_package.mean_attention"
```

The function's name is the method's name, its keyword-only parameters are the options, and the first sentence of its
docstring is the idea that is listed. ``needs`` is checked before it runs; ``cost`` is (forwards, backwards) per input,
and passes are counted. Other facts, such as its ``meaning`` in the header of a picture, are optional. ``run.record()``
raises an error for models with several streams of tokens; a method that supports them calls
``run.record(multi_stream=True)``, places its maps with ``placed_maps`` and reads them with ``read_streams``.
``over_windows`` is for attention inside windows.

A metric is a function of a ``Trial`` that returns a number (``@metric``, entry point group ``whyformer.metrics``).

A kind of input is a class derived from ``Modality`` (how raw inputs become a ``Batch``, what their ``Units`` are, which
positions are real) and one line: ``register_modality(recognises, make)``. A model that is only
asked, from outside, is a function as ``Says`` describes it.
"""

from whyformer.engines.attention.maps import (
    chosen_layers,
    cumulative,
    discard_smallest,
    generic_relevance,
    layer_means,
    maps_of,
    over_heads,
    over_one_layer,
    over_windows,
    placed_maps,
    plus_identity,
    product,
    read_row,
    read_streams,
    real,
    rollout_relevance,
    row_normalized,
    start_sites,
    whole_keep,
    with_ratio,
    with_residual,
)
from whyformer.evaluate.candidate import Trial
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.modalities import register_modality
from whyformer.inputs.prompt import Says
from whyformer.inputs.units import assemble
from whyformer.registry import constant, method, metric
from whyformer.results.types import Units
from whyformer.run import Attribution, Run

__all__ = [
    "Attribution",
    "Batch",
    "Modality",
    "Run",
    "Says",
    "Trial",
    "Units",
    "assemble",
    "chosen_layers",
    "constant",
    "cumulative",
    "discard_smallest",
    "generic_relevance",
    "layer_means",
    "maps_of",
    "method",
    "metric",
    "over_heads",
    "over_one_layer",
    "over_windows",
    "placed_maps",
    "plus_identity",
    "product",
    "read_row",
    "read_streams",
    "real",
    "register_modality",
    "rollout_relevance",
    "row_normalized",
    "start_sites",
    "whole_keep",
    "with_ratio",
    "with_residual",
]
