"""What holds for all tests: annotations of shapes (shapes.py) are held to what is passed, and the suite stays short."""

from __future__ import annotations

import gc
import inspect
import os
import random
from collections.abc import Iterator
from functools import cache
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch
import typer.testing
from beartype import BeartypeConf, FrozenDict, beartype
from jaxtyping import install_import_hook

FORMULAS = [  # where maps are computed with; what only carries them about is not checked
    "whyformer.engines.attention",
    "whyformer.methods",
]

held = beartype(
    conf=BeartypeConf(
        is_pep484_tower=True,  # an int is welcome where a float is asked for, as it is to mypy
        hint_overrides=FrozenDict({np.ndarray[Any, Any]: np.ndarray}),  # which beartype cannot read
    )
)

# The hook sees modules that are imported after it: nothing of whyformer may be imported above.
install_import_hook(FORMULAS, "tests.conftest.held")

# Here every formula meets every tiny model, and what is passed is held to the annotations. To go on with that in tests
# of pages, commands and searches would say nothing new, and takes a tenth of the time of a method.
HELD = ("tests/methods/", "tests/engines/", "tests/tables/", "tests/heads/", "tests/test_")

# Papers, twins and authors explain the logit itself: in these tests, that is what is explained unless they say more.
OF_LOGITS = (
    *("tests/methods/", "tests/engines/", "tests/study/", "tests/inputs/", "tests/tables/", "tests/explainer/"),
    *("tests/language/", "tests/heads/", "tests/test_golden", "tests/test_families", "tests/test_stream_contracts"),
    *("tests/test_loan", "tests/test_advice"),
)

# The shap package compiles a few functions with numba, for many seconds in every process; each is called a few times
# here, on ten players. As Python they do the same at once.
os.environ.setdefault("NUMBA_DISABLE_JIT", "1")

# Read when a kernel is defined, so before any test file imports one: the GPU kernels are interpreted on the CPU.
os.environ["TRITON_INTERPRET"] = "1"

# Tensors are tiny here, and to prepare oneDNN's product of two takes four times as long as the plain one.
torch.backends.mkldnn.enabled = False

# To ask the command line something, typer's runner builds all commands anew: 70 ms, some four hundred times.
vars(typer.testing)["_get_command"] = cache(typer.main.get_command)

# Files that wait (for a cluster, a browser, another Python) or run long with few tests. pytest-xdist begins with the
# files of most tests, so that these would come last, and one process would end a minute after the other.
LONG = (
    "tests/jobs/test_cluster.py",
    "tests/docs/test_code_blocks.py",
    "tests/explainer/test_several_processes.py",
    "tests/bench/",
    "tests/jobs/",
    "tests/views/test_page.py",
    "tests/cli/",
    "tests/docs/test_site.py",
    "tests/serve/",
    "tests/methods/test_stream_gradients.py",
    "tests/checks/",
    "tests/evaluate/",
    "tests/concepts/",
)


def pytest_configure(config: pytest.Config) -> None:
    config.option.loadscopereorder = False  # of pytest-xdist: in the order below


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.pluginmanager.hasplugin("tests.support.shuffle"):
        return
    order = {name: place for place, name in enumerate(LONG)}
    sizes: dict[str, int] = {}
    for item in items:
        path = item.nodeid.partition("::")[0]
        sizes[path] = sizes.get(path, 0) + 1

    def place(item: pytest.Item) -> tuple[int, int]:
        path = item.nodeid.partition("::")[0]
        return min((order[name] for name in LONG if path.startswith(name)), default=len(LONG)), -sizes[path]

    items.sort(key=place)  # stable: within a file as written


def pytest_collection_finish() -> None:
    """What is imported by now stays: no collection of garbage has to go through it again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 20, 20)  # and garbage in cycles may wait: to look for it took a twentieth of the time


def pytest_runtest_setup(item: pytest.Item) -> None:
    # What a test draws must not depend on what the tests before it drew.
    seed = item.config.getoption("--shuffle-seed", 0)
    random.seed(seed)
    np.random.seed(seed)
    torch.default_generator.manual_seed(seed)  # torch.manual_seed also formats a traceback, for each GPU library
    jaxtyping.config.update("jaxtyping_disable", not item.nodeid.startswith(HELD))


@pytest.fixture(scope="module", autouse=True)
def process_state_is_restored() -> Iterator[None]:
    """A file that changes settings of the process for those that follow fails at its end."""
    from tests.support.process_state import restored

    with restored():
        yield


@pytest.fixture(scope="module", autouse=True)
def logits_are_explained(request: pytest.FixtureRequest) -> Iterator[None]:
    from whyformer.options import Request
    from whyformer.tables.global_explanation import explain_global
    from whyformer.tables.in_context import explain_in_context

    with pytest.MonkeyPatch.context() as patch:
        for verb in (Request.__init__, inspect.unwrap(explain_global), inspect.unwrap(explain_in_context)):
            if request.node.nodeid.startswith(OF_LOGITS) and "test_parameters" not in request.node.nodeid:
                patch.setitem(verb.__kwdefaults__, "scalar", "logit")
        yield


@pytest.fixture(scope="module", autouse=True)
def shared_models_are_handed_back() -> Iterator[None]:
    """Whoever changes a model that tests of several files share is found out at the end of the file."""
    from tests.models import SHARED
    from tests.support import language
    from tests.tables import models as tables

    with SHARED.handed_back(), language.shared.handed_back(), tables.shared.handed_back():
        yield
