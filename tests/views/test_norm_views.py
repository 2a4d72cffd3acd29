"""Pictures of value norms: what they show is what was computed."""

from __future__ import annotations

from pathlib import Path

import pytest

import whyformer as wf
from tests.methods.properties import close, explained, model_of
from tests.models import CASES
from tests.references.blocks import blocks_of
from whyformer.errors import BadInput
from whyformer.methods.value_norms import weighed
from whyformer.results.types import Units
from whyformer.views.head_views import level_maps, norms_scatter, token_types, weights_by_type

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
    assert norms_scatter(found).save(tmp_path / "weights.png").stat().st_size > 10_000


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
    view = norms_scatter(found)
    (mark,) = view.panels[0].marks
    assert "rank correlation" in view.title
    assert {group.name: len(group.x) for group in mark.groups} == {kind: len(x) for kind, (x, _) in points.items()}
    assert len(mark.groups[0].x) == max(len(x) for x, _ in points.values()), "the crowd is drawn first, below"
    assert mark.log_x
    assert view.save(tmp_path / "weights.html").stat().st_size > 5_000
    with pytest.raises(BadInput, match="nothing to draw"):
        norms_scatter([])


def test_levels_stand_side_by_side_on_one_scale(tmp_path: Path) -> None:
    found = [explained("bert", method="value_norms", level=level, keep_layers=True)[0] for level in LEVELS]
    view = level_maps(found, layer=0)
    assert [panel.title for panel in view.panels] == list(LEVELS)
    assert len({panel.marks[0].scale for panel in view.panels}) == 1
    for panel, one in zip(view.panels, found, strict=True):
        assert one.layers is not None
        close(panel.marks[0].values, one.layers[0] / one.layers[0].sum(-1, keepdims=True))
        assert panel.marks[0].column_labels == one.units.labels
    assert view.save(tmp_path / "levels.png").stat().st_size > 10_000
    assert level_maps(found).title.startswith("whole model")
    with pytest.raises(BadInput, match="keep_layers"):
        level_maps(explained("bert", method="value_norms"), layer=0)
    with pytest.raises(BadInput, match="numbered 0 to 1"):
        level_maps(found, layer=5)
