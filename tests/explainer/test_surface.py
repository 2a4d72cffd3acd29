"""What is public: the names of the package, what methods of others are written with, and the types that users see."""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Iterator
from importlib.resources import files
from types import ModuleType

import numpy as np
import pytest

import whyformer as wf
from tests.models import CASES
from tests.tables.models import LAYOUTS, rows, table
from tests.test_fresh_python import block
from whyformer import extend, registry
from whyformer.errors import BadInput, UnknownName
from whyformer.evaluate.candidate_pool import cost_class_of
from whyformer.registry import CLASSES, COST, DEFAULTS, default_method

ROOMS = sorted(name for name in wf.__all__ if isinstance(getattr(wf, name), ModuleType))


def test_what_is_listed_is_what_is_there() -> None:
    assert dir(wf) == wf.__all__ == sorted(set(wf.__all__))
    assert set(wf._HOMES) | set(wf._ROOMS) | {"__version__", "list_methods", "list_metrics"} == set(wf.__all__)
    given: dict[str, object] = {}
    exec("from whyformer import *", given)
    assert set(given) - {"__builtins__"} == set(wf.__all__)
    for name, home in wf._HOMES.items():
        assert getattr(wf, name) is getattr(importlib.import_module(home), name)
    with pytest.raises(AttributeError, match="metrics"):
        wf.metrics  # noqa: B018


def test_what_type_checkers_see_is_what_is_there() -> None:
    """The imports under TYPE_CHECKING and the table of homes say the same twice; neither can be derived."""
    source = inspect.getsource(wf)
    imports = re.findall(r"^    from whyformer\.([\w.]+) import (\w+) as \2$", source, re.M)
    assert {name: f"whyformer.{home}" for home, name in imports} == wf._HOMES
    assert re.findall(r"^    from whyformer import (\w+) as \1$", source, re.M) == sorted(wf._ROOMS)


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_are_reached_whether_or_not_they_were_imported(room: str) -> None:
    assert wf.__getattr__(room) is getattr(wf, room) is importlib.import_module(f"whyformer.{room}")


def test_types_are_shipped() -> None:
    """``make check`` holds tests/typing/user_script.py to them; here, that no public function hides behind Any."""
    assert (files("whyformer") / "py.typed").is_file()
    functions = {name: f for name in wf.__all__ if inspect.isfunction(f := getattr(wf, name))}
    returns = {name: inspect.get_annotations(f, eval_str=False).get("return", "Any") for name, f in functions.items()}
    untyped = {name for name, hint in returns.items() if str(hint) in {"Any", "typing.Any"}}
    # What these return depends on the inputs, or on the file; shap is an optional library.
    assert untyped <= {"explain", "load", "to_shap"}
    for verb in (wf.explain, wf.Explainer.explain):  # of which inputs, its overloads say
        before = inspect.getsource(inspect.getmodule(inspect.unwrap(verb))).rpartition("@checked\n")[0]  # type: ignore[arg-type]
        seen = re.findall(r"def explain\((?:.|\n)*?\) -> (.*): \.\.\.\n", before)
        assert len(seen) > 10 and not any("Any" in hint for hint in seen)


# Methods of others


@pytest.fixture
def registered() -> Iterator[registry.Method]:
    """The method of the docstring, as if its package had been imported; gone afterwards."""
    wf.list_methods()
    before = dict(registry._METHODS)
    exec(compile(block("python"), "mean_attention.py", "exec"), {})
    (name,) = set(registry._METHODS) - set(before)
    yield registry._METHODS[name]
    del registry._METHODS[name]
    assert registry._METHODS == before


def test_the_method_of_the_docstring_explains(registered: registry.Method) -> None:
    case = CASES["bert"]
    model, inputs = case.build("eager"), case.inputs()
    results = wf.explain(model, inputs, method=registered.name, heads="max")
    record = wf.Explainer(model).record(inputs)
    for row, result in enumerate(results):
        rows = [site.attention_BHQK[row].amax(0)[0, : len(result.units)].numpy() for site in record.sites]
        np.testing.assert_allclose(result.scores, np.mean(rows, 0), atol=1e-6)
        assert (result.method, result.options) == ("mean_attention", {"heads": "max", "start_layer": 0})
        assert (result.cost.forwards, result.cost.backwards) == registered.cost(len(result.units))
    with pytest.raises(UnknownName, match="start_layer"):
        wf.explain(model, inputs, method=registered.name, first_layer=1)
    with pytest.raises(BadInput, match="name such as"):
        registry.get_method(3)  # type: ignore[arg-type]


def test_extend_offers_what_it_lists() -> None:
    assert extend.__all__ == sorted(extend.__all__)
    assert all(callable(getattr(extend, name)) for name in extend.__all__)
    offered = {name for name in vars(extend) if not name.startswith("_")}
    assert offered == set(extend.__all__)


# The method that explains when none is named


@pytest.mark.parametrize("modality", DEFAULTS)
def test_every_default_is_a_method_of_its_cost(modality: str) -> None:
    assert tuple(DEFAULTS[modality]) == CLASSES
    for cost_class, name in DEFAULTS[modality].items():
        assert cost_class_of(name, {}) == cost_class
    assert default_method(modality) == DEFAULTS[modality][COST[modality]]


def test_what_is_used_is_the_default_of_what_was_given() -> None:
    bert, ft = CASES["bert"], CASES["rtdl_ft_transformer"]
    assert wf.explain(bert.build("sdpa"), bert.inputs())[0].method == "generic_attention"
    assert wf.explain(LAYOUTS["rtdl"].build(), rows(2), processor=table())[0].method == "integrated_gradients"
    # bare tensors: nobody said what the columns are
    assert wf.explain(ft.build(ft.implementations[0]), ft.inputs())[0].method == "generic_attention"
