"""The size and the structure of the package: limits that hold go on holding, and the others come no further away."""

from __future__ import annotations

from bench import house


def test_no_limit_is_broken_that_held() -> None:
    counts = house.counts()
    assert counts.keys() == house.LIMITS.keys() >= house.SO_FAR.keys()
    most = house.LIMITS | house.SO_FAR
    assert {name: f"{count} of at most {most[name]}" for name, count in counts.items() if count > most[name]} == {}


def test_what_is_above_its_limit_is_written_down() -> None:
    assert {name: most for name, most in house.SO_FAR.items() if most <= house.LIMITS[name]} == {}
