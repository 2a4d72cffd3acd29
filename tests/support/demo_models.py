"""The shipped models, loaded and studied once for many tests: each hands them back as they came, or is found out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest
import torch

from whyformer import demo

LOADERS = {
    "sentiment": (demo, "load_sentiment", demo.load_sentiment),
    "pets": (demo, "load_pets", demo.load_pets),
    "textures": (demo, "load_textures", demo.load_textures),
    "adult": (demo, "load_adult", demo.load_adult),
}


@cache
def loaded(name: str) -> tuple[Any, Any]:
    return LOADERS[name][2]()


@cache
def as_it_came(name: str) -> list[object]:
    return state(loaded(name)[0])


def state(model: torch.nn.Module) -> list[object]:
    """What would give away that somebody changed it: weights, modes, hooks."""
    weights = [*model.parameters(), *(b for b in model.buffers() if b.is_floating_point())]
    flags = [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks)) for m in model.modules()]
    return [[n.item() for n in torch._foreach_norm([w.detach() for w in weights])], flags]


def shared(name: str, asked: set[str]) -> tuple[Any, Any]:
    as_it_came(name)
    asked.add(name)
    return loaded(name)


@contextmanager
def shared_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    asked: set[str] = set()
    for name, (module, function, _) in LOADERS.items():
        monkeypatch.setattr(module, function, partial(shared, name, asked))
    yield
    for name in asked:
        assert state(loaded(name)[0]) == as_it_came(name), f"the shipped model {name!r} was changed"
