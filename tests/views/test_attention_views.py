"""Maps of attention, of value norms and of heads: which numbers they show, and what they refuse; whyformer heads."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.cli.test_cli import run
from tests.evaluate.games import sentiment
from tests.methods.properties import close, model_of
from tests.models import CASES
from tests.references.blocks import blocks_of
from tests.views import samples
from tests.views.results import ALL
from tests.views.test_terminal import VIEWS
from whyformer import heads
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.heads import PruningCurve
from whyformer.heads.head_roles import HeadRoles
from whyformer.methods.value_contributions import LEVELS, mixing_ratio, weighed
from whyformer.results.types import Record, Site, Units
from whyformer.views import attention_map, attention_streams, heads_grid, heads_over_image, relevance_map
from whyformer.views.head_views import head_map, head_scale, scatter_view, token_types, weights_by_type
from whyformer.views.header import short
from whyformer.views.marks import Matrix
from whyformer.views.terminal.terminal_page import text
from whyformer.views.view import View


def matrices(view: View) -> list[Matrix]:
    return [mark for mark in view.marks if isinstance(mark, Matrix)]


def of(*sites: Site) -> Record:
    return Record(sites, torch.zeros(1, 2))


def test_attention_map_shows_the_site_head_and_input_that_were_asked_for() -> None:
    record = samples.encoder_record()
    (shown,) = matrices(attention_map(record, 1, 0, list("abcd"), row=1))
    np.testing.assert_array_equal(shown.values, record.sites[1].attention_BHQK[1, 0].numpy())
    assert shown.row_labels == shown.column_labels == ("a", "b", "c", "d")
    (mean,) = matrices(attention_map(record))
    np.testing.assert_allclose(mean.values, record.sites[-1].attention_BHQK[0].mean(0).numpy(), rtol=1e-6)
    (most,) = matrices(attention_map(record, head="max"))
    assert (most.values >= mean.values).all()
    assert mean.row_labels == ("0", "1", "2", "3")


def test_labels_are_those_of_units_of_pairs_or_of_the_rows_that_are_there() -> None:
    units = Units(("a", "b", "c", "d"), (False,) * 4, ("text",) * 4)
    (shown,) = matrices(attention_map(samples.encoder_record(), labels=units))
    assert shown.row_labels == tuple("abcd")
    (shown,) = matrices(attention_map(samples.encoder_decoder_record(), labels=(list("xyz"), list("abcde"))))
    assert (shown.row_labels, shown.column_labels) == (tuple("xyz"), tuple("abcde"))
    (shown,) = matrices(attention_map(of(Site("last", "self", ("", ""), samples.attention(queries=1), first_query=2)),
                                      labels=list("abcd")))  # fmt: skip
    assert shown.row_labels == ("c",)


MATRIX = np.eye(len(samples.TOKENS), dtype=np.float32) * 9 + 0.5
PARTS = {("text", "text"): MATRIX, ("text", "image"): np.ones((len(MATRIX), 3), np.float32)}
STREAMS = of(
    Site("a", "self", ("text", "text"), samples.attention()),
    Site("b", "cross", ("text", "image"), samples.attention(keys=6)),
)
OVER_IMAGE = of(Site("vit", "self", ("", ""), samples.attention(heads=3, queries=13, keys=13)))
WINDOWS = of(Site("swin", "self", ("", ""), samples.attention(batch=6), windows=3))
REFUSED: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: attention_map(samples.encoder_record(), site=7), BadInput, "2 sites"),
    (lambda: attention_map(samples.encoder_record(), head=5), BadInput, "0 to 1"),
    (lambda: attention_map(samples.encoder_record(), head="median"), BadInput, "'mean' or 'max'"),
    (lambda: attention_map(samples.encoder_record(), row=2), BadInput, "2 inputs"),
    (lambda: attention_map(samples.encoder_record(), labels=["a"]), BadInput, "labels for 4 rows"),
    (lambda: attention_streams(STREAMS, {"text": ["a"]}), BadInput, "positions of 'text'"),
    (lambda: attention_streams(STREAMS, layer=3), BadInput, "has 1 sites"),
    (lambda: heads_over_image(WINDOWS, samples.image().units), NotOffered, "windows"),
    (lambda: heads_over_image(OVER_IMAGE, samples.text()), BadInput, "grid"),
    (lambda: heads_over_image(samples.encoder_record(), samples.image().units), BadInput, "not the same input"),
    (lambda: heads_over_image(OVER_IMAGE, samples.image().units, query=40), BadInput, "query"),
    (lambda: relevance_map(samples.text()), NotOffered, "generic_attention returned no token-to-token map"),
    (lambda: relevance_map(samples.text(matrix=PARTS), ("image", "text")), UnknownName, "pair of streams"),
    (lambda: heads_grid(STREAMS, scale="wide"), BadInput, "scale='wide'"),
    (lambda: heads_grid(STREAMS, scale=(1, 0)), BadInput, "the second is larger"),
    (lambda: heads_grid(STREAMS, scale=(0, float("inf"))), BadInput, "scale=.0, inf"),
]


@pytest.mark.parametrize(("call", "error", "message"), REFUSED, ids=[message for _, _, message in REFUSED])
def test_refusals(call: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        call()


def test_heads_grid_has_layers_down_and_heads_across_on_one_scale() -> None:
    record = samples.encoder_record()
    view = heads_grid(record)
    assert view.columns == 2
    assert [p.title for p in view.panels] == ["0.0", "0.1", "1.0", "1.1"]
    shown = matrices(view)
    np.testing.assert_array_equal(shown[3].values, record.sites[1].attention_BHQK[0, 1].numpy())
    assert {m.scale for m in shown} == {view.legend}
    assert [p.title for p in heads_grid(record, sites=[-1]).panels] == ["1.0", "1.1"]
    uneven = heads_grid(of(*(Site(f"{h}", "self", ("", ""), samples.attention(heads=h)) for h in (1, 3))))
    assert [p.title for p in uneven.panels] == ["0.0", "", "", "1.0", "1.1", "1.2"]  # fewer heads leave room


def test_more_positions_than_cells_keep_their_largest_weight_and_say_so() -> None:
    maps = torch.zeros(1, 2, 100, 100)
    maps[0, :, :, 37] = 1  # a mean over cells would halve it
    view = heads_grid(of(Site("a", "self", ("", ""), maps)))
    assert all(m.values.shape == (64, 64) and m.values.max() == m.scale.high == 1 for m in matrices(view))
    assert "100 positions share 64 cells" in view.caption
    assert "share" not in heads_grid(samples.encoder_record()).caption


def test_numbers_are_written_into_cells_of_every_backend_where_there_is_room() -> None:
    view, weights = VIEWS["attention_numbers"](), samples.encoder_record().sites[0].attention_BHQK[0, 1].numpy()
    html, drawn = view.to_html(), [t.get_text() for t in view.plot().axes[0].texts]
    assert 0 < weights.min() < 1e-4 and "0.00" in drawn, "no power of ten for what has no colour"
    for weight in map(short, np.where(weights < 1e-4 * weights.max(), 0, weights).ravel().tolist()):
        assert weight in text(view._page()) and f">{weight}</text>" in html and weight in drawn
    assert "extraordinarily" in html and "extraordinarily" in drawn
    view = heads_grid(of(*[Site("a", "self", ("", ""), samples.attention(queries=20, keys=20))] * 2), values=True)
    numbers = [t for t in view.plot().axes[0].texts if re.fullmatch(r"\d\.\d\d|\de-\d+", t.get_text())]
    assert len(numbers) == 4 * 400 and "Numbers are left out" not in view.caption  # however many maps there are
    view = attention_map(of(Site("a", "self", ("", ""), samples.attention(queries=21, keys=20))), values=True)
    assert not matrices(view)[0].numbers and "420 cells" in view.caption


def test_scales_are_free_shared_full_or_named() -> None:
    maps = torch.zeros(1, 2, 3, 3)
    maps[0, 0], maps[0, 1] = torch.eye(3) * 0.2, torch.eye(3) * 0.8
    record = of(Site("a", "self", ("", ""), maps))

    def highs(scale: object) -> list[float]:
        return [round(m.scale.high, 3) for m in matrices(heads_grid(record, scale=scale))]

    assert highs("shared") == [0.8, 0.8] and highs("full") == [1, 1] and highs("free") == [0.2, 0.8]
    assert highs((0.1, 0.5)) == [0.5, 0.5]
    assert heads_grid(record, scale="free").legend is None
    assert relevance_map(samples.text(matrix=np.full((12, 12), 0.25)), scale=(0, 2.0), values=True).legend.high == 2  # type: ignore[union-attr]


def test_very_large_numbers_share_their_power_of_ten() -> None:
    """Norms multiplied through many layers reach 8e14."""
    view = VIEWS["relevance_large"]()
    html = samples.still(view.to_html())
    assert ">8.12</text>" in html and ": 8.12e14</title>" in html
    assert ">8.12e14</span>" in html and "e+" not in html.split("</style>")[1]  # the legend
    drawn = [t.get_text() for t in view.plot().axes[0].texts]
    assert drawn.count("8.12") == 1 and drawn.count("0.31") == 143


def test_windows_count_as_one_input_each() -> None:
    view = attention_map(WINDOWS, head=0, row=1)
    (shown,) = matrices(view)
    np.testing.assert_array_equal(shown.values, WINDOWS.sites[0].attention_BHQK[3, 0].numpy())
    assert "the first of 3" in [fact.value for fact in view.facts]
    assert "of windows the first" in heads_grid(WINDOWS).facts[1].value


def test_encoder_decoder_and_cross_maps() -> None:
    record = samples.encoder_decoder_record()
    view = attention_streams(record, {"source": list("abcde"), "target": list("xyz")}, layer=0, head=1)
    for shown, site in zip(matrices(view), (0, 2, 3), strict=True):  # encoder, decoder, cross
        np.testing.assert_array_equal(shown.values, record.sites[site].attention_BHQK[0, 1].numpy())
        assert shown.scale == view.legend
    assert (shown.row_labels, shown.column_labels) == (tuple("xyz"), tuple("abcde"))
    assert [p.title for p in attention_streams(STREAMS).panels] == ["text self-attention", "text attends to image"]


def test_heads_over_image() -> None:
    view = heads_over_image(OVER_IMAGE, samples.image().units, samples.picture(), query=2)
    maps = OVER_IMAGE.sites[0].attention_BHQK
    together = view.panels[0].marks[0]
    assert together.names == ("head 0", "head 1", "head 2")
    np.testing.assert_array_equal(together.maps_RC[1].ravel(), maps[0, 1, 2, 1:].numpy())
    assert len(view.panels) == 4
    assert "position 2, patch 1,2" in [f.value for f in view.facts]


def test_relevance_map() -> None:
    (shown,) = matrices(relevance_map(samples.text(matrix=MATRIX)))
    assert shown.row_labels == samples.TOKENS
    assert shown.scale.high == 0.5  # the diagonal does not count
    assert len(matrices(relevance_map(samples.text(matrix=PARTS)))) == 2
    assert len(matrices(relevance_map(samples.text(matrix=PARTS), ("text", "image")))) == 1


def test_weights_and_norms_are_the_models() -> None:
    explainer = wf.Explainer(model_of("bert", True))
    for row, found in enumerate(weighed(explainer, CASES["bert"].inputs())):
        for layer, block in enumerate(blocks_of("bert", row)):
            close(found.attention[layer], block.attention)
            close(found.norms[layer], (block.value @ block.output).norm(dim=-1))


def test_points_are_one_per_layer_head_and_token(tmp_path: Path) -> None:
    special = (True, False, False, False, False, True)
    units = Units(("[CLS]", "well", "##,", "Ġ!", "▁done", "[SEP]"), special, ("text",) * 6)
    assert token_types(units) == ["[CLS]", "other", "punctuation", "punctuation", "other", "[SEP]"]
    found = weighed(wf.Explainer(model_of("bert")), CASES["bert"].inputs())
    points = weights_by_type(found)
    assert sum(len(x) for x, _ in points.values()) == 2 * 4 * (10 + 7)  # layers · heads · tokens
    (weights, lengths) = weights_by_type(found[:1], layer=1)["other"]
    close(weights, found[0].attention[1].mean(1).ravel())
    close(lengths, found[0].norms[1].ravel())
    view = scatter_view(found)
    (mark,) = view.panels[0].marks
    assert {group.name: len(group.x) for group in mark.groups} == {kind: len(x) for kind, (x, _) in points.items()}
    assert len(mark.groups[0].x) == max(len(x) for x, _ in points.values()), "the crowd is drawn first, below"
    assert mark.log_x and "rank correlation" in view.title
    few = weighed(wf.Explainer(model_of("rtdl_ft_transformer")), CASES["rtdl_ft_transformer"].inputs())
    assert [a.shape for a in few[0].attention] == [(4, 8, 8), (4, 1, 8)]  # one row of the last layer
    assert scatter_view(few).save(tmp_path / "weights.html").stat().st_size > 5_000


def test_levels_stand_side_by_side_on_one_scale() -> None:
    text = "a gorgeous film with a dull end"
    how: dict[str, Any] = {"processor": sentiment().processor, "method": "value_norms", "keep_layers": True}
    view = heads.level_maps(sentiment().model, text, sentiment().processor, layer=1)
    *levels, mixing = view.panels
    assert len({panel.marks[0].scale for panel in levels}) == 1
    for panel, level in zip(levels, LEVELS, strict=True):
        one = wf.explain(sentiment().model, text, level=level, **how)
        assert one.layers is not None
        close(panel.marks[0].values, one.layers[1] / one.layers[1].sum(-1, keepdims=True))
        assert panel.marks[0].column_labels == one.units.labels
    with sentiment().session([text]) as session:
        ratios = mixing_ratio(session.run(range(1)), "attn_res_ln")[0].numpy()
    close(np.nan_to_num(mixing.marks[0].values[::-1]), ratios)
    for wrong, said in (({"layer": 9}, "numbered 0 to 3"), ({"inputs": [text, text]}, "one input, and got 2")):
        with pytest.raises(BadInput, match=said):
            heads.level_maps(sentiment().model, **{"inputs": text, "processor": sentiment().processor} | wrong)


def test_the_scatter_takes_a_model_and_texts() -> None:
    texts = ["a gorgeous film", "So boring"]
    (mark,) = heads.norms_scatter(sentiment().model, texts, sentiment().processor, layer=2).panels[0].marks
    expected = scatter_view(weighed(sentiment(), texts), 2).panels[0].marks[0]
    assert [g.name for g in mark.groups] == [g.name for g in expected.groups]
    for group, same in zip(mark.groups, expected.groups, strict=True):
        close(group.y, same.y)


# Heads


def test_pruning_curves_beside_each_other_are_over_the_share_of_heads_kept() -> None:
    curve = ALL[PruningCurve]()
    chance = replace(curve, name="random", values=curve.values / 2)
    (mark,) = curve.view(beside=[chance]).panels[0].marks
    assert [line.name for line in mark.lines] == [curve.name, "random"]
    np.testing.assert_array_equal(mark.lines[1].values, chance.values)
    np.testing.assert_allclose(mark.lines[0].x, 100 * curve.kept / curve.heads)


def test_heat_maps_say_what_they_hold() -> None:
    scores = np.array([[0.5, -0.25], [1.0, np.nan]])
    scale = head_scale([scores], signed=True)
    mark = head_map(scores, scale)
    assert (scale.low, scale.high, scale.signed) == (-1.0, 1.0, True)  # white is zero
    assert mark.row_labels == ("1", "0")  # the last layer is on top
    np.testing.assert_array_equal(mark.values, scores[::-1])
    assert (mark.row_axis, mark.column_axis, mark.numbers) == ("layer", "head", True)
    assert not head_map(np.zeros((12, 13)), scale).numbers
    nothing = head_scale([np.zeros((2, 2))])
    assert (nothing.low, nothing.high) == (0.0, 1.0)


def test_roles_are_points_by_kind() -> None:
    found = ALL[HeadRoles]()
    scatter, table = (panel.marks[0] for panel in found.view().panels)
    rows = found.rows()
    assert sum(len(group.x) for group in scatter.groups) == len(rows)
    positional = next(group for group in scatter.groups if group.name == "positional")
    mine = [row for row in rows if row["role"].startswith("positional")]
    np.testing.assert_allclose(positional.x, [row["positional"] for row in mine])
    np.testing.assert_allclose(positional.y, [row["separator"] + row["first"] for row in mine])
    assert positional.labels[0] == "layer 0, head 0: positional -1"
    assert scatter.groups[0].name == "no role" and scatter.groups[0].quiet
    assert len(table.rows) == len(rows)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ("--kind ablation --target negative", 0, "head importance"),
        ("--what colours", 1, "--what='colours' is not allowed: give"),
        ("--kind gradeint", 1, "Did you mean 'gradient'"),
        ("--out heads.xls", 2, "use .html, .png"),
        ("--out nowhere/heads.png", 2, "no folder"),
        ("--what induction", 1, "attends to later tokens"),
    ],
)
def test_whyformer_heads(arguments: str, code: int, says: str) -> None:
    told = run("heads", *arguments.split(), code=code)
    assert says in told.stdout + told.stderr
