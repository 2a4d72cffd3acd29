"""Parts on a Ray cluster of two nodes: the numbers of one process, whoever is killed meanwhile."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

import whyformer as wf
from tests.jobs.sentences import numbers, sentences
from tests.support import folders
from whyformer.errors import BadInput, MissingExtra
from whyformer.jobs.store import COMMITS

TEXTS = sentences(40)
HOW: dict[str, Any] = {"method": ["generic_attention", "grad_sam"], "part_rows": 4, "top": 0}


def noting(folder: Path, module: Any, args: Any) -> None:
    """A hook that says which process ran the model, and makes it slow enough to be killed at work."""
    (folder / str(os.getpid())).touch()
    time.sleep(0.02)


@pytest.fixture(scope="module")
def processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("processes")


@pytest.fixture(scope="module")
def watched(processes: Path, tmp_path_factory: pytest.TempPathFactory) -> wf.Explainer:
    """The classifier, leaving a file for each process that runs it."""
    model = folders.bert()
    model.register_forward_pre_hook(partial(noting, processes))
    return wf.Explainer(model, folders.tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def undisturbed(watched: wf.Explainer, tmp_path_factory: pytest.TempPathFactory) -> list[tuple[Any, ...]]:
    folder = tmp_path_factory.mktemp("undisturbed")
    wf.explain_dataset(watched, TEXTS, out=folder, **HOW)
    return numbers(folder)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    cluster.add_node(num_cpus=1)
    yield cluster
    ray.shutdown()
    cluster.shutdown()


def disturbed(acts: dict[int, Callable[[], None]]) -> Iterator[str]:
    """The texts; something happens before some of them."""
    for i, text in enumerate(TEXTS):
        acts.get(i, lambda: None)()
        yield text


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
    assert dataset.rows == len(TEXTS) and killed and not cluster.worker_nodes
    assert len(list(processes.iterdir())) >= 3, "this process, and two workers at least"


KILLED = """
import sys, time
import whyformer as wf
from tests.jobs.sentences import sentences
from tests.support import folders
from pathlib import Path

def slowly():
    for i, text in enumerate(sentences(40)):
        if i == 16:
            time.sleep(60)
        yield text

x = wf.Explainer(folders.bert(), folders.tokenizer(Path(sys.argv[2])))
how = {"method": ["generic_attention", "grad_sam"], "part_rows": 4, "top": 0, "workers": 1}
wf.explain_dataset(x, slowly(), out=sys.argv[1], engine="ray", address=sys.argv[3], **how)
"""


def test_a_driver_that_is_killed_loses_nothing(
    cluster: Cluster, explainer: wf.Explainer, tmp_path: Path, undisturbed: Any
) -> None:
    out = tmp_path / "out"
    driver = subprocess.Popen([sys.executable, "-c", KILLED, str(out), str(tmp_path / "tokenizer"), cluster.address])
    try:
        until = time.monotonic() + 300  # a busy machine takes its time to start another Python
        while not (out / COMMITS).is_file() or not (out / COMMITS).read_bytes():
            assert driver.poll() is None and time.monotonic() < until
            time.sleep(0.02)
    finally:
        driver.send_signal(signal.SIGKILL)
        driver.wait()
    assert 0 < len(numbers(out)) < len(undisturbed)
    wf.explain_dataset(explainer, TEXTS, out=out, **HOW)  # here: the engines share the folder
    assert_agree(out, undisturbed)


def test_a_cluster_is_asked_for_by_name(explainer: wf.Explainer, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="add engine='ray'"):
        wf.explain_dataset(explainer, TEXTS, out=tmp_path, workers=2)


def test_a_model_that_is_elsewhere_is_not_sent_to_workers(tmp_path: Path) -> None:
    model = folders.bert()
    model.classifier.to("meta")
    x = wf.Explainer(model, folders.tokenizer(tmp_path / "tokenizer"))
    with pytest.raises(BadInput, match="spread over devices"):
        wf.explain_dataset(x, TEXTS, out=tmp_path / "out", engine="ray", **HOW)


def test_without_ray_the_command_is_named(
    explainer: wf.Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingExtra, match=r"needs ray: pip install 'whyformer\[ray\]'"):
        wf.explain_dataset(explainer, TEXTS, out=tmp_path, engine="ray", **HOW)
