"""Many rows averaged: equal to averaging by hand, whatever the batches; nothing grows with the table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import whyformer as wf
from tests.models import CASES
from tests.tables.models import CATEGORIES, LAYOUTS, NUMBERS, rows, saint, shared, table
from whyformer.errors import BadInput
from whyformer.tables import GlobalExplanation
from whyformer.tables.table_results import Remarks

SOME = rows(23)


@pytest.mark.parametrize("method", ["raw_attention", "occlusion"])
def test_it_is_the_mean_over_rows(method: str) -> None:
    model = LAYOUTS["rtdl"].build()
    each = np.stack([e.scores for e in wf.explain(model, SOME, processor=table(), method=method, target=1)]).astype(
        float
    )
    found = wf.explain_global(model, pd.DataFrame(SOME), processor=table(), method=method, target=1, batch_size=5)
    assert found.rows == 23 and found.target == "yes" and found.labels == ("[CLS]", *NUMBERS, *CATEGORIES)
    np.testing.assert_allclose(found.mean, each.mean(0), atol=1e-5)
    np.testing.assert_allclose(found.mean_size, np.abs(each).mean(0), atol=1e-5)
    error = 1.96 * each.std(0, ddof=1) / np.sqrt(23)
    np.testing.assert_allclose(found.high - found.mean, error, atol=1e-5)
    np.testing.assert_allclose(found.mean - found.low, error, atol=1e-5)
    assert found.samples is not None and found.samples.shape == (23, 6)
    assert found.ranked()[0][0] != "[CLS]" and len(found.ranked()) == 5
    if method == "raw_attention":
        whole = np.stack([e.matrix for e in wf.explain(model, SOME, processor=table(), method=method)]).mean(0)
        np.testing.assert_allclose(found.matrix, whole, atol=1e-5)


def test_columns_that_attention_does_not_see_have_no_score() -> None:
    found = wf.explain_global(shared("lucidrains_tab"), SOME, processor=table())
    frame = found.to_frame().set_index("column")
    assert found.unseen == NUMBERS
    assert frame.loc[list(NUMBERS), "mean"].isna().all() and not frame.loc[list(NUMBERS), "explained"].any()
    assert frame.loc[list(CATEGORIES), "mean"].notna().all()
    assert "age" not in dict(found.ranked(specials=True))


def test_few_samples_are_kept_and_signed_scores_of_several_classes_warn() -> None:
    found = wf.explain_global(shared("rtdl"), SOME, processor=table(), method="input_x_gradient", samples=4)
    assert found.samples is not None and len(found.samples) == 4 and len(found.sample_values) == 4
    assert found.target == "the prediction of each row" and any("pass target=" in w for w in found.warnings)
    assert found.importance is found.mean_size


def test_saint_and_plain_tensors() -> None:
    found = wf.explain_global(saint(), SOME[:3], processor=table(reference=rows(8, seed=2)), target=1)
    assert found.rows == 3 and any("looking" in w or "look at each other" in w for w in found.warnings)
    case = CASES["rtdl_ft_transformer"]
    plain = wf.explain_global(case.build(None), case.inputs(), target=0)
    assert plain.rows == 2 and plain.labels[1] == "x_cont[0]"


def test_warnings_of_one_kind_are_told_once_and_none_is_dropped() -> None:
    model = LAYOUTS["rtdl"].build()
    how = {"processor": table(), "method": "integrated_gradients", "steps": 1, "target": 1}
    each = [w for e in wf.explain(model, SOME, **how) for w in e.warnings if "miss" in w]
    shares = sorted(float(w.split("miss ")[1].split("%")[0]) for w in each)
    assert 2 <= len(each) and len(set(shares)) > 1
    (told,) = [w for w in wf.explain_global(model, SOME, batch_size=5, **how).warnings if "miss" in w]
    count = "all 23" if len(each) == 23 else f"{len(each)} of 23"
    assert f"miss {shares[0]:.0f}% to {shares[-1]:.0f}% of" in told and told.endswith(f"({count} rows)")
    assert "Table(…, reference=rows)" in told


def test_kinds_of_warnings() -> None:
    remarks = Remarks("rows")
    for row in range(12):
        remarks.add(["same for all, 3 times", f"{row} % here, x{row % 2} there", *[f"kind {'abcdefghijkl'[row]}"] * 2])
    assert remarks.told(12) == [
        "same for all, 3 times",
        "0 to 10 % here, x0 there (6 of 12 rows)",
        "kind a (1 of 12 rows)",
        "1 to 11 % here, x1 there (6 of 12 rows)",
        *(f"kind {letter} (1 of 12 rows)" for letter in "bcdefghijkl"),
    ]


def test_saved_and_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = wf.explain_global(shared("lucidrains_tab"), SOME, processor=table())
    for name in ("x.json", "x.npz"):
        again = GlobalExplanation.load(found.save(tmp_path / name))
        for array in ("mean", "low", "high", "mean_size", "size_low", "size_high", "matrix", "samples"):
            assert (getattr(again, array) is None) == (getattr(found, array) is None)
            if getattr(found, array) is not None:
                np.testing.assert_allclose(getattr(again, array), getattr(found, array))
        assert (again.labels, again.unseen, again.warnings) == (found.labels, found.unseen, found.warnings)
    with pytest.raises(BadInput, match="there is no folder"):
        found.save(tmp_path / "nowhere" / "x.json")
    found.show()
    out = capsys.readouterr().out
    assert "work" in out and "not explained by attention" in out
    assert "not explained by attention" in found.to_html()
    for name in ("x.png", "x.svg", "x.html"):
        assert found.save(tmp_path / name).stat().st_size > 1000
    with pytest.raises(BadInput, match="file type"):
        found.save(tmp_path / "x.txt")
    with pytest.raises(BadInput, match="no saved global explanation"):
        GlobalExplanation.load(tmp_path / "missing.json")


def test_errors_come_before_long_work() -> None:
    model = LAYOUTS["rtdl"].build()
    bad = [*SOME, SOME[0] | {"work": "other"}]
    with pytest.raises(BadInput, match="row 23 of column 'work'"):
        wf.explain_global(model, bad, processor=table())
    with pytest.raises(BadInput, match="2 targets for 23 rows"):
        wf.explain_global(model, SOME, processor=table(), target=[0, 1])
    with pytest.raises(BadInput, match="samples=-1"):
        wf.explain_global(model, SOME, processor=table(), samples=-1)
    with pytest.raises(BadInput, match="processor=Table"):
        wf.explain_global(model, [{"age": 1}])
