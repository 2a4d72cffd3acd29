"""The shipped models, loaded and studied once for many tests: each hands them back as they came, or is found out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import pytest

from tests.support.sharing import state
from whyformer import demo

LOADERS = {name: getattr(demo, f"load_{name}") for name in ("sentiment", "pets", "textures", "adult")}


@cache
def loaded(name: str) -> tuple[Any, Any]:
    return LOADERS[name]()


@cache
def as_it_came(name: str) -> list[object]:
    return state(loaded(name)[0])


def shared(name: str, asked: set[str]) -> tuple[Any, Any]:
    as_it_came(name)
    asked.add(name)
    return loaded(name)


@contextmanager
def shared_models(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    asked: set[str] = set()
    for name in LOADERS:
        monkeypatch.setattr(demo, f"load_{name}", partial(shared, name, asked))
    yield
    for name in asked:
        assert state(loaded(name)[0]) == as_it_came(name), f"the shipped model {name!r} was changed"
