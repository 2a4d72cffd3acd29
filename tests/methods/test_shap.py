"""shap against its twin, the golden numbers, shap itself on the same masks, and the axioms."""

from __future__ import annotations

import re
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import label

import whyformer as wf
from tests.methods.properties import close, explained, golden, meets_golden, model_of, padded
from tests.methods.runs import running
from tests.methods.test_gradients import Linear
from tests.models import CASES
from tests.references.differentiable import TARGET, tokens
from tests.references.shap import MASK, Tree, first_tokens, owen, shap, value_of_tokens
from whyformer.engines.perturbation.game import game_of_scores
from whyformer.engines.perturbation.players import Players, players_of
from whyformer.engines.perturbation.variants import Replaced
from whyformer.methods.shap import QUEUE
from whyformer.results.interop import shap_package

METHOD = {"method": "shap"}


def test_exact_values_and_regression_need_no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """Short inputs among longer ones: a regression that could ask for all sets asks for them, shap or no shap."""

    def missing(asked: str) -> None:
        raise AssertionError(asked)

    monkeypatch.setattr("whyformer.methods.shap.shap_package", missing)
    how = {"double": True, **METHOD, "replace": MASK, "keep_special": False, "algorithm": "regression"}
    (found,) = explained("bert", first_tokens("bert", 4), evaluations=16, **how)
    close(found.scores, shap(value_of_tokens("bert", 4), 4))
    assert found.errors is None and found.base == pytest.approx(value_of_tokens("bert", 4)(frozenset()), abs=1e-5)


def tree_of(joins: np.ndarray) -> Tree:
    players = len(joins) + 1
    nodes: list[Tree] = list(range(players))
    for left, right, *_ in joins:
        nodes.append((nodes[int(left)], nodes[int(right)]))
    return nodes[-1]


def test_partition_values_are_owen_values_of_the_tree() -> None:
    inputs, value = first_tokens("bert", 6), value_of_tokens("bert", 6)
    (found,) = explained("bert", inputs, double=True, **METHOD, replace=MASK, keep_special=False, algorithm="partition")
    tree = Players(tuple((i,) for i in range(6)), np.arange(6.0)[:, None], 6, "partition").tree()
    close(found.scores, owen(value, tree_of(tree), 6))


def test_partition_is_shaps_own_on_the_same_masks() -> None:
    """shap's masker, model and explainer against ours, with a budget that stops it half way."""
    package = shap_package("this test")
    ids = tokens("bert", 0)
    inputs = {"input_ids": ids[None], "attention_mask": torch.ones_like(ids)[None]}
    (found,) = explained("bert", inputs, **METHOD, replace=MASK, keep_special=False, evaluations=40)
    tree = Players(tuple((i,) for i in range(len(ids))), np.arange(float(len(ids)))[:, None], len(ids), "").tree()

    class Masker:
        shape, clustering = (1, len(ids)), tree

        def __call__(self, mask: np.ndarray, row: np.ndarray) -> np.ndarray:
            return np.where(mask, row, MASK)[None]

    def predict(rows: np.ndarray) -> np.ndarray:
        with torch.no_grad():
            return model_of("bert")(input_ids=torch.from_numpy(rows.astype(np.int64))).logits[:, TARGET].numpy()

    np.random.seed(0)
    explainer = package.explainers.PartitionExplainer(predict, Masker())
    theirs = explainer(ids[None].numpy(), max_evals=40, batch_size=QUEUE, silent=True)
    close(found.scores, theirs.values[0])
    assert found.base == pytest.approx(float(np.ravel(theirs.base_values)[0]), abs=1e-5)


def test_sampled_orders_are_within_their_standard_error() -> None:
    inputs, value = first_tokens("bert", 8), value_of_tokens("bert", 8)
    exact = shap(value, 8)
    how = {"replace": MASK, "keep_special": False, "algorithm": "permutation"}
    found = [explained("bert", inputs, **METHOD, **how, evaluations=170, seed=seed)[0] for seed in range(10)]
    error = np.sqrt(np.mean([(e.scores - exact) ** 2 for e in found]))
    reported = np.sqrt(np.mean([e.checks["standard_error"] ** 2 for e in found]))
    assert 0.4 < reported / error < 2.5
    for e in found:
        assert e.checks["additivity_error"] < 1e-5, "every order adds up"
        assert e.errors is not None and (e.errors > 0).all()
        assert e.checks["standard_error"] == pytest.approx(float(np.sqrt((e.errors**2).mean())), rel=1e-5)


@pytest.mark.parametrize("mask", [4, 1])
def test_golden(mask: int) -> None:
    case, name = golden(), {4: "mask", 1: "unk"}[mask]
    one = {k: v[1:2] for k, v in case.inputs.items()}  # 8 tokens and 3 of padding
    how = {"target": case.target[1], "replace": mask, **METHOD}
    (everyone,) = wf.explain(case.model, one, keep_special=False, **how)
    meets_golden(everyone.scores, f"shapley.{name}.all8", 1)
    (inner,) = wf.explain(case.model, one, keep_special=[2, 3], **how)
    meets_golden(inner.scores, f"shapley.{name}.inner6", 1)


