"""The modality of CONTRIBUTING.md, which the library does not know: one class and one line, and every verb takes it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import whyformer as wf
from docs.code_blocks import blocks_of
from whyformer.errors import BadInput, UnknownName
from whyformer.extend import register_modality
from whyformer.inputs import modalities

names: dict[str, Any] = {"__name__": __name__}
# As it runs when pasted: without the __future__ import of this file.
BLOCK = blocks_of(Path(__file__).parents[2] / "CONTRIBUTING.md")[0].code
exec(compile(BLOCK, "CONTRIBUTING.md", "exec", dont_inherit=True), names)
Graph, GraphInput, GraphTransformer, WIDTH = (names[n] for n in "Graph GraphInput GraphTransformer WIDTH".split())
METHODS = ["raw_attention", "generic_attention", "input_x_gradient", "integrated_gradients", "occlusion"]


@pytest.fixture(autouse=True)
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(modalities, "KINDS", list(modalities.KINDS))  # forgotten again after the test
    register_modality(lambda model, processor, inputs: isinstance(first(inputs), Graph), GraphInput)
    yield


def first(inputs: Any) -> Any:
    return inputs[0] if isinstance(inputs, list) and inputs else inputs


@pytest.fixture
def model() -> Any:
    torch.manual_seed(0)
    return GraphTransformer().eval()


@pytest.fixture
def graphs() -> list[Any]:
    draw = torch.Generator().manual_seed(1)
    sizes = {"water": ("O", "H1", "H2"), "methanol": ("C", "O", "H1", "H2", "H3"), "nitrogen": ("N1", "N2", "N3", "N4")}
    return [Graph(names, torch.randn(len(names), WIDTH, generator=draw)) for names in sizes.values()]


@pytest.mark.parametrize("method", METHODS)
def test_each_graph_is_explained_by_its_nodes_as_if_alone(model: Any, graphs: list[Any], method: str) -> None:
    together = wf.explain(model, graphs, method=method, target=1)
    for graph, explanation in zip(graphs, together, strict=True):
        assert explanation.units.labels == ("[HUB]", *graph.names)
        assert explanation.units.special == (True, *[False] * len(graph.names))
        alone = wf.explain(model, graph, method=method, target=1)
        np.testing.assert_allclose(explanation.scores, alone.scores, rtol=1e-4, atol=1e-6)
        assert np.abs(explanation.scores[1:]).min() > 0


def test_scores_are_the_formulas_on_node_vectors(model: Any, graphs: list[Any]) -> None:
    graph = graphs[1]
    shown = torch.ones(1, len(graph.names), dtype=torch.bool)

    def value(vectors_ND: Tensor) -> Tensor:
        return model(vectors_ND[None], shown)[0, 1]

    def gradient(vectors_ND: Tensor) -> Tensor:
        leaf = vectors_ND.clone().requires_grad_()
        return torch.autograd.grad(value(leaf), leaf)[0]

    scores = {name: wf.explain(model, graph, method=name, target=1).scores for name in METHODS[2:]}
    assert scores["input_x_gradient"][0] == scores["integrated_gradients"][0] == 0  # [HUB] is no number of the input's
    expected = (graph.vectors_ND * gradient(graph.vectors_ND)).sum(-1)
    np.testing.assert_allclose(scores["input_x_gradient"][1:], expected, rtol=1e-4, atol=1e-6)
    nodes, weights = np.polynomial.legendre.leggauss(50)
    path = sum(w / 2 * gradient(graph.vectors_ND * (t + 1) / 2) for t, w in zip(nodes, weights, strict=True))
    np.testing.assert_allclose(
        scores["integrated_gradients"][1:], (graph.vectors_ND * path).sum(-1), rtol=1e-4, atol=1e-5
    )
    with torch.no_grad():
        absent = [graph.vectors_ND * (torch.arange(len(graph.names)) != node)[:, None] for node in range(5)]
        drops = [float(value(graph.vectors_ND) - value(without)) for without in absent]
    np.testing.assert_allclose(scores["occlusion"][1:], drops, rtol=1e-4, atol=1e-6)


def test_compared_shown_and_checked(model: Any, graphs: list[Any], capsys: pytest.CaptureFixture[str]) -> None:
    comparison = wf.compare(model, graphs, method=METHODS[2:], progress=False)
    assert {row.name for row in comparison.rows} >= set(METHODS[2:])
    assert comparison.failures == {} and comparison.replacement == "zero"
    assert np.isfinite([score.mean for score in comparison["occlusion"].scores.values()]).all()
    explanation = wf.explain(model, graphs[0], method="occlusion")
    explanation.show()
    assert "H2" in capsys.readouterr().out and "H2" in explanation.to_html()
    # A shift that the model takes back leaves attention alone, and input × gradient not.
    for method in ("generic_attention", "input_x_gradient"):
        checkup = wf.check(model, graphs, checks=["invariance", "stability"], method=method, target=1, progress=False)
        invariance: Any = checkup.results["invariance"]
        assert invariance.company < 1e-4 and (invariance.shift < 1e-3) == (method == "generic_attention")


def test_what_is_wrong_with_an_input_is_said_by_its_own_kind(model: Any, graphs: list[Any]) -> None:
    with pytest.raises(BadInput, match=r"inputs\[1\].*no nodes"):
        wf.explain(model, [graphs[0], Graph((), torch.zeros(0, WIDTH))])
    with pytest.raises(UnknownName, match="zero"):
        wf.explain(model, graphs, method="occlusion", replace="blur")
