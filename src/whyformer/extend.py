"""Public API for your own methods, metrics and modalities; all other internals may change.

A method is one function: it requests what it needs from a ``Run`` and returns an ``Attribution`` with one score per
position of the model's attention. A complete example:

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
    \"\"\"Average the attention of the output position over layers.

    Misleads when: earlier layers have mixed the tokens, so a weight on a position is not a weight on its token.
    \"\"\"
    rows = []
    for site in maps_of(run.record(), start_layer):
        layer = real(over_heads(site.attention_BHQK.float(), heads), run.keep_BN, site)
        rows.append(read_row(layer, run.readout_BN, site.first_query))
    return Attribution(torch.stack(rows).mean(0))
```

The package declares the module as an entry point. ``wf.explain(…, method="mean_attention")``, ``wf.compare`` and the
command line then accept it, with its options:

```toml
[project.entry-points."whyformer.methods"]
mean_attention = "my_package.mean_attention"
```

The function's name is the method's name, its keyword-only parameters are the options, and the first sentence of its
docstring is its description in lists. ``needs`` is checked before it runs; ``cost`` is (forwards, backwards) per input,
and passes are counted. Other fields, such as ``meaning`` (shown in headers), are optional. ``run.record()``
raises an error for models with several streams of tokens; a method that supports them calls
``run.record(multi_stream=True)``, places its maps with ``placed_maps`` and reads them with ``read_streams``.
``over_windows`` is for attention inside windows.

A metric is a function of a ``Trial`` that returns a number (``@metric``, entry point group ``whyformer.metrics``).

A kind of input is a ``Modality`` of four parts: ``Read`` (how raw inputs become a ``Batch``), ``Place`` (what their
``Units`` are, which positions are real), ``Mask`` and ``Mean``. It is registered by
``register_modality(recognises, make)``. A model behind an API is a function as described in ``Says``.
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
from whyformer.inputs.base import Mask, Mean, Modality, Place, Read
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
    "Mask",
    "Mean",
    "Modality",
    "Place",
    "Read",
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
