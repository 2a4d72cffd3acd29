"""Benches of attention, one pass, rows in context, jobs, nonsense calls: parts by known answers, each in small."""

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
import torch
from torch.overrides import TorchFunctionMode

import whyformer as wf
from bench import attention_debate, coverage, fuzz, heads_by_layer, house, in_context, proxy, small, vision_language
from bench.in_context_model import trained
from bench.mutations import MUTATIONS, ROOT
from bench.needle import FACTS, Case, case_of, judged
from bench.one_pass import FORMULAS, INTEGRALS, main, one_pass, plain, products
from tests.models import CASES
from training import shapes
from whyformer.demo import load_sentiment
from whyformer.inputs.units import sentences
from whyformer.proxy.chat import Reply, event_of, with_field
from whyformer.results.types import Cost, Explanation, Target, Units

GOOD, BAD = ("good", "great", "fine", "fun"), ("bad", "awful", "dull", "slow")
OTHER = ("the", "a", "film", "plot", "and", "but")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Sentences with one word that decides."""
    path, rng = tmp_path, np.random.default_rng(0)
    for name, count in (("train", 160), ("dev", 24), ("test", 24)):
        lines = []
        for i in range(count):
            words = [*rng.choice(OTHER, rng.integers(3, 8)), rng.choice(GOOD if i % 2 else BAD)]
            lines.append(" ".join(rng.permutation(words)) + f"\t{i % 2}")
        (path / f"{name}.tsv").write_text("\n".join(lines), encoding="utf-8")
    return path


def test_one_word_is_one_thing() -> None:
    """Names of classes and files are used once, also those that came since they were counted last."""
    assert not house.repeated(house.class_names())
    assert not house.repeated(house.file_names())
    assert house.parameters_named("how") == 0


def test_the_debate_in_small(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A debate that lies in the folder is read."""
    monkeypatch.setattr(attention_debate, "EPOCHS", 1)
    sizes = ["--train", 20, "--held", 8, "--tested", 2, "--encoders", "BiLSTM"]
    monkeypatch.setattr(sys, "argv", ["attention_debate", *map(str, ["--sst", folder, "--out", tmp_path, *sizes])])
    for _ in range(2):
        attention_debate.main()
        rows = {line.split(" | ")[0]: line for line in capsys.readouterr().out.splitlines() if line[:1] == "|"}
        assert rows["|"].split(" | ")[1:] == ["SST BiLSTM", "SST, papers |"]
        assert all(f"| {name}" in rows for name in attention_debate.PAPERS["SST"])
        assert rows["| Verdict"] == "| Verdict | inconclusive |  |"
        monkeypatch.setattr(attention_debate.wf, "attention_debate", None)


