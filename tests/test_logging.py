"""What the library says by the standard logging module: nothing unasked, and never by print."""

from __future__ import annotations

import ast
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import BufferingHandler
from pathlib import Path

import pytest
import torch

import whyformer as wf
from tests.models import CASES
from tests.support import folders

SOURCE = Path(wf.__file__).parent
SPEAKING = ("cli", "__main__.py")  # what is there to talk


@contextmanager
def listening(level: int) -> Iterator[list[logging.LogRecord]]:
    """A handler of our own: those of pytest would be on every logger of every test."""
    logger, heard = logging.getLogger("whyformer"), BufferingHandler(10**6)
    before = logger.level
    logger.addHandler(heard)
    logger.setLevel(level)
    try:
        yield heard.buffer
    finally:
        logger.removeHandler(heard)
        logger.setLevel(before)


def speaks(path: Path) -> bool:
    """Whether it prints, or sets up logging for everybody."""
    text = path.read_text(encoding="utf-8")
    if "print(" not in text and "basicConfig(" not in text:
        return False
    calls = [node.func for node in ast.walk(ast.parse(text)) if isinstance(node, ast.Call)]
    return any(getattr(c, "id", "") == "print" or getattr(c, "attr", "") == "basicConfig" for c in calls)


def test_nothing_is_printed_outside_the_command_line() -> None:
    quiet = [path for path in SOURCE.rglob("*.py") if path.relative_to(SOURCE).parts[0] not in SPEAKING]
    assert len(quiet) > 200
    assert not [path for path in quiet if speaks(path)]
    assert any(map(speaks, SOURCE.rglob("*.py"))), "that of the command line is seen"


def test_loggers_are_named_for_the_package() -> None:
    for path in SOURCE.rglob("*.py"):
        for name in re.findall(r"getLogger\((.*?)\)", path.read_text(encoding="utf-8")):
            assert name == "__name__" or re.fullmatch(r'"whyformer(\.\w+)+"', name), (path, name)
    assert any(isinstance(handler, logging.NullHandler) for handler in logging.getLogger("whyformer").handlers)


def test_an_explanation_is_told_to_those_who_listen() -> None:
    case = CASES["bert"]
    model, inputs = case.build("eager"), case.inputs()
    with listening(logging.INFO) as records:
        wf.explain(model, inputs, method="generic_attention")
    assert not records
    with listening(logging.DEBUG) as records:
        wf.explain(model, inputs, method="generic_attention")
    (record,) = records
    count = len(inputs["input_ids"])
    assert record.name == "whyformer.explainer" and record.levelno == logging.DEBUG
    told = f"generic_attention: {count} inputs of {type(model).__name__}, {count} forwards"
    assert record.getMessage().startswith(told)


def test_a_change_of_plan_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    from whyformer.run.session import Session

    ran = Session.run

    def short_of_memory(self: Session, rows: list[int], **how: object) -> object:
        if len(rows) > 1:
            raise torch.OutOfMemoryError("there is no more")
        return ran(self, rows, **how)

    monkeypatch.setattr(Session, "run", short_of_memory)
    with listening(logging.INFO) as records:
        wf.explain(folders.vit(), {"pixel_values": torch.zeros(2, 3, 32, 32)}, method="raw_attention")
    assert "going on with 1 inputs at a time" in records[-1].getMessage()
