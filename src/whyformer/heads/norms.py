"""Attention weights against the vectors that they weight: norms, the residual stream, and mixing ratios."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from whyformer.engines.attention.maps import real
from whyformer.errors import BadInput
from whyformer.methods.value_contributions import LEVELS, layers, mixing_ratio, weighed
from whyformer.parameters import Place, checked
from whyformer.run.session import LoadedModel, loaded_as, passing_through
from whyformer.views.head_views import level_panels, mixing_panel, scatter_view
from whyformer.views.view import View


@checked
def norms_scatter(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    layer: Place | None = None,
    attention_at: Mapping[str, str] | None = None,
) -> View:
    """Draw attention weight against ‖f(x)‖, a point per layer, head and token, coloured by token type (Kobayashi 2020).

    Tokens with high attention and a small norm (lower right) contribute little: often [SEP] and punctuation. ``layer``
    draws one layer only.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.heads.norms_scatter(model, list(wf.demo.SENTENCES), tokenizer).show()
    """
    loaded = loaded_as(LoadedModel, model, processor, attention_at)
    several = inputs if isinstance(inputs, (list, dict)) else [inputs]
    return scatter_view(weighed(loaded, several), layer)


@checked
def level_maps(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    layer: Place = 0,
    attention_at: Mapping[str, str] | None = None,
) -> View:
    """Draw one layer's contributions of each token before and after the residual stream and the norm (Kobayashi 2021).

    inputs: one input. Maps are shares of rows, and the last panel is the mixing ratio of each position and layer: the
    share of its new vector that comes from other positions.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.heads.level_maps(model, "a gorgeous film", tokenizer, layer=1).show()
    """
    one = inputs if isinstance(inputs, (list, dict)) else [inputs]
    with (
        passing_through(model, one, processor=processor, attention_at=attention_at) as session,
        torch.no_grad(),
    ):
        if session.size != 1:
            raise BadInput(f"level_maps draws one input, and got {session.size}.")
        run = session.run(range(1))
        keep_N, units = run.keep_BN[0].cpu().numpy(), run.units[0]
        maps = {}
        for level in LEVELS:
            each = [real(parts.norms_BQK, run.keep_BN, site)[0] for site, parts in layers(run, level)]
            if not -len(each) <= layer < len(each):
                raise BadInput(f"layer={layer}: there are {len(each)}, numbered 0 to {len(each) - 1}.")
            values = each[layer].float().cpu().numpy()[:, keep_N]
            maps[level] = values[keep_N] if len(values) == len(keep_N) else values
        ratios_LN = mixing_ratio(run, "attn_res_ln")[0].float().cpu().numpy()[:, keep_N]
    panels, legend = level_panels(maps, units.labels)
    title = f"layer {layer}: share of each position (row) that comes from each token (column)"
    computed = np.where(ratios_LN > 0, ratios_LN, np.nan)
    return View(title, (*panels, mixing_panel(computed, units.labels)), columns=2, legend=legend)
