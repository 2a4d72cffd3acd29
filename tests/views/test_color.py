"""Colours and scales."""

from __future__ import annotations

import io
import re
from typing import Any

import numpy as np
import pytest
from rich.color import Color, ColorSystem
from rich.console import Console

from tests.views import samples
from whyformer.errors import BadInput, UnknownName
from whyformer.views import side_by_side, view_of
from whyformer.views.marks import Bars, Heat, Scale, TokenRun
from whyformer.views.scales import (
    DIVERGING,
    HEADS,
    HEAT,
    SEQUENTIAL,
    colour,
    colours,
    ink_on,
    ramp,
    rgb,
    scale_of,
    share,
)
from whyformer.views.terminal.terminal_page import PageOnTerminal

# Machado, Oliveira & Fernandes 2009, severity 1: what a deuteranope and a protanope see of linear RGB.
DEUTAN = [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
PROTAN = [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]


def lightness(pixels: np.ndarray) -> np.ndarray:
    linear = np.where(pixels <= 0.04045, pixels / 12.92, ((pixels + 0.055) / 1.055) ** 2.4)
    luminance = linear @ np.array([0.2126, 0.7152, 0.0722])
    return np.where(luminance > 0.008856, 116 * np.cbrt(luminance) - 16, 903.3 * luminance)


@pytest.mark.parametrize("anchors", [SEQUENTIAL, HEAT, DIVERGING[4:], DIVERGING[4::-1]])
def test_lightness_runs_one_way_so_that_no_hue_is_needed(anchors: tuple[str, ...]) -> None:
    steps = np.diff(lightness(ramp(anchors, np.linspace(0, 1, 64)) / 255))
    assert (steps <= 0.2).all() or (steps >= -0.2).all()


@pytest.mark.parametrize("eye", [DEUTAN, PROTAN])
def test_the_two_ends_of_the_signed_scale_differ_for_colour_blind_readers(eye: list[list[float]]) -> None:
    seen = [np.clip(np.array(eye) @ (np.array(rgb(end)) / 255), 0, 1) for end in (DIVERGING[0], DIVERGING[-1])]
    assert np.abs(seen[0] - seen[1]).max() > 0.4


def test_scales() -> None:
    plain = scale_of([np.array([0.1, 0.5])])
    assert (plain.low, plain.high, plain.signed) == (0.0, 0.5, False)
    signed = scale_of([np.array([0.1, -0.5])])
    assert (signed.low, signed.high, signed.signed) == (-0.5, 0.5, True)
    assert signed.position(0.0) == 0.5
    assert colour(signed, 0.0) == (255, 255, 255)
    assert colour(plain, 0.0) == (255, 255, 255)
    assert scale_of([np.zeros(3)]).position(0.0) == 0.0
    assert scale_of([np.zeros(3)], signed=True).position(0.0) == 0.5
    assert scale_of([np.array([0.2, 0.5])], from_zero=False).low == 0.2
    assert scale_of([np.array([])]).high == 0.0


def test_ink_contrasts_with_every_background() -> None:
    for background in colours(Scale(-1, 1, True), np.linspace(-1, 1, 41)):
        ink = 0.0 if ink_on(tuple(int(c) for c in background)) == "#000000" else 1.0
        values = background / 255
        linear = np.where(values <= 0.04045, values / 12.92, ((values + 0.055) / 1.055) ** 2.4)
        luminance = float(linear @ np.array([0.2126, 0.7152, 0.0722]))
        assert (max(luminance, ink) + 0.05) / (min(luminance, ink) + 0.05) >= 4.5


def test_heads_have_colours_of_their_own() -> None:
    assert len(set(HEADS)) == len(HEADS) == 16


def test_special_tokens_do_not_stretch_the_scale() -> None:
    run = view_of(samples.text()).panels[0].marks[0]
    assert run.scale.high == pytest.approx(0.3)


def test_one_scale_for_maps_side_by_side() -> None:
    first, second = samples.text(), samples.text("grad_sam", scores=np.array(samples.SCORES)[::-1] * 1e-3)
    view = side_by_side([first, second])
    scales = {m.scale for p in view.panels for m in p.marks if isinstance(m, (TokenRun, Bars))}
    assert scales == {view.legend}
    for panel, explanation in zip(view.panels, (first, second), strict=True):
        run = panel.marks[0]
        told = [p.score for p in run.pieces if p.score is not None]
        assert sum(told) == pytest.approx(1.0)  # shares of what is not special
        assert told == pytest.approx(list(explanation.scores[1:-1] * share(explanation)))
        ranked = panel.marks[1]
        assert [b.score for b in ranked.bars] == pytest.approx(sorted(told)[::-1])
    own = side_by_side([first, second], shared=False)
    assert "own scale" in own.caption
    assert own.legend is None
    assert len({m.scale.high for p in own.panels for m in p.marks if isinstance(m, TokenRun)}) == 2


def test_methods_without_a_sign_are_not_drawn_as_raising_the_value() -> None:
    bare, signed = samples.text("grad_sam"), samples.text("occlusion", signed=True)
    view = side_by_side([bare, signed, samples.text("raw_attention")])
    scales = [{m.scale for m in p.marks} for p in view.panels]
    assert [len(s) for s in scales] == [1, 1, 1]
    assert scales[0] == scales[2] == {view.second_legend} and scales[1] == {view.legend}
    assert view.legend.signed and not view.second_legend.signed
    assert view.legend.high == view.second_legend.high  # shares can still be compared
    assert samples.still(view.to_html()).count('<div class="wf-legend') == 2
    assert side_by_side([bare, signed], shared=False).legends == ()
    alone = side_by_side([bare, samples.text("raw_attention")])
    assert alone.second_legend is None and "sign" not in alone.caption and "Blue" not in alone.caption


def test_explanations_of_one_method_share_the_scale_of_its_scores() -> None:
    one = samples.image()
    other = samples.image(target=samples.Target(0, "horse"), scores=one.scores * 2)
    view = side_by_side([one, other])
    heats = [m for p in view.panels for m in p.marks if isinstance(m, Heat)]
    assert heats[0].scale == heats[1].scale
    assert heats[0].scale.high == pytest.approx(2.0)
    titles = ["logit of 'zebra' = 3.431", "logit of 'horse' = 3.431 (not the prediction)"]
    assert [p.title for p in view.panels] == titles


def test_side_by_side_refuses_what_does_not_belong_together() -> None:
    with pytest.raises(BadInput, match="one input"):
        side_by_side([samples.text(), samples.image()])
    with pytest.raises(BadInput, match="no explanation"):
        side_by_side([])
    with pytest.raises(UnknownName, match="by"):
        view_of(samples.text(), by="letter")


@pytest.mark.parametrize("anchors", [SEQUENTIAL, DIVERGING[4::-1], HEAT])
def test_with_256_colours_a_scale_keeps_its_order(anchors: tuple[str, ...]) -> None:
    """By brightness, as it is seen on a light ground and on a dark one."""
    drawn = [Color.from_rgb(*(float(c) for c in each)) for each in ramp(anchors, np.linspace(0, 1, 33))]
    seen = np.array([each.downgrade(ColorSystem.EIGHT_BIT).get_truecolor() for each in drawn])
    steps = np.diff(lightness(seen / 255))
    assert (steps <= 1).all() or (steps >= -1).all()  # a hundredth of the way from black to white is not seen
    assert len({tuple(each) for each in seen.tolist()}) >= 8


@pytest.mark.parametrize(("system", "coloured"), [("standard", False), ("256", True), ("truecolor", True)])
def test_with_sixteen_colours_blocks_say_it(system: Any, coloured: bool) -> None:
    buffer = io.StringIO()
    console = Console(file=buffer, width=80, force_terminal=True, color_system=system)
    console.print(PageOnTerminal(view_of(samples.text())._page()))
    shown = re.sub(r"\x1b\[[0-9;]*m", "", buffer.getvalue())
    assert ("▃" in shown) is not coloured and ("\x1b[38" in buffer.getvalue()) is coloured
