"""Pictures of several streams: weighted boxes beside words, and a source × target heat map."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import whyformer as wf
from tests.models import CASES
from tests.test_subjects_streams import tokenizer
from whyformer.errors import BadInput
from whyformer.types import Explanation, Target, Units
from whyformer.views.pair import boxes_drawn, boxes_view
from whyformer.views.scale import scale_of
from whyformer.views.seq2seq import steps_view


def test_boxes_are_coloured_by_their_score_and_the_strongest_is_on_top() -> None:
    scores = np.array([0.1, 1.0, 0.0], np.float32)
    boxes = [(0.0, 0.0, 0.5, 0.5), (0.0, 0.0, 0.5, 0.5), (0.6, 0.6, 0.9, 0.9)]
    drawn = boxes_drawn(np.full((60, 60, 3), 255, np.uint8), boxes, scores, scale_of([scores]))
    alone = boxes_drawn(np.full((60, 60, 3), 255, np.uint8), boxes[1:2], scores[1:2], scale_of([scores]))
    assert (drawn[0, 0] == alone[0, 0]).all()
    assert (drawn[15, 15] == 255).all()  # frames, not areas: the image stays visible
    assert np.abs(drawn[36, 45].astype(int) - 255).sum() < np.abs(drawn[0, 0].astype(int) - 255).sum()


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


def test_source_by_target() -> None:
    steps = wf.explain(CASES["t5"].build("sdpa"), ("what is this", "a cat on the mat"), processor=tokenizer())
    view = steps_view(steps)
    source, prefix = (panel.marks[0] for panel in view.panels)
    assert source.values.shape == (6, 4) and prefix.values.shape == (6, 6)
    assert source.row_labels == ("a", "cat", "on", "the", "mat", "[EOS]")
    np.testing.assert_array_equal(source.values[2], steps[2].scores[:4])
    assert (np.triu(prefix.values) == 0).all()  # a token is written from what stands before it
    assert "cat" in view.to_html()
    with pytest.raises(BadInput, match="encoder-decoder"):
        steps_view([])
