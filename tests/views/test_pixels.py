"""Pictures of single pixels, and of bars that are longer than their scale."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tests.views import samples
from whyformer.errors import NotOffered
from whyformer.results.types import Explanation
from whyformer.views import page, side_by_side, view_of
from whyformer.views.image_marks import canvas_size, painted, pixel_map
from whyformer.views.marks import Bar, Bars, Heat, Scale
from whyformer.views.terminal.terminal_page import text
from whyformer.views.view import Page, Panel, View

SIZE = (48, 64)  # what samples.image() was made of, in patches of 16 × 16


def detailed(*, signed: bool = True, detail: np.ndarray | None = None, **changes: object) -> Explanation:
    drawn = np.random.default_rng(0).normal(size=(3, *SIZE)).astype(np.float32)
    return samples.image(signed=signed, detail=drawn if detail is None else detail, **changes)


def fine(view: View) -> list[Heat]:
    return [m for p in view.panels for m in p.marks if isinstance(m, Heat) and m.fine]


def test_pixels_are_added_up_over_colours_or_are_norms() -> None:
    signed = detailed()
    np.testing.assert_allclose(pixel_map(signed), signed.detail.sum(0), atol=1e-5)
    plain = detailed(signed=False)
    np.testing.assert_allclose(pixel_map(plain), np.sqrt((plain.detail**2).sum(0)), atol=1e-5)
    for norm, reduced in (("l1", np.abs(plain.detail).sum(0)), ("max", np.abs(plain.detail).max(0))):
        np.testing.assert_allclose(pixel_map(plain.replace(options={"norm": norm})), reduced, atol=1e-5)
    one = np.arange(48 * 64, dtype=np.float32).reshape(SIZE)
    np.testing.assert_array_equal(pixel_map(detailed(detail=one)), one)
    padded = np.pad(plain.detail, ((0, 0), (0, 16), (0, 8)))
    np.testing.assert_allclose(pixel_map(detailed(signed=False, detail=padded)), pixel_map(plain), atol=1e-5)


def test_the_map_of_pixels_is_drawn_when_asked_for(tmp_path: Path) -> None:
    explanation = detailed()
    assert not fine(view_of(explanation))
    view = view_of(explanation, detail=True)
    whole, close = fine(view)
    np.testing.assert_allclose(whole.values_RC, explanation.detail.sum(0), atol=1e-5)
    reach = np.percentile(np.abs(explanation.detail.sum(0)), 99)
    assert whole.scale.signed and whole.scale.high == pytest.approx(reach) == -whole.scale.low
    assert "checkerboard" in view.caption
    # The strongest of 3 × 4 patches is the first or last one: all rows, and four columns of patches.
    assert close.values_RC.shape == SIZE and [f.label for f in whole.frames] == ["enlarged"]
    assert "per pixel" in text(view._page()) and "enlarged: patches 0,0 to 2,3" in [p.title for p in view.panels]
    for name in ("x.html", "x.png"):
        assert (
            explanation.save(tmp_path / name, detail=True).stat().st_size
            > 1.2 * explanation.save(tmp_path / name).stat().st_size
        )


def test_every_pixel_is_as_wide_as_any_other() -> None:
    values = np.zeros((224, 224))
    values[:, ::2] = 1
    heat = Heat(values, Scale(0, 1), interpolation="nearest", size=(224, 224), fine=True)
    for longest in (320, 384):
        drawn = painted(heat, canvas_size(heat, longest))[0, :, 0].astype(int)
        widths = np.diff(np.flatnonzero(np.diff(drawn) != 0))
        assert set(widths.tolist()) == {len(drawn) // 224}
    blurred = text(Page("", (View("", (Panel((heat,)),)),)), 80)
    assert "█" not in blurred and "▒" in blurred  # shrunk by means: picking would show one of the two


def test_side_by_side_has_pixels_where_a_method_has_them() -> None:
    first, second = detailed(method="saliency"), samples.image("generic_attention")
    (only,) = fine(side_by_side([first, second], detail=True))
    np.testing.assert_allclose(only.values_RC, pixel_map(first))
    with pytest.raises(NotOffered, match="none of generic_attention, grad_sam has"):
        side_by_side([second, samples.image("grad_sam")], detail=True)


@pytest.mark.parametrize("detail", [None, np.zeros((13, 96), np.float32), np.zeros((3, 8, 8), np.float32)])
def test_no_pixels_no_map(detail: np.ndarray | None) -> None:
    with pytest.raises(NotOffered, match="single pixels"):
        samples.image(detail=detail).show(detail=True)
    with pytest.raises(NotOffered, match="single pixels"):
        samples.text().show(detail=True)


# Bars beyond the scale


def test_striped_bars_are_explained_in_every_backend() -> None:
    explanation = samples.text()  # [CLS] has 1.25, the words at most 0.3
    told = "The striped bar of [CLS] goes on beyond the scale of the others: read its number."
    view = view_of(explanation, specials=True)
    assert told in view.to_html() and 'class="wf-bar wf-beyond"' in view.to_html()
    words = " ".join(t.get_text() for t in view.plot().axes[0].texts)
    assert told in words and any(p.get_hatch() for p in view.plot().axes[0].patches)
    shown = " ".join(text(view._page()).split())
    assert "The bar (» or «) of [CLS] goes on beyond the scale of the others" in shown and "»" in shown
    calm = view_of(samples.text(scores=np.full(12, 0.1)))
    assert "beyond" not in samples.still(calm.to_html()).split("</style>")[1] and "beyond" not in text(calm._page())


def test_several_striped_bars_are_named_up_to_three() -> None:
    bars = (*(Bar(name, 9.0) for name in "abcde"), Bar("f", 0.5))
    view = View("", (Panel((Bars(bars, Scale(0, 1)),)),), caption="Words.")
    assert "Words. The striped bars of a, b, c and 2 more go on beyond" in view.to_html()
    pages = page([view, View("", view.panels, caption="Words.")]).to_html()
    assert pages.count("go on beyond") == 1  # neighbours share it
    assert "The bars (» or «) of a, b, c and 2 more go on" in " ".join(text(view._page()).split())
