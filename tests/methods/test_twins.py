"""Every method against its twin, on several models and with its options. A new method has to bring one."""

from __future__ import annotations

import importlib
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
from torch import Tensor

from tests.methods.properties import explained
from tests.references.twin import TARGET, Setting, Twin
from whyformer.registry import list_methods

METHODS = sorted(list_methods())


def twin_of(method: str) -> Twin | None:
    try:
        return getattr(importlib.import_module(f"tests.references.{method}"), "TWIN", None)
    except ModuleNotFoundError:
        return None


def comparisons() -> list[Any]:
    """Methods with their settings; a method without any is a comparison too, and fails."""
    found = []
    for method in METHODS:
        twin = twin_of(method)
        settings = list(twin.settings) if twin is not None else []
        found += [pytest.param(method, setting, id=f"{method}-{setting}") for setting in settings or [None]]
    return found


@pytest.mark.parametrize(("method", "setting"), comparisons())
def test_the_library_agrees_with_the_twin(method: str, setting: Setting | None) -> None:
    assert setting is not None, f"tests/references/{method}.py exports no TWIN, or one without settings"
    twin = twin_of(method)
    assert twin is not None
    how = {"method": method, **setting.options, **({"keep_layers": True} if setting.layers else {})}
    inputs = None if setting.inputs is None else setting.inputs(setting.model)
    explanations = explained(setting.model, inputs, TARGET, setting.double, **how)
    assert explanations
    for row, found in enumerate(explanations):
        expected = twin.expected(setting.model, row, **setting.options)
        assert isinstance(expected["scores"], np.ndarray | Tensor), "a twin says at least what the scores are"
        assert "layers" in expected or not setting.layers
        for name, want in expected.items():
            got = getattr(found, name)
            if isinstance(want, np.ndarray | Tensor):
                agree(name, got, np.asarray(want, np.float64), setting)
            else:  # a number within its tolerance, a flag, or None
                assert got == want, name


def agree(name: str, got: Any, want: np.ndarray, setting: Setting) -> None:
    got = np.asarray(got, np.float64)
    got = got[: len(want)] if name == "detail" else got  # which may go on over padding
    assert got.shape == want.shape, f"{name}: shape {got.shape}, want {want.shape}"
    assert np.isfinite(got).all()
    setting.compare(got, want)


@pytest.mark.parametrize("method", METHODS)
def test_what_is_compared_comes_from_the_function_with_the_methods_name(
    method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    twin = twin_of(method)
    assert twin is not None
    assert len({setting.model for setting in twin.settings}) >= 3, "on several models"
    module = importlib.import_module(f"tests.references.{method}")
    written_out = Mock(wraps=getattr(module, method))
    monkeypatch.setattr(module, method, written_out)
    first = twin.settings[0]
    assert np.any(np.asarray(twin.expected(first.model, 0, **first.options)["scores"]))
    assert written_out.called


def test_settings_are_told_apart() -> None:
    names = [comparison.id for comparison in comparisons()]
    assert len(set(names)) == len(names)
