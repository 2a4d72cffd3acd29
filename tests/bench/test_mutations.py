"""Mutations stay current: each old text occurs exactly once, and the tests that it names exist. They are not run."""

from __future__ import annotations

import shlex

from bench.mutations import MUTATIONS, ROOT


def test_every_mutation_can_be_made() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 45
    for mutation in MUTATIONS:
        source = (ROOT / "src/whyformer" / mutation.file).read_text(encoding="utf-8")
        assert source.count(mutation.old) == 1, mutation.name
        assert mutation.new != mutation.old
        files = [word for word in shlex.split(mutation.tests) if word.startswith("tests/")]
        assert files and all((ROOT / name).exists() for name in files), mutation.name
