"""A Run of a test model, for what lies below ``explain``: anatomy, per-head norms, mixing ratios."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn

from tests.methods.properties import TARGET, model_of
from tests.models import CASES
from whyformer.loan.borrow import borrowed
from whyformer.run import Run
from whyformer.study import hidden_padding, study_of
from whyformer.verbs import Explainer


@contextmanager
def running(
    name: str, double: bool = False, inputs: Any = None, model: nn.Module | None = None, **how: Any
) -> Iterator[Run]:
    model = model_of(name, double) if model is None else model
    explainer = Explainer(model)
    modality, batch, _ = explainer.prepare(CASES[name].inputs() if inputs is None else inputs)
    with borrowed(explainer.model):
        batch = hidden_padding(modality, batch)
        study, _ = study_of(modality, batch)
        yield Run(modality, batch, study, **({"target": TARGET} | how))
