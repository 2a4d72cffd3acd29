"""Calls that make no sense end in an error of ours and change nothing (bench/fuzz.py in short); current mutations."""

from __future__ import annotations

import faulthandler
import random
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import pytest

from bench import fuzz
from bench.mutations import MUTATIONS, ROOT


def test_nonsense_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here in this process, which has imported the libraries already; one that hangs is ended, and with it the test."""
    stage = fuzz.Stage(tmp_path)
    monkeypatch.chdir(tmp_path)
    before = random.getstate()
    reports = []
    try:
        with stage.doors, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            calls = fuzz.chosen_calls(stage, 40, 0, None)
            random.seed(0)
            for call in calls:
                faulthandler.dump_traceback_later(10 * fuzz.LIMIT, exit=True)
                reports.append(fuzz.outcome(stage, call, stage.state()))
    finally:
        faulthandler.cancel_dump_traceback_later()
        random.setstate(before)
    assert len(reports) == 40
    assert [report for report in reports if report["outcome"] not in ("ours", "taken")] == []


WORKER = """
import json, os, sys, time
for number in range(int(sys.argv[1]), 4):
    print(json.dumps({"begins": number, "of": 4, "area": "verbs", "call": f"call {number}"}), flush=True)
    if number == 1:
        os._exit(3)
    if number == 2:
        time.sleep(60)
    print(json.dumps({"area": "verbs", "call": f"call {number}", "outcome": "ours", "said": ""}), flush=True)
"""


def test_a_process_that_dies_or_hangs_is_started_again_behind_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    start = subprocess.Popen

    def light(command: list[str], **how: Any) -> Any:
        return start([sys.executable, "-S", "-c", WORKER, command[command.index("--from") + 1]], **how)

    monkeypatch.setattr(fuzz.subprocess, "Popen", light)
    monkeypatch.setattr(fuzz, "LIMIT", 2.0)
    ended = [(report["call"], report["outcome"]) for report in fuzz.ended_calls(4, 0, None)]
    assert ended == [("call 0", "ours"), ("call 1", "crash"), ("call 2", "hang"), ("call 3", "ours")]


def test_every_mutation_can_be_made() -> None:
    assert len({mutation.name for mutation in MUTATIONS}) == len(MUTATIONS) >= 45
    for mutation in MUTATIONS:
        source = (ROOT / "src/whyformer" / mutation.file).read_text(encoding="utf-8")
        assert source.count(mutation.old) == 1, mutation.name
        assert mutation.new != mutation.old
        files = [word for word in shlex.split(mutation.tests) if word.startswith("tests/")]
        assert files and all((ROOT / name).exists() for name in files), mutation.name
