"""Random modules beside brute force (bench/fuzz_modules.py in short): one of each kind of input."""

import pytest

from bench import fuzz_modules
from bench.fuzz_source import ENTRANCES, written
from whyformer.results.types import Explanation


def test_no_module_has_a_silent_difference_or_an_error_of_python() -> None:
    """One of each kind of input."""
    for seed in range(11, 11 + len(ENTRANCES)):
        case, comparisons = fuzz_modules.examine(seed)
        assert case.source == written(seed).source
        assert [c for c in comparisons if c.outcome in ("silent", "foreign")] == [], seed
        assert {"unchanged"} <= {c.check for c in comparisons}


def test_wrong_scores_are_silent_differences(monkeypatch: pytest.MonkeyPatch) -> None:
    """The comparisons notice a library whose scores are off by a tenth, and an error of Python."""
    scores, seed = Explanation.__init__, 32
    assert not [c for c in fuzz_modules.examine(seed)[1] if c.check in ("equal", "sum") and c.outcome == "silent"]

    def wrong(self: Explanation, **fields: object) -> None:
        scores(self, **fields | {"scores": fields["scores"] * 1.1})  # type: ignore[operator, arg-type]

    monkeypatch.setattr(Explanation, "__init__", wrong)
    silent = {c.check for c in fuzz_modules.examine(seed)[1] if c.outcome == "silent"}
    assert {"equal", "sum"} <= silent
    monkeypatch.setattr(Explanation, "__init__", lambda self, **fields: 1 / 0)
    assert "foreign" in {c.outcome for c in fuzz_modules.examine(seed)[1] if c.check == "runs"}
