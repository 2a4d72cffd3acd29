"""Numbers of an input erased one by one: word vectors, pixels and columns, against the model run by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.evaluate.games import sentiment
from tests.models import CASES
from whyformer.errors import NotOffered
from whyformer.evaluate.games import games_of
from whyformer.evaluate.soft_game import uniform

TEXTS = ["a witty, seductive movie", "This is so boring"]


def test_elements_of_word_vectors_are_zeroed() -> None:
    model, tokenizer = sentiment().model, sentiment().processor
    with games_of(sentiment(), TEXTS, seed=5) as games:
        soft, parts, target = games.soft_game(0), len(games.parts[0]), games.targets[0].index
        keep = np.linspace(0, 1, parts)
        said = soft.ask(np.stack([keep, np.ones(parts), np.zeros(parts)]), 2)
        assert soft.forwards == games.forwards == 6
        soft.ask(keep[None], 2)
        assert soft.forwards == 6, "what was asked before is not run again"
        whole, none = games.game(0).whole(), said[2, 0, 0]
    ids = torch.tensor([tokenizer(TEXTS[0])["input_ids"]])
    with torch.no_grad():
        vectors = model.get_input_embeddings()(ids)[0]
        by_hand = []
        for draw in range(2):
            stays = uniform(vectors.shape, (5, 0, draw)) < torch.tensor([1, *keep, 1])[:, None]
            by_hand.append(model(inputs_embeds=(vectors * stays)[None]).logits.softmax(-1)[0, target].item())
        nothing = torch.zeros_like(vectors)
        nothing[[0, -1]] = vectors[[0, -1]]
        zeroed = model(inputs_embeds=nothing[None]).logits.softmax(-1)[0, target].item()
    np.testing.assert_allclose(said[0, :, 0], by_hand, atol=1e-5)
    assert said[1, 0, 0] == pytest.approx(whole, abs=1e-5) and none == pytest.approx(zeroed, abs=1e-5)
    assert by_hand[0] != by_hand[1]


@pytest.mark.parametrize(("name", "replace"), [("vit", None), ("vit", "grey"), ("rtdl_ft_transformer", "mean")])
def test_pixels_and_columns_give_way_to_what_stands_for_the_absent(name: str, replace: str | None) -> None:
    case = CASES[name]
    with games_of(wf.Explainer(case.build(None)), case.inputs(), replace=replace) as games:
        parts, game, soft = len(games.parts[0]), games.game(0), games.soft_game(0)
        some = np.arange(parts) % 2 == 0  # probabilities of 1 and 0 are the variants of the game
        ends = np.stack([some, np.ones(parts), np.zeros(parts)])
        np.testing.assert_allclose(soft.ask(ends, 1)[:, 0], game.ask(ends.astype(bool)), atol=1e-5)
        half = soft.ask(np.full((1, parts), 0.5), 4)[0, :, 1]
        assert np.ptp(half) > 0


def test_compare_asks_for_all_methods_together_and_batch_size_changes_nothing() -> None:
    how: dict[str, Any] = {"methods": ["attn_lrp", "raw_attention"], "metrics": ["soft_nc", "soft_ns", "pi_soft_nc"]}
    first, second = sentiment().compare(TEXTS, **how), sentiment().compare(TEXTS, **how, batch_size=3)
    for metric in how["metrics"]:
        assert first["attn_lrp"].scores[metric].mean > first["random"].scores[metric].mean
        for method in how["methods"]:
            np.testing.assert_allclose(first.values[metric][method], second.values[metric][method], atol=1e-5)


def test_where_numbers_belong_to_no_part_it_is_said() -> None:
    case = CASES["clip"]
    with (
        games_of(wf.Explainer(case.build(None)), case.inputs()) as games,
        pytest.raises(NotOffered, match="pi_soft_nc"),
    ):
        games.soft_game(0)
