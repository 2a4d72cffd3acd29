"""``whyformer explain`` finds the kind of what it is given; Ctrl-C; and what ``whyformer doctor`` says of a machine."""

from __future__ import annotations

import csv
import json
import re
import signal
import subprocess
import sys
import types
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from rich.cells import cell_len

import whyformer as wf
from tests.cli.conftest import saved
from tests.cli.test_cli import run, told
from tests.support.language import model, tokenizer
from tests.tables.models import LAYOUTS, NUMBERS, RTDL, rows, table
from whyformer import __main__ as start
from whyformer import demo
from whyformer.cli import _selftest
from whyformer.cli import first_steps as doctor
from whyformer.cli._input import kind_of
from whyformer.cli._selftest import by_hand, self_test
from whyformer.demo.census import adult_rows
from whyformer.errors import LIBRARIES, BadInput
from whyformer.tables import CsvRows, load_model, save_model


@pytest.mark.parametrize(
    ("arguments", "titles", "model"),
    [
        (["-m", "grad_sam", "I like it", "So boring"], ["I like it", "So boring"], "BertForSequenceClassification"),
        (["lines.txt"], ["I like it", "So boring"], "BertForSequenceClassification"),
        (["--target", "dog", "photo.jpg"], ["Why 'dog'? · photo.jpg"], "ViTForImageClassification"),
        (["rows.csv"], ["row 0", "row 1"], "FTTransformer"),
    ],
)
def test_the_kind_is_found_and_a_shipped_model_answers(
    arguments: list[str], titles: list[str], model: str, files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(files)
    shown = run("explain", *arguments).stdout
    assert re.findall(r"^(.+?) ─+$", shown, re.MULTILINE) == titles
    assert shown.count(model) == len(titles) and len(re.findall(r"^prediction +\S", shown, re.MULTILINE)) == len(titles)


def test_lines_come_from_stdin_and_other_encodings_are_refused() -> None:
    shown = run("explain", "-", stdin="\ufeffI like it\n").stdout
    assert shown.startswith("I like it ──")
    assert "no line with a word" in run("explain", "text", "-", stdin=" \n\n", code=1).stderr
    for arguments in (("explain", "-"), ("explain", "text", "-"), ("explain", "prompt", "-", "--model", "m")):
        refused = run(*arguments, stdin=b"caf\xe9\n", code=1).stderr
        assert "stdin is not UTF-8 text (byte 3)" in refused and "iconv" in refused


def test_a_sentence_is_a_text_whatever_it_ends_with() -> None:
    assert (
        kind_of(["Look at cat.jpg", "see https://a.b/c"]) == kind_of([]) == kind_of(["-"]) == kind_of(["3.5"]) == "text"
    )
    with pytest.raises(BadInput, match="address"):
        kind_of(["HTTP://a.b"])


@pytest.mark.parametrize("given", ["I like the movie, but not its end", "photo.jpg"])
def test_sixty_columns_are_enough(given: str, files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(files)
    lines = run("explain", given, columns=60).stdout.splitlines()
    assert max(map(cell_len, lines)) <= 60 and any("█" in line or "▓" in line for line in lines)


# Ctrl-C


def test_a_stopped_command_leaves_no_traceback() -> None:
    # In the background shells have Ctrl-C ignored, which a child takes over: here it is heard whoever runs the tests.
    code = "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler); sys.argv[0] = 'whyformer'; "
    code += "from whyformer.__main__ import main; print('begins', flush=True); main()"  # whenever Python has started
    command = [sys.executable, "-c", code, "explain", "-"]
    pipe = subprocess.PIPE
    running = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True)
    assert running.stdout is not None and running.stdout.readline() == "begins\n"
    with pytest.raises(subprocess.TimeoutExpired):  # it waits for lines
        running.wait(1)
    running.send_signal(signal.SIGINT)
    out, error = running.communicate(timeout=60)
    assert (running.returncode, out, error) == (130, "", "Interrupted.\n")


def test_ctrl_c_while_libraries_are_loading(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped() -> None:
        raise KeyboardInterrupt

    loading: Any = types.ModuleType("whyformer.cli.main")
    loading.main = stopped
    monkeypatch.setitem(sys.modules, "whyformer.cli.main", loading)
    with pytest.raises(SystemExit) as ended:
        start.main()
    assert ended.value.code == 130 and capsys.readouterr().err == "Interrupted.\n"


# whyformer doctor


def test_every_extra_has_its_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "installed", lambda module: module == "transformers")
    shown = " ".join(run("doctor", "--no-test").stdout.split())
    listed = told("doctor", "--no-test")
    names = {extra for _, extra in LIBRARIES.values() if extra} | {"notebook"}
    assert {each["name"] for each in listed["extras"]} == names and listed["self_test"] == []
    for name in names:
        assert f"pip install 'whyformer[{name}]'" in shown
    assert not any(each["present"] for each in listed["extras"]) and set(listed["models"].values()) == {None}


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


# Language models from the command line: questions, prompts, and what cannot be asked.

PROMPT = "the capital of france is"


@pytest.fixture(scope="session")
def bare_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its tokenizer has no chat template."""
    folder, bare = tmp_path_factory.mktemp("gpt2"), deepcopy(tokenizer())
    bare.chat_template = None
    return saved(folder, model("gpt2"), bare)


def test_ask_puts_the_question_as_the_template_says(lm_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    said = run("ask", "where is paris ?", "--model", lm_folder, "--generate", 3, "--out", out)
    expected = wf.explain(
        model("llama"), [{"role": "user", "content": "where is paris ?"}], processor=tokenizer(), generate=3
    )
    assert expected.text.strip() in said.stdout and "where is paris ?" in said.stdout.splitlines()[0]
    assert "template: <|im_start|>user" in said.stdout and "wf-dialogue" in out.read_text(encoding="utf-8")


def test_ask_about_an_answer(lm_folder: Path) -> None:
    shown = told(
        "ask", "where is paris ?", "--model", lm_folder, "--answer", "in france . Yes .", "--system", "he said no .",
        "--units", "sentence", "-m", "attention_rollout",
    )  # fmt: skip
    assert (shown["what"], shown["text"]) == ("generation", "in france . Yes .")
    assert shown["sentences"] == [[0, 3], [3, 5]]
    last = shown["tokens"][-1]
    assert last["method"] == "attention_rollout"
    voices = dict(zip(last["units"]["labels"], last["units"]["role"], strict=True))
    assert (voices["he said no ."], voices["where is paris ?"]) == ("system", "user")


def test_ask_without_a_template_reads_the_question_as_it_stands(bare_folder: Path) -> None:
    result = run("ask", "-", "--model", bare_folder, "-g", 2, "--json", stdin="the cat sat\n")
    assert "no chat template" in result.stderr
    assert json.loads(result.stdout)["tokens"][0]["units"]["labels"] == ["the", "cat", "sat"]
    refused = run("ask", "the cat sat", "--model", bare_folder, "--system", "no", code=1).stderr
    assert "no chat template" not in refused and "this tokenizer has none" in refused


def test_ask_with_documents_cites_them(lm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs, out = tmp_path / "docs", tmp_path / "cited.json"
    (docs / "more").mkdir(parents=True)
    (docs / "b.txt").write_text("the dog ran home .\n", encoding="utf-8")
    (docs / "more" / "a.md").write_text("he sat .", encoding="utf-8")
    (docs / "empty.txt").write_text("\n", encoding="utf-8")
    (docs / "c.bin").write_bytes(b"\xff")
    asked = ("ask", "who ran ?", "--model", lm_folder, "--docs", docs, "--answer", "the dog .", "-m", "grad_sam")
    shown = run(*asked, "--out", out).stdout
    cited = wf.load(out)
    assert isinstance(cited, wf.Citations) and (cited.question, cited.answer) == ("who ran ?", "the dog .")
    assert (cited.names, cited.texts) == (("b.txt", "more/a.md"), ("the dog ran home .", "he sat ."))
    assert cited.method == "grad_sam" and "b.txt" in shown
    lengths = []

    def cite(*_: object, generate: int, **__: object) -> wf.Citations:
        lengths.append(generate)
        return cited

    monkeypatch.setattr("whyformer.language.citations.cite", cite)
    for more in ((), ("--generate", 2)):
        assert told("ask", "who ran ?", "--model", lm_folder, "--docs", docs, *more)["answer"] == "the dog ."
    assert lengths == [32, 2]


def test_trace_explains_a_run(lm_folder: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "run.json", tmp_path / "run.html"
    messages = [
        {"role": "user", "content": "where is the cat ? he said no ."},
        {"role": "assistant", "content": "on the mat ."},
        {"role": "user", "content": "who sat ?"},
        {"role": "assistant", "content": "the cat ."},
    ]
    file.write_text(json.dumps({"messages": messages}), encoding="utf-8")
    asked = ("trace", file, "--model", lm_folder, "-m", "generic_attention")
    shown = run(*asked, "--out", out).stdout
    expected = wf.trace(model("llama"), messages, processor=tokenizer(), method="generic_attention")
    assert "2 steps" in shown and "on the mat" in out.read_text(encoding="utf-8")
    found = told(*asked, "--units", "message", "--top", 2)
    assert (found["what"], found["units"], found["top"]) == ("trace", "message", 2)
    assert [step["text"] for step in found["steps"]] == [step.text for step in expected.steps]
    assert found["sources"][0]["text"] == messages[0]["content"]
    (tmp_path / "no.json").write_text("[1", encoding="utf-8")
    assert "is not a JSON file" in run("trace", tmp_path / "no.json", "--model", "nowhere", code=1).stderr
    assert "no run of an agent" in run("trace", tmp_path / "none.json", "--model", "nowhere", code=1).stderr


# explain prompt


def test_the_next_token_and_a_contrast(lm_folder: Path) -> None:
    shown = run("explain", "prompt", PROMPT, "--model", lm_folder).stdout
    assert shown.startswith(PROMPT) and "The first token, 'the', received" in " ".join(shown.split())
    rather = run("explain", "prompt", PROMPT, "--model", lm_folder, "--target", "paris", "--versus", "rome").stdout
    assert rather.startswith("Why 'paris' rather than 'rome'?")


def test_an_answer_as_a_whole_by_several_methods(lm_folder: Path, tmp_path: Path) -> None:
    shown = run(
        "explain", "prompt", PROMPT, "--model", lm_folder, "--answer", " paris and the dog", "--span",
        "-m", "generic_attention", "-m", "input_x_gradient", "--out", tmp_path / "x.json",
    ).stdout  # fmt: skip
    assert (
        len(re.findall(r"^answer +paris and the dog \(probability [<\d. ]+ % as a whole\)$", shown, re.MULTILINE)) == 2
    )
    for name in ("generic_attention", "input_x_gradient"):
        explanation = wf.load(tmp_path / f"x-{name}.json")
        assert explanation.scalar == "log_probability" and explanation.method == name


def test_choices_and_prompts_from_a_pipe_which_keep_their_lines(lm_folder: Path) -> None:
    shown = told("explain", "prompt", "-", "--model", lm_folder, "--choices", "yes, no", stdin="the cat\nsat on\n")
    assert shown["target"]["label"] in ("yes", "no") and shown["units"]["text"] == "the cat\nsat on"


# whyformer explain table, the shipped model, and long files.

MINE = """
from tests.tables.models import LAYOUTS, table

def load():
    return LAYOUTS["cls_last"].build(), table()

def learns_in_context():
    import whyformer as wf
    from tests.tables.in_context_model import InContext
    from tests.models.case import seeded

    model = seeded(lambda: InContext(width=8, layers=1, heads=2)).eval()
    return model, wf.Table(numerical=["age", "dose"], classes=["ill", "well"], target="state")

def wrong():
    return 3
"""


def written(path: Path, some: list[dict[str, object]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.DictWriter(stream, list(some[0]))
        writer.writeheader()
        writer.writerows(some)
    return path


def test_the_shipped_model_explains_its_rows(tmp_path: Path) -> None:
    shown = run("explain", "table", "--row", 1, "--row", 3, "--out", tmp_path / "x.html").stdout
    assert "row 1" in shown and "row 3" in shown and "age = " in shown and "two_ended" in shown
    assert "marital-status" in (tmp_path / "x.html").read_text()
    data = told("explain", "table", "-r", 0, "-m", "occlusion", "-t", ">50K")
    model, described = demo.load_adult()
    found = wf.explain(model, adult_rows()[0], processor=described, method="occlusion", target=">50K")
    np.testing.assert_allclose(data[0]["scores"], found.scores, atol=1e-5)


def test_a_model_that_learns_in_context(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text(MINE)
    known = [{"age": i * 0.3, "dose": (i * 7) % 5 - 2.0, "state": ["ill", "well"][i % 2]} for i in range(6)]
    training = written(tmp_path / "training.csv", known)
    asked = written(tmp_path / "asked.csv", [{"age": 0.5, "dose": 1.0}, {"age": 0.1, "dose": -1.0}])
    name = f"{tmp_path / 'mine.py'}:learns_in_context"
    command = ("explain", "table", asked, "--model", name, "--context", training)
    shown = run(*command, "-t", "well", "-r", 1, "--out", tmp_path / "why.json").stdout
    assert "training rows and their labels" in shown and "row 3 = well" in shown and "dose = -1" in shown
    saved = wf.load(tmp_path / "why.json")
    data = json.loads(run(*command, "-t", "well", "--json", "-o", "rows=cells").stdout)
    assert [len(d["row_scores"]) for d in data] == [6, 6] and data[1]["options"]["rows"] == "cells"
    np.testing.assert_allclose(data[1]["scores"], saved.scores, atol=1e-6)
    for row in known:
        row["state"] = "dead"
    for file, words in ((written(tmp_path / "t.csv", known), "'dead', which is neither"), (asked, "no column 'state'")):
        assert words in " ".join(run(*command[:-1], file, code=1).output.split())
    for wrong, words in (
        (("--overall",), "omit --overall"),
        (("--out", tmp_path / "why.html"), "--row N"),
        (("-m", "generic_attention", "-m", "input_x_gradient"), "one method at a time"),
    ):
        assert words in " ".join(run(*command, *wrong, code=2).output.split())


def test_models_of_ones_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = written(tmp_path / "rows.csv", rows(3))
    (tmp_path / "mine.py").write_text(MINE)
    assert "age = " in run("explain", "table", file, "--model", f"{tmp_path / 'mine.py'}:load").stdout
    made = run("explain", "table", file, "--model", f"{tmp_path / 'mine.py'}:wrong", code=1)
    assert "must return (model, whyformer.Table)" in made.output
    assert "'absent' of" in run("explain", "table", file, "--model", f"{tmp_path / 'mine.py'}:absent", code=1).output


def test_a_saved_model_is_the_same_model(tmp_path: Path) -> None:
    model = LAYOUTS["rtdl"].build()
    described = table(preprocess=wf.Standardize((0.0,) * 3, (1.0,) * 3))
    again, read = load_model(save_model(model, RTDL, described, tmp_path / "model"))
    assert read.to_dict() == described.to_dict()
    assert all(torch.equal(v, model.state_dict()[k]) for k, v in again.state_dict().items())
    file = written(tmp_path / "rows.csv", rows(2))
    assert "row 1" in run("explain", "table", file, "--model", tmp_path / "model").stdout
    with pytest.raises(BadInput, match="kind of saved model"):
        save_model(torch.nn.Linear(1, 1), {}, described, tmp_path / "other")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps(config | {"library": "os", "class": "system"}))
    with pytest.raises(BadInput, match="kind of saved model"):
        load_model(tmp_path / "model")


def test_usage_errors(tmp_path: Path) -> None:
    few = run("explain", "table")
    assert (
        "Explaining the first 3 of 40 rows. Choose others with --row N" in few.stderr and few.stdout.count("──\n") == 3
    )
    bad = adult_rows()
    bad[30]["workclass"] = "Spy"
    file = written(tmp_path / "bad.csv", bad)
    said = run("explain", "table", file, "--overall", "--batch-size", 8, code=1).output
    assert "row 6 of column 'workclass'" in said and "from row 24 of the file" in said
    short = written(tmp_path / "short.csv", [{k: v for k, v in row.items() if k != "age"} for row in bad])
    assert "'age' is missing" in run("explain", "table", short, "--row", 0, code=1).output


def test_a_long_file_is_read_in_pieces(tmp_path: Path) -> None:
    described = table()
    some = rows(60)
    pieces = CsvRows(written(tmp_path / "rows.csv", some), described, size=13)
    assert pieces.rows == 60 and [len(p["age"]) for p in pieces] == [13, 13, 13, 13, 8]
    model = LAYOUTS["rtdl"].build()
    streamed = wf.explain_global(model, pieces, processor=described, batch_size=13, samples=20)
    whole = wf.explain_global(model, some, processor=described, samples=20)
    np.testing.assert_allclose(streamed.mean, whole.mean, atol=1e-5)
    np.testing.assert_allclose(streamed.samples, whole.samples, atol=1e-5)
    assert len(streamed.samples) == 20 and set(streamed.labels) == {"[CLS]", *NUMBERS, "work", "sex"}


def test_the_shipped_model_is_small_and_as_good_as_its_card_says() -> None:
    folder = demo.model_folder("adult")
    assert sum(p.stat().st_size for p in folder.iterdir()) < 1_000_000
    model, described = demo.load_adult()
    some = adult_rows()
    assert len(some) == 40 and all(row["income"] in described.classes for row in some)
    numbers, codes = described.encode(described.read(some)[0])
    logits = model(torch.tensor(numbers).float(), torch.tensor(codes))
    right = [described.classes[i] == row["income"] for i, row in zip(logits.argmax(1).tolist(), some, strict=True)]
    assert np.mean(right) > 0.8
    assert "0.8567" in (folder / "MODEL_CARD.md").read_text()
