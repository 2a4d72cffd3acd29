"""A model that two processes hold together (gloo): explained as in one process, or refused with the reason."""

from __future__ import annotations

import json
import multiprocessing
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.models import CASES
from tests.support.two_processes import RANKS, SCORED, inputs, logged_main


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What each of two processes says. Importing takes most of the time: it is done once, and both are forked."""
    folder = tmp_path_factory.mktemp("together")
    CASES["llama"].build("sdpa").save_pretrained(folder / "model")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["tests.support.two_processes", "transformers.models.llama.modeling_llama", "whyformer.jobs"]
    )
    both = [context.Process(target=logged_main, args=(rank, folder), daemon=True) for rank in RANKS]
    for process in both:
        process.start()
    try:
        for process in both:
            process.join(300)
        codes = [process.exitcode for process in both]
    finally:
        for process in both:
            process.kill()
            process.join()
    assert codes == [0, 0], "\n".join((folder / f"log-{rank}.txt").read_text()[-3000:] for rank in RANKS)
    return [json.loads((folder / f"said-{rank}.json").read_text()) for rank in RANKS]


@pytest.mark.parametrize("method", SCORED)
def test_tensor_parallelism_says_what_one_process_says(method: str, said: list[dict[str, Any]]) -> None:
    """Input gradients pass through the model's own collectives; LRP has no rule to add for them."""
    model = CASES["llama"].build("sdpa")
    expected = wf.explain(model, inputs(), method=method, target=1, **SCORED[method])
    for rank in RANKS:
        for here, alone in zip(said[rank]["sharded"]["scored"][method], expected, strict=True):
            scale = max(1.0, float(np.abs(alone.scores).max()))
            np.testing.assert_allclose(np.array(here["scores"]) / scale, alone.scores / scale, atol=1e-5)
            assert here["value"] == pytest.approx(alone.value, abs=1e-4)
            assert here["warnings"] == list(alone.warnings)


@pytest.mark.parametrize("rank", RANKS)
def test_heads_that_are_elsewhere_are_not_left_out_in_silence(rank: int, said: list[dict[str, Any]]) -> None:
    """Each process runs two of four heads: whatever is made of maps or heads is refused, in both."""
    refused = said[rank]["sharded"]["refused"]
    attention = {name for name, entry in wf.list_methods().items() if entry.specificity == "attention"}
    assert refused.keys() == attention | {"fold", "record", "heads"}
    for what, words in refused.items():
        assert words.startswith("PartlyCaptured") and "runs some of the heads" in words, (what, words)
        assert "device_map='auto'" in words
    advised = said[rank]["sharded"]["advised"]
    assert "perturbation method: " in advised and "occlusion" in advised, "what runs instead was tried, and is named"
    assert "each of them would write this folder" in said[rank]["sharded"]["dataset"]


def test_a_model_that_each_process_has_is_explained_as_ever(said: list[dict[str, Any]]) -> None:
    expected = wf.explain(CASES["llama"].build("sdpa"), inputs(), method="generic_attention", target=1)
    for rank in RANKS:
        for call in said[rank]["whole"]:
            np.testing.assert_allclose(call, [e.scores for e in expected], atol=1e-6)


@pytest.mark.parametrize("pipeline", ["home-made", "of transformers"])
def test_a_stage_of_a_pipeline_is_refused_and_nobody_waits(pipeline: str, said: list[dict[str, Any]]) -> None:
    for rank, operation in zip(RANKS, ("send", "recv"), strict=True):
        assert said[rank][pipeline].keys() == {"saliency", "occlusion", "generic_attention"}
        for words in said[rank][pipeline].values():
            assert words.startswith("NotOffered") and f"(torch.distributed.{operation})" in words
            assert "a stage is not the model" in words and "device_map='auto'" in words
    assert (said[0]["runs"], said[1]["runs"]) == ([2, 6, 32], [2, 6, 100]), "and runs as it did"
