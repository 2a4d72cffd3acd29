"""Pictures of value norms: what they show is what was computed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import whyformer as wf
from tests.methods.properties import close, explained, model_of
from tests.models import CASES
from tests.references.blocks import blocks_of
from whyformer.errors import BadInput
from whyformer.methods.value_norms import weighed
from whyformer.types import Units
from whyformer.views.norms import plot_levels, plot_weights_against_norms, token_types, weights_by_type

LEVELS = ("attn", "attn_res", "attn_res_ln")


def test_weights_and_norms_are_the_models() -> None:
    explainer = wf.Explainer(model_of("bert", True))
    for row, found in enumerate(weighed(explainer, CASES["bert"].inputs())):
        blocks = blocks_of("bert", row)
        for layer, block in enumerate(blocks):
            close(found.attention[layer], block.attention)
            lengths = [
                [(block.value[h, j] @ block.output[h]).norm() for j in range(len(found.units))] for h in range(4)
            ]
            close(found.norms[layer], lengths)


def test_a_last_layer_with_one_row_is_drawn_too(tmp_path: Path) -> None:
    found = weighed(wf.Explainer(model_of("rtdl_ft_transformer")), CASES["rtdl_ft_transformer"].inputs())
    assert [a.shape for a in found[0].attention] == [(4, 8, 8), (4, 1, 8)]
    plot_weights_against_norms(found, path=tmp_path / "weights.png")


def test_token_types() -> None:
    units = Units(
        ("[CLS]", "well", "##,", "Ġ!", "▁done", "[SEP]"), (True, False, False, False, False, True), ("text",) * 6
    )
    assert token_types(units) == ["[CLS]", "other", "punctuation", "punctuation", "other", "[SEP]"]


def test_points_are_one_per_layer_head_and_token(tmp_path: Path) -> None:
    found = weighed(wf.Explainer(model_of("bert")), CASES["bert"].inputs())
    points = weights_by_type(found)
    assert sum(len(x) for x, _ in points.values()) == 2 * 4 * (10 + 7)  # layers · heads · tokens
    (weights, lengths) = weights_by_type(found[:1], layer=1)["other"]
    close(weights, found[0].attention[1].mean(1).ravel())
    close(lengths, found[0].norms[1].ravel())
    figure = plot_weights_against_norms(found, path=tmp_path / "weights.png")
    (axes,) = figure.axes
    assert "rank correlation" in axes.get_title(loc="left")
    assert (tmp_path / "weights.png").stat().st_size > 10_000
    with pytest.raises(BadInput, match="nothing to draw"):
        plot_weights_against_norms([])


def test_levels_stand_side_by_side_on_one_scale(tmp_path: Path) -> None:
    found = [explained("bert", method="value_norms", level=level, keep_layers=True)[0] for level in LEVELS]
    figure = plot_levels(found, layer=0, path=tmp_path / "levels.png")
    maps = [axes for axes in figure.axes if axes.images]
    assert [axes.get_title() for axes in maps] == list(LEVELS)
    assert len({axes.images[0].get_clim() for axes in maps}) == 1
    for axes, one in zip(maps, found, strict=True):
        assert one.layers is not None
        shares = one.layers[0] / one.layers[0].sum(-1, keepdims=True)
        close(np.asarray(axes.images[0].get_array()), shares)
    assert plot_levels(found).axes  # the whole model
    with pytest.raises(BadInput, match="keep_layers"):
        plot_levels(explained("bert", method="value_norms"), layer=0)
    with pytest.raises(BadInput, match="numbered 0 to 1"):
        plot_levels(found, layer=5)