class LibraGrad(TorchFunctionMode):
    """Mehri et al. 2024 in their own terms: paths that are not affine are pruned from the backward pass."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ == "softmax":
            return out.detach()  # self-attention: values alone
        if func.__name__ == "gelu":
            return args[0] * torch.special.ndtr(args[0]).detach()  # x · Φ(x): the gate is pruned
        if func.__name__ == "layer_norm":
            x = args[0]
            deviation = (x.var(-1, correction=0, keepdim=True) + kwargs["eps"]).sqrt().detach()
            return (x - x.mean(-1, keepdim=True)) / deviation * kwargs["weight"] + kwargs["bias"]
        return out


def test_input_times_libra_gradient_is_cp_lrp() -> None:
    case = CASES["vit"]
    model, inputs = case.build("eager"), case.inputs()
    pixels = inputs["pixel_values"].clone().requires_grad_()
    with LibraGrad():
        score = model(pixel_values=pixels).logits[:, 1].sum()
    terms = (pixels * torch.autograd.grad(score, pixels)[0]).detach()
    explained = wf.explain(model, inputs, method="cp_lrp", scalar="logit", target=1)
    for one, expected in zip(explained, terms, strict=True):
        assert one.detail is not None
        np.testing.assert_allclose(one.detail, expected.numpy(), atol=1e-5 * float(expected.abs().max()))


def test_values_times_gradient_from_the_maps_of_one_pass() -> None:
    model, tokenizer = load_sentiment()
    text = "a slow film , but not a bad one"
    expected = wf.explain(model, text, processor=tokenizer, method="value_x_gradient", scalar="logit", target=1).scores
    maps = products(one_pass(plain(model), dict(tokenizer(text, return_tensors="pt")), 1))
    summed = torch.stack([m.sum((0, 1)) for m in maps]).sum(0).numpy()
    np.testing.assert_allclose(summed, expected, atol=1e-5 * np.abs(expected).max())


def test_one_pass_in_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "few.tsv"
    path.write_text("a fine film\t1\nso very boring\t0\n")
    assert main(["text", "--data", str(path), "--inputs", "2", "--methods", "value_x_gradient"]) == 0
    shown = capsys.readouterr().out
    rows = [line.split(" | ")[0].removeprefix("| ") for line in shown.splitlines() if line.startswith("| ")]
    assert set(rows) == {"scores", "generic_attention", "value_x_gradient", *FORMULAS, *INTEGRALS}
    assert "nan" not in shown


def test_in_context_in_small() -> None:
    torch.manual_seed(0)
    options = in_context.parsed(["--device", "cpu", "--tasks", 2, "--known", 5, "--orders", 4])
    model = trained(1, 0, "cpu", batch=2, log=0)
    results = in_context.measured(model, options, float("inf"))
    printed = in_context.tables({"accuracy": {"model": [0.5, 0.7]}, "results": results, "machine": "here"})
    assert "| weight gradient |" in printed and "linear tasks, columns" in printed and printed.endswith("here")
    assert len(in_context.measured(model, options, 0.0)) == 2  # of fewer there is no interval
    one = {"accuracy": {"model": [0.5]}, "results": results, "machine": "here"}
    both = in_context.merged([one, one | {"machine": "there"}])
    assert both["accuracy"] == {"model": [0.5, 0.5]} and both["machine"] == "here\n\nthere"


def test_the_report_on_heads_finds_the_known_induction_heads(capsys: pytest.CaptureFixture[str]) -> None:
    heads_by_layer.induced(None)
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    found = {head: dict(zip(rows[0][1:], map(float, numbers), strict=True)) for head, *numbers in rows[1:]}
    assert len(found) == 8
    assert max(found, key=lambda head: found[head]["word before"]) == "0.0"
    assert (
        found["0.0"]["repeated without it"]
        < 0.6
        < min(row["repeated without it"] for row in found.values() if row is not found["0.0"])
    )
    for head, row in found.items():
        assert (row["induction"] > 0.5) == head.startswith("1"), head
        assert row["copying"] > 0.9 or not head.startswith("1"), head


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


# The needle bench: one sentence holds the answer, and ranks are counted as said.


class Words:
    """Splits at spaces: as much of a tokenizer as writing a case takes."""

    def __call__(self, text: str) -> dict[str, list[str]]:
        return {"input_ids": text.split()}

    def apply_chat_template(self, messages: list[dict[str, str]], **_: Any) -> str:
        return f"<user>\n{messages[0]['content']}<end>\n<assistant>\n"


@pytest.mark.parametrize(("number", "chat"), [(0, True), (1, False)])
def test_one_sentence_holds_the_answer(number: int, chat: bool) -> None:
    case = case_of(Words(), 0, number, chat)
    passage = case.prompt[slice(*case.passage)]
    spans = sentences(case.prompt)
    needle = case.prompt[slice(*case.needle)]
    assert case.needle in spans and needle.endswith(f" is {case.number}.")
    facts = [sentence for sentence in passage.split(". ") if " is " in sentence]
    assert len(facts) == FACTS
    assert [case.number[0]] == [f.split()[-1][0] for f in facts if f.split()[-1][0] == case.number[0]]
    assert case.prompt.endswith(needle.removesuffix(f"{case.number}."))  # the begun answer is the needle's own words
    assert case.prompt.count(case.number) == 1
    assert case.other in passage and case.other[0] != case.number[0]
    assert case.with_number("0000").count("0000.") == 1 and case.number not in case.with_number("0000")


LETTERS = Case("A b. C d. E f. G", (0, 14), (5, 9), "d", "f")  # three sentences, and what the prompt ends with


def scored(scores: list[float], spans: tuple[tuple[int, int], ...]) -> Explanation:
    count = len(scores)
    units = Units(("x",) * count, (False,) * count, ("text",) * count, spans=spans)
    at = Target(0)
    return Explanation(np.array(scores, np.float32), units, at, "logit", 1.0, at, "attn_lrp", cost=Cost(1.0, 1.0))


def test_ranks() -> None:
    """Among the passage, among all, and both again without the first token, which the first sentence begins with."""
    spans = ((0, 1), (1, 4), (5, 6), (6, 9), (10, 11), (11, 14), (15, 16))
    row = judged(LETTERS, scored([9.0, 0.0, 2.0, 1.0, 3.0, -3.0, 5.0], spans))
    assert row["ranks"]["sum"] == [2, 3, 1, 2]
    assert row["ranks"]["max"] == [3, 4, 2, 3]
    assert row["ranks"]["positive"] == [3, 4, 2, 3]  # of two that are equal, the other stands above
    assert row["first_token"] == pytest.approx(9 / 23)


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
    assert row[1:3] == ["shipped", "60"] and float(row[5]) == pytest.approx(float(row[4]) / float(row[3]), abs=0.02)


def test_questions_about_shapes_in_small() -> None:
    """The cell that is asked about holds the answer, and no other does; the bench finds it by a known map."""
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
    net, reads = shapes.model().eval(), shapes.processor()
    shares = dict(vision_language.pointing(net, reads, 30, ["attn_lrp"]))
    assert 0 <= shares.pop("answered right") < 1 and set(shares) == {"attn_lrp"}
    assert all(0 <= share <= 1 for share in shares.values())


def test_the_bench_of_the_proxy_sees_altered_completions() -> None:
    """bench.proxy compares what arrives, without the field, with what was sent."""
    added = {"reason": "busy"}
    assert proxy.parted(with_field(proxy.whole(7), {"id": 1}, added), False) == (proxy.whole(7), added)
    *some, done = proxy.events(7)
    sent = b"".join([*some, event_of(Reply(), added), done])
    assert proxy.parted(sent, True) == (b"".join([*some, done]), added)
    with pytest.raises(ValueError):
        proxy.parted(b"".join([*some, done]), True)
