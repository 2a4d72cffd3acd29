"""The opening view of a row: from the value at the baseline to that of the row, in every back end."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

from tests.views import samples
from whyformer.results.types import Explanation
from whyformer.views.marks import Bars, MarkSettings
from whyformer.views.text_marks import has_waterfall, placed_rows, waterfall

SCORES = np.array([0.5, -0.2, 0.1], np.float32)  # age, income, city


def row(**changes: Any) -> Explanation:
    facts: dict[str, Any] = {
        "scores": SCORES,
        "method": "shap",
        "base": 0.6,
        "value": 1.0,
        "options": {"replace": "rows:4"},
    }
    return samples.table(**facts | changes)


def both_ends(**changes: Any) -> Explanation:
    """Scores that need not add up: 0.2 of the change belongs to no single column."""
    return row(**{"method": "two_ended", "base": None, "checks": {"baseline_value": 0.4}} | changes)


def drawn(explanation: Explanation) -> Bars:
    (mark,) = [m for panel in explanation.view().panels for m in panel.marks if isinstance(m, Bars)]
    return mark


def test_steps_lead_from_the_baseline_to_the_row() -> None:
    view = row().view()
    assert view.panels[0].title == "from the baseline (mean over 4 reference rows) to this row"
    mark = drawn(row())
    assert [bar.label for bar in mark.bars] == ["baseline", "age", "income", "city", "this row"]
    np.testing.assert_allclose(mark.starts, [0.6, 0.6, 1.1, 0.9, 1.0], atol=1e-6)
    assert [placed.number for placed in placed_rows(mark)] == ["0.60", "+0.50", "-0.20", "+0.10", "1.00"]
    # The track goes from 0.6 to 1.1.
    placed = [(r.start, r.start + r.width) for r in placed_rows(mark)[1:-1]]
    np.testing.assert_allclose(placed, [(0, 1), (0.6, 1), (0.6, 0.8)], atol=1e-6)


def test_what_is_left_has_its_own_name() -> None:
    assert [bar.label for bar in drawn(both_ends()).bars][-2:] == ["interactions", "this row"]
    assert drawn(both_ends()).bars[-2].score == pytest.approx(0.2, abs=1e-6)
    assert "three or more columns" in drawn(both_ends()).folded
    assert "not accounted for" in [bar.label for bar in drawn(row(base=0.4)).bars]
    assert len(drawn(row(base=0.6 + 1e-4)).bars) == 5, "rounding is no step"


def test_a_long_list_ends_in_others() -> None:
    mark = waterfall(row(), MarkSettings(most=1))
    assert [(bar.label, round(bar.score, 6)) for bar in mark.bars[1:-1]] == [("age", 0.5), ("2 others", -0.1)]


def test_what_has_no_start_or_no_sign_has_bars() -> None:
    for other in (
        row(base=None),
        row(signed=False),
        row(scores=np.zeros(3, np.float32)),
        samples.text("shap", signed=True),
    ):
        assert not has_waterfall(other)
        assert not any(m.starts for panel in other.view().panels for m in panel.marks if isinstance(m, Bars))


def test_every_back_end_draws_it(capsys: pytest.CaptureFixture[str]) -> None:
    shown = both_ends()
    shown.show()
    told = capsys.readouterr().out
    lines = [
        line for line in told.splitlines() if re.match(r"(baseline|age|income|city|interactions|this row)\b", line)
    ]
    assert len(lines) == 6 and "beyond the scale" not in told and "largest |score|" not in told
    cells = [(len(line) - len(line.split()[-1]), len(line)) for line in lines[1:-1]]
    assert cells[0][1] == cells[1][1] and cells[1][0] == cells[2][0] and cells[2][1] == cells[3][0], (
        "each begins where one ends"
    )
    html = samples.still(shown.to_html())
    assert html.count('class="wf-bar"') == 6 and 'class="wf-axis"' not in html
    assert shown.plot() is not None
