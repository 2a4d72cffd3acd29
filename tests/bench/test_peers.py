"""The bench of other libraries: its arithmetic by known answers, its page from rows; no environment is made here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from bench.peers import environments, page, questions
from bench.peers.environments import PEERS, Peer, python_of, torch_pin
from bench.peers.questions import Question, answered, difference, lines_of, rank_correlation
from bench.peers.subjects import WORDS
from bench.peers.worker import FILES, asked

REPORTS = Path(environments.ROOT) / "docs" / "reports"
ROW: dict[str, Any] = {
    "about": "saliency", "subject": "sentence", "timed": "larger, sentence", "differs": "", "difference": 2e-8,
    "rank correlation": 1.0, "lines": {"theirs": 5, "ours": 2}, "rounds": 3, "ratio": 2.5, "clock": "process_time",
    "median": {"theirs": 0.5, "ours": 0.2}, "megabytes": {"theirs": 31.4, "ours": 12.6},
}  # fmt: skip
DATA: dict[str, Any] = {
    "machine": "2 CPU cores", "device": "cpu", "threads": 1,
    "peers": {
        "captum": {
            "pins": ["captum==1"], "versions": {"python": "3.11", "captum": "1"}, "date": "2030-01-02",
            "questions": [ROW, ROW | {"about": "LRP", "difference": 0.3, "differs": "another rule", "ratio": 0.5}],
            "attempts": [{"about": "a list", "theirs": "TypeError: no lists", "ours": "runs"}],
        },
        "shap": {
            "pins": ["shap==2"], "questions": [{"about": "q", "failed": "KeyError: 1"}], "attempts": [],
            "failed": "crashed",
        },
    },
}  # fmt: skip


def side(model: Any, text: str) -> Any:
    import math

    # A comment is not written by a user.
    twice = 2 * model

    def predict(x: float) -> float:
        return math.floor(x)

    def call() -> Any:
        return [predict(twice), float(len(text))]

    return call


def test_lines_and_differences() -> None:
    assert lines_of(side) == 5  # import, twice, two of predict, and the scores
    assert difference([1.0, -4.0], [1.0, -3.0]) == 0.25 and difference(torch.tensor([2.0]), np.array([2.0])) == 0
    assert rank_correlation([1, 2, 3], [3, 5, 9]) == pytest.approx(1) and rank_correlation([1, 2, 3], [3, 2, 1]) == -1
    with pytest.raises(ValueError, match="2 scores, whyformer 1"):
        difference([1.0, 2.0], [1.0])
    with pytest.raises(ValueError, match="are 0"):
        difference([0.0], [1.0])


def test_a_question_is_asked_on_both_sides() -> None:
    def ours(model: Any, text: str) -> Any:
        return lambda: [2 * model, 3.0]

    question = Question("q", "small", theirs=side, ours=ours, timed="large")
    subjects = {"small": (1, "abc"), "large": (5, "abc")}
    row = answered(question, subjects.__getitem__, "cpu", seconds=0.01)
    assert row["difference"] == 0 and row["lines"]["theirs"] == 5 and row["timed"] == "large"
    assert row["rounds"] >= 3 and set(row["seconds"]) == set(row["megabytes"]) == {"theirs", "ours"}


def test_times() -> None:
    row = questions.summed_up({"theirs": [4.0, 8.0, 6.0], "ours": [2.0, 2.0, 1.0]})
    assert row["seconds"] == {"theirs": 4.0, "ours": 1.0} and row["ratio"] == 4.0
    assert row["median"] == {"theirs": 6.0, "ours": 2.0} and row["rounds"] == 3


def test_a_peer_that_patches_classes_comes_after_ours() -> None:
    order: list[str] = []

    def theirs() -> Any:
        order.append("theirs prepared")
        return lambda: order.append("theirs") or [1.0]

    def ours() -> Any:
        return lambda: order.append("ours") or [1.0]

    for patches in (True, False):
        order.clear()
        answered(Question("q", "s", theirs=theirs, ours=ours, patches=patches), lambda _: (), "cpu", 0.01)
        assert ("ours" in order[order.index("theirs prepared") :]) is not patches


def test_page_from_rows() -> None:
    text = page.page(DATA)
    assert "Of 2 questions to 2 libraries, 1 have the same numbers (difference at most 0.0001) and 1 differ" in text
    assert "faster in 1 and slower in 1." in text and "- Faster there (how many times): captum, LRP (2)." in text
    assert "|captum|saliency|2e-08|500|200|2.5|31/13|5/2|" in text
    assert "|500*|" in page.costs(DATA | {"peers": {"p": {"questions": [ROW | {"clock": "perf_counter"}]}}})
    assert "|captum|LRP|1.00|another rule|" in text and "|captum|saliency|1.00|" not in text
    assert "|captum|a list|`TypeError: no lists`|runs|" in text
    assert "|shap||`crashed`|" in text and "|shap|q|`KeyError: 1`|" in text and "2030-01-02" in text
    other = page.page(
        DATA | {"peers": {"captum": DATA["peers"]["captum"] | {"questions": [ROW | {"difference": 1.0}]}}}
    )
    assert "**not explained**" in other
    there = page.page(DATA, DATA | {"machine": "a GPU", "peers": {"captum": DATA["peers"]["captum"]}})
    assert "a GPU. Of 2 questions to 1 libraries" in there and "Not installed there: shap, inseq, lxt" in there


def test_short_numbers() -> None:
    values = (0.0, 3.4e-8, 0.0042, 0.3123, 5.31, 87.4, 870.4, 12345.0)
    assert [page.short(v) for v in values] == ["0", "3e-08", "0.0042", "0.31", "5.3", "87", "870", "12345"]


def test_every_peer_is_pinned_and_asked() -> None:
    assert all("==" in requirement for peer in PEERS.values() for requirement in peer.requirements)
    assert torch_pin().startswith("torch==") and len(PEERS) == 14
    for name in PEERS:
        found = asked(name)
        assert all(q.subject in WORDS and (q.timed or q.subject) in WORDS for q in found)
        assert len({q.about for q in found}) == len(found)
    assert set(FILES) == {"classifiers", "pictures", "language", "citing"}


def test_an_environment_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    peer, ran = Peer("p", ("p==1",), "p"), []

    class Done:
        returncode, stderr = 0, ""

    monkeypatch.setattr(
        environments.venv, "create", lambda home, **_: (Path(home) / "lib").mkdir(parents=True, exist_ok=True)
    )
    monkeypatch.setattr(environments.sysconfig, "get_path", lambda *_, **__: str(tmp_path / "p" / "lib"))
    monkeypatch.setattr(environments.subprocess, "run", lambda command, **_: ran.append(command) or Done())
    for _ in range(2):
        assert environments.made(peer, tmp_path) == python_of(tmp_path / "p")
    assert len(ran) == 1 and ran[0][-2:] == [torch_pin(), "p==1"]
    Done.returncode, Done.stderr = 1, "WARNING: x\nERROR: no such version"
    with pytest.raises(environments.NotMade, match=r"^ERROR: no such version$"):
        environments.made(Peer("p", ("p==2",), "p"), tmp_path)


def test_the_page_is_of_its_data() -> None:
    data, gpu = (json.loads((REPORTS / name).read_text(encoding="utf-8")) for name in ("peers.json", "peers_gpu.json"))
    assert (REPORTS / "peers.md").read_text(encoding="utf-8") == page.page(data, gpu)
    assert "not explained" not in page.page(data, gpu)
