"""The program itself, with pipes at its ends: what it writes there, asks for, and leaves behind.

Each command is what ``python -m whyformer`` does. To import torch and transformers takes most of the time of one, so
that all are run by one Python, one after the other.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.cli.test_cli_errors import ESCAPE, RAW
from tests.cli.test_cli_trust import of_unknown_kind

COMMANDS = """
import json, sys
from whyformer.__main__ import main

for encoding, *words in json.loads(sys.argv[1]):
    sys.argv = ["whyformer", *words]
    sys.stdout.reconfigure(encoding=encoding)
    sys.stderr.reconfigure(encoding=encoding)
    try:
        main()
    except SystemExit as end:
        code = end.code
    for stream in (sys.stdout, sys.stderr):
        print(f"-- ended with {code} --", file=stream, flush=True)
"""
ENDED = re.compile(r"-- ended with (\d+) --\n")


@dataclass(frozen=True)
class Ended:
    """What a command wrote, and its exit code."""

    code: int
    stdout: str
    stderr: str


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("program")


@pytest.fixture(scope="module")
def ended(folder: Path) -> dict[str, Ended]:
    """How commands end that say what they say into pipes."""
    mine = folder / "mine.py"
    mine.write_text(
        f"import warnings\ndef load():\n    warnings.warn('look: ' + {ESCAPE!r})\n    raise RuntimeError({ESCAPE!r})\n",
        encoding="utf-8",
    )
    code = of_unknown_kind(folder / "unknown", folder / "marker")
    commands = {
        # The pipe takes ASCII only: blocks become question marks, and nothing crashes.
        "result": ("ascii", "explain", "text", "I like the movie", "So boring", "-m", "occlusion"),
        "code of a model": ("utf-8", "explain", "text", "-", "--model", str(code)),
        "bug": ("utf-8", "explain", "table", "--model", f"{mine}:load"),
    }
    done = subprocess.run(
        [sys.executable, "-c", COMMANDS, json.dumps(list(commands.values()))],
        input="y\ny\n",
        capture_output=True,
        encoding="utf-8",
        check=False,
        env=os.environ | {"COLUMNS": "80", "HF_MODULES_CACHE": str(folder / "modules")},
    )
    assert done.returncode == 0, done.stderr
    (*out, _), (*err, _) = (ENDED.split(stream) for stream in (done.stdout, done.stderr))
    assert out[1::2] == err[1::2]
    each = zip(map(int, out[1::2]), out[::2], err[::2], strict=True)
    return {name: Ended(*parts) for name, parts in zip(commands, each, strict=True)}


def test_in_a_pipe_there_is_the_result_and_nothing_else(ended: dict[str, Ended]) -> None:
    """No colour codes, no progress bars, no notices of other libraries."""
    result = ended["result"]
    assert result.code == 0
    assert result.stderr == ""
    assert "So boring" in result.stdout
    assert "?" in result.stdout
    assert result.stdout.isascii()
    assert "\x1b" not in result.stdout
    assert "\r" not in result.stdout
    assert all(line == line.rstrip() and len(line) <= 80 for line in result.stdout.splitlines())


def test_a_pipe_is_not_asked_whether_code_may_run(ended: dict[str, Ended], folder: Path) -> None:
    """Whatever it holds is no answer."""
    refused = ended["code of a model"]
    assert refused.code == 1 and not (folder / "marker").exists()
    assert "--trust-remote-code" in refused.stderr and "y/N" not in refused.stdout + refused.stderr


def test_a_bug_keeps_its_traceback_and_steers_nothing(ended: dict[str, Ended]) -> None:
    bug = ended["bug"]
    assert bug.code == 1
    assert "Traceback" in bug.stderr
    assert "RuntimeError: ␛]0;owned" in bug.stderr
    assert "UserWarning: look: ␛]0;owned" in bug.stderr
    assert not RAW.search(bug.stderr)


def test_a_reader_that_has_seen_enough_is_no_error() -> None:
    command = f"{sys.executable} -m whyformer --help | head -c 10"
    done = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
