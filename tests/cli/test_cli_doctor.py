"""whyformer doctor: what is said of extras and devices, and that its self-test can fail."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from tests.cli.test_cli import run
from whyformer import extras
from whyformer.cli import _selftest, doctor
from whyformer.cli._selftest import by_hand, self_test


def test_every_extra_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed", lambda module: module == "transformers")
    shown = " ".join(run("doctor", "--no-test").stdout.split())
    told = json.loads(run("doctor", "--json", "--no-test").stdout)
    names = {extra for _, extra in extras.LIBRARIES.values() if extra} | {"notebook"}
    assert {each["name"] for each in told["extras"]} == names and told["self_test"] == []
    for name in names:
        assert f"pip install 'whyformer[{name}]'" in shown
    assert not any(each["present"] for each in told["extras"]) and set(told["models"].values()) == {None}


def test_what_a_gpu_can_be_used_for() -> None:
    device = {"name": "cuda:0", "what": "A GPU, 8 GiB", "uses": {"triton": False, "cuda_graphs": True}}
    assert doctor._device_words(device) == (
        "A GPU, 8 GiB; no Triton (pip install triton: long inputs); CUDA graphs (compiled=True)"
    )
    device["uses"] = {"triton": True, "cuda_graphs": True}
    assert "Triton kernels for long inputs" in doctor._device_words(device)


def test_the_self_test_fails_where_numbers_are_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    assert self_test("cpu")["trouble"] == ""
    assert "RuntimeError" in self_test("meta:7")["trouble"] + self_test("nowhere")["trouble"]
    attention, scores = by_hand()
    assert attention.sum() == pytest.approx(1.0) and np.ptp(scores) > 0.1

    def off(what: int) -> tuple[Any, Any]:
        return (attention + 0.01 * (what == 0), scores + 0.01 * (what == 1))

    for what, method in enumerate(("raw_attention", "generic_attention")):
        monkeypatch.setattr(_selftest, "by_hand", lambda what=what: off(what))
        assert self_test("cpu")["trouble"].startswith(f"{method} is off by 1.0e-02")
    assert run("doctor", code=1).stdout.count("FAILED") == 1
