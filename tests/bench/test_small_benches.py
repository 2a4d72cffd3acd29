"""Benches of capabilities, shapes, jobs, nonsense calls: parts by known answers, each in small."""

from __future__ import annotations

import faulthandler
import random
import shlex
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bench import coverage, fuzz, small, strain
from bench.mutations import MUTATIONS, ROOT
from training import shapes
from whyformer.proxy.chat import with_field


def test_capabilities_of_the_coverage_page() -> None:
    """Some rows are tried again; a row whose call does something else is found."""
    rows = {cells[1]: cells for line in coverage.PAGE.read_text().splitlines() if len(cells := line.split("|")) > 6}
    numbered = {int(number): cells for number, cells in rows.items() if number.isdigit()}
    assert list(numbered) == list(range(1, 41)) and set(numbered) == {*coverage.CHECKS, 40}
    assert {n for n, cells in numbered.items() if cells[-2] != "works"} == set(coverage.BUT)
    at = coverage.Things()
    for number in (1, 4, 5, 6, 7, 8, 10, 20, 23, 32, 34, 35, 38, 40):
        assert coverage.verdict(number, numbered[number][4].strip("`"), at) == numbered[number][-2], number
    for number, other in ((4, 5), (6, 7), (20, 23)):
        assert coverage.verdict(number, numbered[other][4].strip("`"), at).startswith("fails: AssertionError")


# Calls that make no sense end in an error of ours and change nothing (bench/fuzz.py in short); current mutations.


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


def test_the_default_is_timed_beside_its_forwards(capsys: pytest.CaptureFixture[str]) -> None:
    small.default_table("cpu", 1, layers=())
    row = [cell.strip() for cell in capsys.readouterr().out.splitlines()[-1].split("|")]
    assert row[1:3] == ["shipped", "105"] and float(row[5]) == pytest.approx(float(row[4]) / float(row[3]), abs=0.02)


def test_questions_about_shapes() -> None:
    """The cell that is asked about holds the answer, and no other does."""
    generator = np.random.default_rng(0)
    for asked in (shapes.question(generator) for _ in range(20)):
        colour, shape = asked.text.split()[-1], asked.answer
        if asked.text.startswith("what colour"):
            colour, shape = shape, colour
        row, column = divmod(asked.cell, shapes.SIDE)
        side = shapes.CELL
        cell = asked.picture[row * side : (row + 1) * side, column * side : (column + 1) * side]
        drawn = (cell == shapes.COLOURS[colour]).all(-1)
        assert np.array_equal(drawn, shapes._drawn(shape))


def test_what_came_through_the_proxy_is_compared_with_what_was_sent() -> None:
    added = {"reason": "busy"}
    assert strain.parted(with_field(strain.whole(7), {"id": 1}, added)) == (strain.whole(7), added)
    with pytest.raises(ValueError):
        strain.parted(strain.whole(7))
