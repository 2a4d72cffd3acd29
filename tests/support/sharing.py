"""Models made and studied once for many tests: each hands them back as they came, or is found out at its end."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

import torch
from torch import nn


def state(model: nn.Module) -> list[object]:
    """What would give away that somebody changed it: weights, modes, hooks, gradients, settings."""
    parameters = list(model.parameters())
    weights = [*parameters, *(b for b in model.buffers() if b.is_floating_point())]
    norms = [n.item() for n in torch._foreach_norm([w.detach() for w in weights])]
    modules = [(m.training, len(m._forward_hooks), len(m._forward_pre_hooks), m.__class__) for m in model.modules()]
    wanted = [(p.requires_grad, p.grad is None, p.dtype, p.device) for p in parameters]
    config = getattr(model, "config", None)
    return [norms, modules, wanted, {} if config is None else repr(vars(config))]


class Shared:
    """``shared(name)`` is what ``build(name)`` makes, once in a process.

    ``run`` calls a new model: transformers puts hooks of its own into some when they are first run.
    """

    def __init__(self, build: Callable[..., nn.Module], run: Callable[..., Any]) -> None:
        self.build, self.run = build, run
        self._models: dict[tuple[Hashable, ...], nn.Module] = {}
        self._came: dict[tuple[Hashable, ...], list[object]] = {}
        self._asked: set[tuple[Hashable, ...]] = set()

    def __call__(self, *name: Hashable) -> nn.Module:
        if name not in self._models:
            model = self._models[name] = self.build(*name)
            with torch.no_grad():
                self.run(model, *name)
            self._came[name] = state(model)
        self._asked.add(name)
        return self._models[name]

    @contextmanager
    def handed_back(self) -> Iterator[None]:
        """Around a test: what it asked for is as it came. A model that is not is made anew for the next test."""
        self._asked.clear()
        yield
        changed = [name for name in self._asked if state(self._models[name]) != self._came[name]]
        for name in changed:
            del self._models[name]
        assert not changed, f"changed, and shared with other tests: {changed}"


# Tokenizers

SETTINGS = ("model_max_length", "padding_side", "truncation_side", "chat_template", "special_tokens_map")
_TOKENIZERS: list[tuple[Any, object]] = []  # with their settings as they came


def shared_tokenizer(make: Callable[..., Any]) -> Callable[..., Any]:
    """Make a tokenizer once in a process; ``changed_tokenizers`` knows of it."""

    @cache
    @wraps(make)
    def made(*args: Hashable, **kwargs: Hashable) -> Any:
        tokenizer = make(*args, **kwargs)
        _TOKENIZERS.append((tokenizer, _settings(tokenizer)))
        return tokenizer

    return made


def changed_tokenizers() -> list[int]:
    return [number for number, (tokenizer, came) in enumerate(_TOKENIZERS) if _settings(tokenizer) != came]


def _settings(tokenizer: Any) -> object:
    return len(tokenizer), [(name, repr(getattr(tokenizer, name))) for name in SETTINGS]
