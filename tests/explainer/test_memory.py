"""Memory as it is told in the cost of an explanation."""

from __future__ import annotations

import os
from mmap import mmap
from pathlib import Path

import pytest
import torch

from tests.methods.properties import explained
from whyformer.loan import spread as module
from whyformer.loan.spread import CLEAR, Peak

LARGE = 64 << 20


@pytest.mark.skipif(not os.access(CLEAR, os.W_OK), reason="this system does not tell, and 0 is reported")
def test_the_highest_moment_counts_also_when_it_is_over() -> None:
    peak = Peak(torch.device("cpu"))
    fresh = mmap(-1, LARGE)  # a tensor might come to lie in what the process has free already
    fresh.write(b"1" * LARGE)
    assert peak.bytes > 0.9 * LARGE
    fresh.close()
    assert peak.bytes > 0.9 * LARGE
    assert Peak(torch.device("cpu")).bytes < LARGE / 2


def test_where_the_system_does_not_tell_it_is_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "CLEAR", tmp_path / "nowhere" / "clear_refs")
    peak = Peak(torch.device("cpu"))
    kept = torch.ones(LARGE // 4)
    assert peak.bytes == 0
    assert len(kept)


def test_it_is_part_of_the_cost() -> None:
    (found, *_) = explained("bert", method="generic_attention")
    assert isinstance(found.cost.peak_bytes, int)
    assert found.cost.peak_bytes >= 0
