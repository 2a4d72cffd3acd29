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


@pytest.mark.parametrize(
    "seed",
    [
        pytest.param(301001, id="an average over maskings has the units of its method"),
        pytest.param(301161, id="rows that a guide saw to change each other are measured one by one"),
        pytest.param(303118, id="gradients that hold for each input are not refused for a batch"),
        pytest.param(303085, id="one input of a batch has zeros only"),
        pytest.param(302143, id="a masked input has other units"),
        pytest.param(303409, id="a text whose tokens are sorted has a beginning"),
        pytest.param(302324, id="a patch is no token of the model's own"),
        pytest.param(303087, id="the effects of an argument that is no unit cancel out"),
        pytest.param(302065, id="padding that is sorted in is a part of the input"),
        pytest.param(302125, id="arguments that are sorted are named in their order"),
        pytest.param(303438, id="a guide that is opposed to what was measured is left out"),
        pytest.param(302217, id="ids and flags of a recurrent model are several tensors"),
        pytest.param(301089, id="a head reads padding"),
    ],
)
def test_what_once_was_silent(seed: int) -> None:
    comparisons = fuzz_modules.examine(seed)[1]
    assert [c for c in comparisons if c.outcome in ("silent", "foreign")] == []


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