@pytest.mark.parametrize("algorithm", ["auto", "partition", "permutation"])
@pytest.mark.parametrize("name", ["bert", "vit", "nn_transformer_encoder", "rtdl_ft_transformer"])
def test_scores_add_up(name: str, algorithm: str) -> None:
    replace = MASK if name == "nn_transformer_encoder" else None  # it names no token for what is absent
    for found in explained(name, **METHOD, algorithm=algorithm, evaluations=64, replace=replace):
        assert found.scores.sum() == pytest.approx(found.value - found.base, abs=1e-4)
        assert found.checks["additivity_error"] < 1e-4
        assert found.cost.forwards <= 66


LINEAR = [{"method": "shap", "algorithm": a} for a in ("exact", "permutation", "partition")]


@pytest.mark.parametrize(
    "how", [*LINEAR, {"method": "two_ended"}, {"method": "integrated_gradients", "steps": 1}], ids=str
)
def test_dummy_and_linear(how: dict[str, Any]) -> None:
    """On a linear model the share of a column is its term, and a column without weight gets none."""
    torch.manual_seed(0)
    model, x = Linear(), torch.randn(2, 5)
    with torch.no_grad():
        model.head.weight[:, 3] = 0
    for row, found in enumerate(wf.explain(model, (x,), target=2, **how)):
        close(found.scores, (model.head.weight[2] * x[row]).detach().numpy())
        assert found.scores[3] == pytest.approx(0, abs=1e-6)
        assert found.checks.get("completeness_error", 0) < 1e-6


@pytest.mark.parametrize("method", ["shap", "two_ended"])
def test_words_share_among_their_pieces(method: str) -> None:
    model, tokenizer = wf.demo.load_sentiment()
    found = wf.explain(model, "The overblown movie", tokenizer, target="positive", method=method, by="word")
    words = dict(found.words())
    pieces = [s for s, w in zip(found.scores, found.units.word, strict=True) if w == 1]
    assert len(pieces) > 1 and np.ptp(pieces) < 1e-6
    assert words["overblown"] == pytest.approx(sum(pieces), abs=1e-6)
    assert method != "shap" or found.scores.sum() == pytest.approx(found.value - found.base, abs=1e-4)
    assert found.cost.forwards == 8, "2^3 sets of three words, or 2 · 3 + 2"
    assert found.scores[0] == found.scores[-1] == 0, "[CLS] and [SEP] were there all the time"


def test_superpixels_are_connected_groups_of_patches() -> None:
    with running("vit") as run:
        players = players_of(run, 0, "superpixel", True, 5, np.zeros(len(run.units[0]), bool))
        assert len(players.members) == 5
        assert sorted(i for m in players.members for i in m) == list(range(1, 17))
        for members in players.members:
            cells = np.isin(np.arange(1, 17), members).reshape(4, 4)
            assert label(cells)[1] == 1, "one piece"
    for method, forwards in (("shap", 2**5), ("two_ended", 2 * 5 + 2)):
        for found in explained("vit", method=method, by="superpixel", superpixels=5):
            assert len(np.unique(found.scores[1:].round(6))) <= 5
            assert found.cost.forwards == forwards


def test_masked_variants_hold_what_is_present() -> None:
    """Every set of patches, against pasting the pixels by hand."""
    with running("vit") as run:
        players = [(1, 2), (5,), (16,)]
        variants = Replaced(run, 0, players, "zero")
        sets = np.array(list(product([False, True], repeat=3)))
        made = variants.batch(sets).tensors["pixel_values"]
        image = CASES["vit"].inputs()["pixel_values"][0]
        for present, picture in zip(sets, made, strict=True):
            expected = image.clone()
            for members, there in zip(players, present, strict=True):
                for unit in members:
                    r, c = divmod(unit - 1, 4)
                    if not there:
                        expected[:, 8 * r : 8 * r + 8, 8 * c : 8 * c + 8] = 0
            assert torch.equal(picture, expected)
        game = game_of_scores(run, 0, variants, len(players))
        before = run.forwards_B[0]
        game.scores(sets)
        assert run.forwards_B[0] - before == 7, "all of them there is the input itself, whose value is known"
        game.scores(sets)
        assert run.forwards_B[0] - before == 7, "asked twice, run once"


def test_padding_is_cut_off_before_anything_is_run() -> None:
    inputs = padded(CASES["bert"].inputs(), 6)
    with running("bert", inputs=inputs) as run:
        variants = Replaced(run, 1, [(1,), (2,)], MASK)
        assert variants.batch(np.ones((3, 2), bool)).tensors["input_ids"].shape == (3, 7)


def test_the_tree_joins_neighbours() -> None:
    grid = np.array(list(product(range(2), range(3))), float)
    tree = Players(tuple((i,) for i in range(6)), grid, 6, "").tree()
    assert tree.shape == (5, 4)
    assert tree[-1, 3] == 6
    halves = [set(re.findall(r"\d", str(half))) for half in tree_of(tree)]
    assert {"0", "3"} <= halves[0] or {"0", "3"} <= halves[1], "the longer side is cut first"
