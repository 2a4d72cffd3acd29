"""Parts on a Ray cluster of two nodes: the numbers of one process, whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

import whyformer as wf
from tests.jobs.sentences import HOW, census_explainer, killed_driver, numbers
from whyformer.demo.census import adult_rows

ROWS = adult_rows()


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
    # A node that is gone is noticed after five seconds, not fifteen; on a busy machine, live ones may miss some checks.
    noticed = {"health_check_period_ms": 1000, "health_check_failure_threshold": 5}
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


# First, while the cluster has both of its nodes.
def test_a_driver_that_is_killed_loses_nothing(cluster: Cluster, tmp_path: Path, undisturbed: Any) -> None:
    out = tmp_path / "out"
    with killed_driver(out, cluster.address):
        pass
    assert 0 < len(numbers(out)) < len(undisturbed)
    wf.explain_dataset(census_explainer(), ROWS, out=out, **HOW)  # here: the engines share the folder
    assert_agree(out, undisturbed)


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
