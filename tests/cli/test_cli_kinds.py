"""``whyformer explain`` finds the kind of what it is given; Ctrl-C; and what ``whyformer doctor`` says of a machine."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.cells import cell_len

from tests.cli.test_cli import run, told
from whyformer import __main__ as start
from whyformer import extras
from whyformer.cli import _selftest
from whyformer.cli import catalogues as doctor
from whyformer.cli._input import kind_of
from whyformer.cli._selftest import by_hand, self_test
from whyformer.errors import BadInput


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
    for arguments in (("explain", "-"), ("explain", "text", "-"), ("explain", "prompt", "-", "--model", "m")):
        refused = run(*arguments, stdin=b"caf\xe9\n", code=1).stderr
        assert "no UTF-8 text (byte 3)" in refused and "iconv" in refused


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
    names = {extra for _, extra in extras.LIBRARIES.values() if extra} | {"notebook"}
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
