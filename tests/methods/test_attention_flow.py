"""attention_flow against its twin, the golden numbers, and what must hold on any model."""

from __future__ import annotations

import numpy as np
import pytest

from tests.methods.properties import batch_is_its_rows, close, explained, padding_is_nothing
from tests.references.attention_flow import attention_flow, joint_flow, pipes
from whyformer.methods.attention_maps import flow_from, joint_flow_from

METHOD = {"method": "attention_flow"}


@pytest.mark.parametrize("reach", [7, 1])
def test_agrees_with_its_twin_on_deeper_sharp_maps(reach: int) -> None:
    """With a reach of 1, more positions are reached in each layer than in the one above it."""
    near = np.abs(np.subtract.outer(np.arange(7), np.arange(7))) <= reach
    attention = [random_maps(layer) * near for layer in range(4)]
    found = np.array([flow_from(pipes(attention)[-1][i], pipes(attention)[:-1]) for i in range(7)])
    close(found, attention_flow(attention, normalize=False), 1e-7)


@pytest.mark.parametrize("joint", [False, True])
@pytest.mark.parametrize("name", ["bert", "gpt2"])
def test_one_layer_is_rollout(name: str, joint: bool) -> None:
    found = explained(name, **METHOD, end_layer=0, rows="all", joint=joint)
    rollout = explained(name, method="attention_rollout", keep_layers=True)
    for flow, rolled in zip(found, rollout, strict=True):
        assert rolled.layers is not None
        close(flow.matrix, rolled.layers[0])


def test_joint_flow_is_the_shapley_split_of_the_whole_flow() -> None:
    attention = [random_maps(layer, tokens=5) for layer in range(3)]
    layers = pipes(attention)
    share, error = joint_flow_from(layers[-1][2], layers[:-1], orders=200, seed=0)
    assert share.sum() == pytest.approx(1, abs=1e-8)
    assert np.abs(share - joint_flow(attention, 2)).max() < 4 * error
    assert 0 < error < 0.01
    alone = flow_from(layers[-1][2], layers[:-1])
    assert (share >= 0).all() and (share <= alone + 1e-9).all()


def test_joint_flow_adds_up_to_the_whole_flow() -> None:
    for found in explained("bert", **METHOD, joint=True, normalize=False):
        assert found.scores.sum() == pytest.approx(1, abs=1e-5)
        assert 0 <= found.checks["split_error"] < 0.05
    batch_is_its_rows("gpt2", **METHOD, joint=True)
    padding_is_nothing("gpt2", **METHOD, joint=True)


def test_several_rows_feed_the_head() -> None:
    found = explained("beit", **METHOD, rows="all")[0]
    rows = np.asarray(found.matrix)[1:]  # the head reads the mean of the patches
    close(found.scores, rows.mean(0))


def test_a_row_without_pipes_carries_nothing() -> None:
    layers = pipes([random_maps(layer) for layer in range(3)])
    assert not flow_from(np.zeros(7), layers).any()
    layers[0][:] = 0
    assert not flow_from(layers[-1][0], layers[:-1]).any()


def random_maps(seed: int, tokens: int = 7, heads: int = 2) -> np.ndarray:
    return np.random.default_rng(seed).dirichlet(np.full(tokens, 0.3), size=(heads, tokens))
