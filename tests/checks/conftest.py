"""A check-up of a tiny model, made once."""

from __future__ import annotations

from typing import Any

import pytest

import whyformer as wf
from tests.checks.quick import EVERYTHING, TEXTS
from tests.support import folders


@pytest.fixture(scope="session")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return folders.tokenizer(tmp_path_factory.mktemp("vocabulary"))


@pytest.fixture(scope="session")
def found(tokenizer: Any) -> wf.CheckUp:
    return wf.check(folders.bert(), TEXTS, processor=tokenizer, checks=EVERYTHING)
