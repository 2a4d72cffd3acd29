"""Parts on a Ray cluster of two nodes, one of which is killed: the numbers of one process."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

import whyformer as wf
from tests.jobs.sentences import HOW, census_explainer, numbers
from whyformer.demo.census import adult_rows


@pytest.fixture
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


def test_a_job_of_one_process_goes_on_in_a_cluster_that_loses_a_node(cluster: Cluster, tmp_path: Path) -> None:
    """With a node dies the worker on it: its parts are given to the other one."""
    processes = tmp_path / "processes"
    processes.mkdir()
    explainer, rows = census_explainer(processes), adult_rows()[:28]
    wf.explain_dataset(explainer, rows, out=tmp_path / "undisturbed", **HOW)
    assert [path.name for path in processes.iterdir()] == [str(os.getpid())]

    def until(last: int) -> Iterator[dict[str, Any]]:
        yield from rows[:last]
        raise ConnectionError

    def disturbed() -> Iterator[dict[str, Any]]:
        yield from rows[:20]
        cluster.remove_node(next(iter(cluster.worker_nodes)), allow_graceful=False)
        yield from rows[20:]

    out = tmp_path / "out"
    with pytest.raises(ConnectionError):
        wf.explain_dataset(explainer, until(8), out=out, **HOW)
    wf.explain_dataset(explainer, disturbed(), out=out, engine="ray", address=cluster.address, **HOW)
    assert not cluster.worker_nodes and len(list(processes.iterdir())) > 1
    here, alone = numbers(out), numbers(tmp_path / "undisturbed")
    assert [entry[:4] for entry in here] == [entry[:4] for entry in alone], "every row once"
    for entry, expected in zip(here, alone, strict=True):
        scores, known = (np.frombuffer(each[-1], np.float32) for each in (entry, expected))
        np.testing.assert_allclose(scores, known, atol=1e-5)
