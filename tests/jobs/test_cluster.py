"""Parts on a Ray cluster of two nodes: the numbers of one process, whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

import whyformer as wf
from tests.jobs.sentences import census, census_explainer, numbers
from tests.support import folders
from whyformer.errors import BadInput, MissingExtra
from whyformer.jobs.folder import COMMITS

ROWS = census()
HOW: dict[str, Any] = {"method": ["generic_attention", "grad_sam"], "part_rows": 4, "top": 0}


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def watched(processes: Path) -> wf.Explainer:
    """The classifier, leaving a file for each process that runs it."""
    return census_explainer(processes)


@pytest.fixture(scope="module")
def undisturbed(watched: wf.Explainer, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    wf.explain_dataset(watched, ROWS, out=folder, **HOW)
    return numbers(folder)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    """Two nodes. Ray changes the process that connects to them: what it changes is restored."""
    handler, environment = signal.getsignal(signal.SIGTERM), dict(os.environ)
    # A node that is gone is noticed within a second, not after fifteen.
    noticed = {"health_check_initial_delay_ms": 100, "health_check_period_ms": 200, "health_check_failure_threshold": 3}
    head = {"num_cpus": 1, "include_dashboard": False, "_system_config": noticed}
    cluster = Cluster(initialize_head=True, head_node_args=head)
    cluster.add_node(num_cpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()
    signal.signal(signal.SIGTERM, handler)
    os.environ.clear()
    os.environ.update(environment)


def disturbed(acts: dict[int, Callable[[], None]]) -> Iterator[dict[str, Any]]:
    """The rows; something happens before some of them."""
    for i, row in enumerate(ROWS):
        acts.get(i, lambda: None)()
        yield row


def assert_agree(folder: Path, undisturbed: list[tuple[Any, ...]]) -> None:
    """Every row once, and its numbers within 1e-5."""
    here = numbers(folder)
    assert [entry[:4] for entry in here] == [entry[:4] for entry in undisturbed]
    for entry, expected in zip(here, undisturbed, strict=True):
        np.testing.assert_allclose(
            np.frombuffer(entry[-1], np.float32), np.frombuffer(expected[-1], np.float32), atol=1e-5
        )


def test_workers_and_nodes_that_are_killed_cost_their_parts(
    cluster: Cluster, watched: wf.Explainer, processes: Path, tmp_path: Path, undisturbed: Any
) -> None:
    """Two workers; one is killed, then the node that is not the driver's, with whatever runs there."""
    killed = []

    def kill_worker() -> None:
        workers = [int(path.name) for path in processes.iterdir() if int(path.name) != os.getpid()]
        killed.append(workers[0])
        os.kill(workers[0], signal.SIGKILL)

    def kill_node() -> None:
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)

    acts = {20: kill_worker, 32: kill_node}
    how = {"engine": "ray", "address": cluster.address}
    dataset = wf.explain_dataset(watched, disturbed(acts), out=tmp_path, **how, **HOW)
    assert_agree(tmp_path, undisturbed)
    assert dataset.rows == len(ROWS) and killed and not cluster.worker_nodes
    assert len(list(processes.iterdir())) >= 3, "this process, and two workers at least"


KILLED = """
import sys, time
import whyformer as wf
from tests.jobs.sentences import census, census_explainer

def slowly():
    for i, row in enumerate(census()):
        if i == 16:
            time.sleep(3600)  # it is killed here
        yield row

how = {"method": ["generic_attention", "grad_sam"], "part_rows": 4, "top": 0, "workers": 1}
wf.explain_dataset(census_explainer(), slowly(), out=sys.argv[1], engine="ray", address=sys.argv[2], **how)
"""


def test_a_driver_that_is_killed_loses_nothing(cluster: Cluster, tmp_path: Path, undisturbed: Any) -> None:
    out = tmp_path / "out"
    driver = subprocess.Popen([sys.executable, "-c", KILLED, str(out), cluster.address])
    try:
        until = time.monotonic() + 300  # a busy machine takes its time to start another Python
        while not (out / COMMITS).is_file() or not (out / COMMITS).read_bytes():
            assert driver.poll() is None and time.monotonic() < until
            time.sleep(0.02)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    assert 0 < len(numbers(out)) < len(undisturbed)
    wf.explain_dataset(census_explainer(), ROWS, out=out, **HOW)  # here: the engines share the folder
    assert_agree(out, undisturbed)


def test_a_model_that_is_elsewhere_is_not_sent_to_workers(explainer: wf.Explainer, tmp_path: Path) -> None:
    model = folders.bert()
    model.classifier.to("meta")
    with pytest.raises(BadInput, match="spread over devices"):
        wf.explain_dataset(wf.Explainer(model, explainer.processor), ["good"], out=tmp_path, engine="ray", **HOW)


def test_without_ray_the_command_is_named(
    watched: wf.Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"needs ray: pip install 'whyformer\[ray\]'"):
        wf.explain_dataset(watched, ROWS, out=tmp_path, engine="ray", **HOW)
