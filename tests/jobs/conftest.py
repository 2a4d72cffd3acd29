"""A tiny classifier of texts, and sentences of several lengths for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

import whyformer as wf
from tests.support import folders


@pytest.fixture(scope="session")
def explainer(tmp_path_factory: pytest.TempPathFactory) -> wf.Explainer:
    return wf.Explainer(folders.bert(), folders.tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(autouse=True, scope="package")
def as_in_other_processes() -> Iterator[None]:
    """Bits are compared with those of processes that this one starts, and these have torch as it comes."""
    torch.backends.mkldnn.enabled = True
    yield
    torch.backends.mkldnn.enabled = False
