"""Random modules beside brute force (bench/fuzz_modules.py in short): one of each kind of input."""

import pytest

from bench import fuzz_modules
from bench.fuzz_source import ENTRANCES, written
from whyformer.results.types import Explanation


def test_values_and_models_are_right_for_each_kind_of_input() -> None:
    for seed in range(len(ENTRANCES)):
        case, comparisons = fuzz_modules.examine(seed)
        assert case.source == written(seed).source
        wrong = [c for c in comparisons if c.check in ("value", "finite", "unchanged", "sum") and c.outcome == "silent"]
        assert wrong == [] and {"unchanged"} <= {c.check for c in comparisons}, seed


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
