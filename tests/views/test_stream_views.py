"""Pictures of several streams: weighted boxes beside words, and a source × target heat map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import whyformer as wf
from tests.inputs.test_raw_streams import tokenizer
from tests.models import CASES
from whyformer.errors import BadInput
from whyformer.results.types import Explanation, Target, Units
from whyformer.views import side_by_side, view_of
from whyformer.views.marks import Picture
from whyformer.views.pair import boxes_drawn, boxes_view
from whyformer.views.report_view import _drawn
from whyformer.views.scales import scale_of
from whyformer.views.several import steps_view


def test_boxes_are_coloured_by_their_score_and_the_strongest_is_on_top() -> None:
    scores = np.array([0.1, 1.0, 0.0], np.float32)
    boxes = [(0.0, 0.0, 0.5, 0.5), (0.0, 0.0, 0.5, 0.5), (0.6, 0.6, 0.9, 0.9)]
    drawn = boxes_drawn(np.full((60, 60, 3), 255, np.uint8), boxes, scores, scale_of([scores]))
    alone = boxes_drawn(np.full((60, 60, 3), 255, np.uint8), boxes[1:2], scores[1:2], scale_of([scores]))
    assert (drawn[0, 0] == alone[0, 0]).all()
    assert (drawn[15, 15] == 255).all()  # frames, not areas: the image stays visible
    assert np.abs(drawn[36, 45].astype(int) - 255).sum() < np.abs(drawn[0, 0].astype(int) - 255).sum()


def test_a_picture_is_drawn_wherever_it_is_given() -> None:
    """Under boxes as well as under patches; where nothing could be drawn over it, it is refused."""
    explanation = wf.explain(CASES["lxmert"].build("eager"), CASES["lxmert"].inputs(), target=1)[0]
    image = np.random.default_rng(0).integers(0, 255, (48, 64, 3)).astype(np.uint8)
    for view in (view_of(explanation, image=image), side_by_side([explanation], image=image)):
        pictures = [m.image for panel in view.panels for m in panel.marks if isinstance(m, Picture)]
        assert any(p.shape == image.shape and (p != image).any() for p in pictures), "boxes over the picture"
    plain = Explanation(np.ones(1), Units(("a",), (False,), ("text",)), Target(0), "logit", 1.0, Target(0), "random")
    with pytest.raises(BadInput, match="leave it out"):
        view_of(plain, image=image)


def test_question_and_boxes(tmp_path: Path) -> None:
    explanation = wf.explain(CASES["lxmert"].build("eager"), CASES["lxmert"].inputs(), target=1)[0]
    image = np.random.default_rng(0).integers(0, 255, (48, 64, 3)).astype(np.uint8)
    view = boxes_view(explanation, image)
    html = view.to_html()
    assert "boxes (image)" in html and "box 3" in html
    assert view.save(tmp_path / "boxes.html").stat().st_size > 1000
    again = wf.load(explanation.save(tmp_path / "lxmert.json"))
    assert again.units == explanation.units
    assert again.matrix["text", "image"].shape == (10, 6)
    plain = Explanation(np.ones(1), Units(("a",), (False,), ("text",)), Target(0), "logit", 1.0, Target(0), "random")
    with pytest.raises(BadInput, match="no boxes"):
        boxes_view(plain)


def test_one_written_token_shows_both_texts() -> None:
    step = wf.explain(CASES["t5"].build("sdpa"), ("what is this", "a cat on the mat"), processor=tokenizer())[3]
    for by in ("token", "word"):
        panels = {p.title: p for p in view_of(step, by=by).panels}
        written = "".join(piece.text for piece in panels["target"].marks[0].pieces)
        assert written.endswith("a cat on") and "what" not in written
        assert "".join(piece.text for piece in panels["source"].marks[0].pieces) == "what is this"
        assert {"a", "cat"} <= {b.label for b in panels["highest scores"].marks[0].bars}
    assert [word for word, _ in step.words()] == ["what", "is", "this", "a", "cat", "on"]


def test_a_check_up_draws_both_texts() -> None:
    step = wf.explain(CASES["t5"].build("sdpa"), ("what is this", "a cat on the mat"), processor=tokenizer())[3]
    runs = ["".join(piece.text for piece in mark.pieces) for mark in _drawn(step, scale_of([step.scores]))]
    assert runs == ["what is this", "a cat on"]


def test_the_position_that_is_read_leaves_colours_to_the_others() -> None:
    step = wf.explain(CASES["t5"].build("sdpa"), ("what is this", "a cat on the mat"), processor=tokenizer())[3]
    view = view_of(step)
    others = [s for s, special in zip(step.scores[:-1], step.units.special[:-1], strict=True) if not special]
    assert step.scores[-1] > 1 > view.legend.high == pytest.approx(max(others))
    assert "'on', where the answer is read, holds" in view.panels[-1].marks[0].folded
    assert side_by_side([step, step.replace(method="other")]).legend.high == pytest.approx(max(others) / sum(others))
    even = view_of(step.replace(scores=np.full(len(step.units), 0.2, np.float32)))
    assert "where the answer is read" not in even.panels[-1].marks[0].folded
    signed = view_of(step.replace(signed=True))  # there it has a meaning of its own
    assert signed.legend.high == step.scores[-1] and "where the answer is read" not in signed.panels[-1].marks[0].folded


def test_source_by_target() -> None:
    steps = wf.explain(CASES["t5"].build("sdpa"), ("what is this", "a cat on the mat"), processor=tokenizer())
    view = steps_view(steps)
    source, prefix = (panel.marks[0] for panel in view.panels)
    assert source.values.shape == (6, 4) and prefix.values.shape == (6, 6)
    assert source.row_labels == ("a", "cat", "on", "the", "mat", "[EOS]")
    np.testing.assert_array_equal(source.values[2], steps[2].scores[:4])
    assert (np.triu(prefix.values, 1) == 0).all()  # a token is written from what stands before it
    own = np.diag(prefix.values)
    np.testing.assert_array_equal(own, [s.scores[-1] for s in steps])  # shown, though it does not stretch the scale
    below = prefix.values[np.tril_indices(6, -1)]
    assert source.scale == prefix.scale == view.legend
    assert view.legend.high == pytest.approx(max(source.values.max(), below.max())) and own.min() > view.legend.high
    assert "the scale leaves it out" in view.caption
    assert "leaves" not in steps_view([s.replace(signed=True) for s in steps]).caption
    assert {f.name: f.value for f in view.facts}["read from"] == "target: last position"
    assert "cat" in view.to_html()
    with pytest.raises(BadInput, match="encoder-decoder"):
        steps_view([])
