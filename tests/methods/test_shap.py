"""shap against its twin, the golden numbers, shap itself, and the axioms; by regression, with guides and errors."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.ndimage import label

import whyformer as wf
from tests.methods.properties import Scored, close, explained, golden, meets_golden, model_of, running
from tests.methods.test_gradients import Linear
from tests.references.differentiable import TARGET, tokens
from tests.references.shap import MASK, Tree, first_tokens, owen, shap, value_of_tokens
from tests.support import language
from whyformer.engines.perturbation.players import Players, players_of
from whyformer.loan.borrow import borrowed
from whyformer.methods.input_gradients import alone
from whyformer.methods.shap import CEILING, GUIDES, QUEUE, ROUND
from whyformer.results.interop import shap_package
from whyformer.run.session import Session

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


@pytest.mark.parametrize(
    ("name", "algorithm"),
    [("bert", "auto"), ("vit", "partition"), ("nn_transformer_encoder", "permutation")],
)
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


def test_the_tree_joins_neighbours() -> None:
    grid = np.array(list(product(range(2), range(3))), float)
    tree = Players(tuple((i,) for i in range(6)), grid, 6, "").tree()
    assert tree.shape == (5, 4)
    assert tree[-1, 3] == 6
    halves = [set(re.findall(r"\d", str(half))) for half in tree_of(tree)]
    assert {"0", "3"} <= halves[0] or {"0", "3"} <= halves[1], "the longer side is cut first"


TEXT = "The cat sat on the mat . The big red dog ran home . He said yes . It is not far . All are here ."


def test_few_players_are_enumerated_whatever_is_asked_for() -> None:
    how = {"replace": MASK, "keep_special": False}
    (plain,) = explained("bert", first_tokens("bert"), **METHOD, **how)
    for options in ({"algorithm": "regression"}, {"guide": "attn_lrp"}, {"evaluations": "auto"}):
        (found,) = explained("bert", first_tokens("bert"), **METHOD, **how, **options)
        assert np.array_equal(found.scores, plain.scores) and found.errors is None


def test_values_and_errors_against_all_sets() -> None:
    inputs, exact = first_tokens("bert", 8), shap(value_of_tokens("bert", 8), 8)
    how = {"replace": MASK, "keep_special": False, "evaluations": 60}
    found = [explained("bert", inputs, **METHOD, **how, algorithm="regression", seed=s)[0] for s in range(8)]
    real = np.sqrt(np.mean([(e.scores - exact) ** 2 for e in found]))
    assert real < 0.2 * np.abs(exact).max()
    assert 0.6 < np.sqrt(np.mean([e.errors**2 for e in found])) / real < 1.6
    for e in found:
        assert e.cost.forwards == 62 and e.checks["additivity_error"] < 1e-5
        assert e.checks["standard_error"] == pytest.approx(float(np.sqrt((e.errors**2).mean())), rel=1e-5)


@pytest.mark.parametrize("guide", ["attn_lrp", "generic_attention+alone", "saliency", "auto"])
@pytest.mark.parametrize("name", ["bert", "vit"])
def test_a_guide_is_named_and_paid_for(name: str, guide: str) -> None:
    how = {"evaluations": 30, "replace": MASK} if name == "bert" else {"evaluations": 30}
    alone = explained(name, **METHOD, **how, algorithm="regression")
    for found, without in zip(explained(name, **METHOD, **how, guide=guide), alone, strict=True):
        name_used = "attn_lrp+alone" if guide == "auto" else guide
        assert found.options["guide"] == name_used
        assert found.scores.sum() == pytest.approx(found.value - found.base, abs=1e-4)
        more = 2 * name_used.endswith("+alone")  # what is said at the baseline, and its gradient
        assert found.cost.backwards == 1 + (more > 0)
        assert more <= found.cost.forwards - without.cost.forwards <= more + 1
        forwards, backwards = wf.list_methods()["shap"].cost(len(found.units), **found.options)
        assert found.cost.forwards <= forwards and found.cost.backwards <= backwards
        assert not np.array_equal(found.scores, without.scores) and found.errors is not None


def test_what_units_do_alone_is_the_gradient_where_all_are_absent() -> None:
    model, tokenizer = wf.demo.load_sentiment()
    text = "the film is not boring ."
    ids = torch.tensor([tokenizer(text)["input_ids"]])
    special = torch.isin(ids, torch.tensor(tokenizer.all_special_ids))
    table = model.get_input_embeddings().weight.detach()
    there, absent = table[ids], table[torch.where(special, ids, tokenizer.mask_token_id)].requires_grad_()
    (gradient,) = torch.autograd.grad(model(inputs_embeds=absent).logits[0, 1], absent)
    explainer = wf.Explainer(model, tokenizer)
    with borrowed(model):
        scores = alone(Session(explainer, explainer.source(text), target=1).run([0]))[0].numpy()
    close(scores, ((there - absent) * gradient).sum(-1)[0].detach().numpy(), 1e-4)


def test_a_guide_of_both_ends_is_nearer_to_the_truth() -> None:
    """Sentences whose clauses contradict each other, against many evaluations without a guide."""
    model, tokenizer = wf.demo.load_sentiment()
    explainer, off = wf.Explainer(model, tokenizer), dict[str | None, list[float]]()
    text = "the second half is dull and predictable , but the cast is wonderful in the end ."
    much = explainer.explain(text, **METHOD, algorithm="regression", evaluations=600).scores
    for guide in (None, "attn_lrp+alone"):
        for seed in range(3):
            how = {"algorithm": "regression", "evaluations": 48, "guide": guide, "seed": seed}
            scores = explainer.explain(text, **METHOD, **how).scores
            off.setdefault(guide, []).append(float(np.abs(scores - much).mean()))
    assert np.mean(off["attn_lrp+alone"]) < 0.9 * np.mean(off[None])


def test_where_no_gradient_is_to_be_had_auto_goes_without() -> None:
    detached = Scored(lambda x: x.detach() @ torch.arange(12.0))
    rows = torch.randn(2, 12, generator=torch.Generator().manual_seed(0))
    for found in wf.explain(detached, (rows,), target=0, **METHOD, guide="auto", evaluations=40):
        assert found.options["guide"] is None and found.cost.backwards <= len(GUIDES)


def test_columns_are_found_exactly_where_the_score_is_their_sum() -> None:
    torch.manual_seed(0)
    model, x = Linear(20), torch.randn(2, 20)
    for row, found in enumerate(wf.explain(model, (x,), target=2, **METHOD, evaluations="auto")):
        close(found.scores, (model.head.weight[2] * x[row]).detach().numpy(), 1e-3)
        assert found.cost.forwards == ROUND + 2, "settled after the first look"


def test_evaluations_end_when_the_order_is_settled_or_at_the_ceiling() -> None:
    model, tokenizer = wf.demo.load_sentiment()
    text = "The second half is dull , but the cast is wonderful ."
    explainer = wf.Explainer(model, tokenizer)
    auto = explainer.explain(text, **METHOD, evaluations="auto", guide="auto")
    assert ROUND + 2 <= auto.cost.forwards <= CEILING + 3
    much = explainer.explain(text, **METHOD, algorithm="regression", evaluations=640)
    assert auto.ranked()[0][0] == much.ranked()[0][0]
    assert np.abs(auto.scores - much.scores).max() < 4 * np.hypot(auto.errors, much.errors).max()


def test_an_order_that_cannot_be_settled_is_said() -> None:
    """Nothing but what all columns do together: no sum over columns says it."""
    parity = Scored(lambda x: torch.sin(1e4 * (x * torch.arange(1, x.shape[1] + 1)).sum(1)))
    (found,) = wf.explain(parity, (torch.ones(1, 14),), target=0, **METHOD, evaluations="auto")
    assert found.cost.forwards <= CEILING + 2
    assert any("not settled" in warning for warning in found.warnings)


def test_sentences_of_a_language_model() -> None:
    lm, texts = language.model("llama"), (TEXT, "paris is red .")
    how = METHOD | {"processor": language.tokenizer(), "span": True, "replace": 9, "guide": "auto"}
    found = wf.explain(lm, texts, units="token", evaluations=40, **how)
    assert found.errors is not None and found.errors.shape == found.scores.shape
    by_sentence = wf.explain(lm, texts, units="sentence", algorithm="regression", evaluations=20, **how)
    assert by_sentence.errors is not None and len(by_sentence.errors) == len(by_sentence.units)
    assert by_sentence.scores.sum() == pytest.approx(by_sentence.value - by_sentence.base, abs=1e-3)


def test_errors_are_in_every_view_and_in_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model, tokenizer = wf.demo.load_sentiment()
    partition, found = (
        wf.explain(model, "A wonderful film , so moving", tokenizer, **METHOD, algorithm=algorithm, evaluations=20)
        for algorithm in ("partition", "regression")
    )
    assert partition.errors is None and "errors" not in partition.to_dict() and found.errors is not None
    free = ~np.array(found.units.special)
    assert (found.errors[free] > 0).all() and not found.errors[~free].any()
    found.show()
    assert capsys.readouterr().out.count("±") >= int(free.sum())
    assert found.to_html().count('class="wf-limits"') >= int(free.sum())
    place = found.units.labels.index("wonderful")
    bars, words = (
        [bar for panel in view.panels for mark in panel.marks for bar in getattr(mark, "bars", ())]
        for view in (found.view(), found.view(by="word"))
    )
    bar = next(bar for bar in bars if bar.label == "wonderful")
    assert bar.high - bar.score == pytest.approx(1.96 * float(found.errors[place]), rel=1e-5)
    assert any(bar.low is not None for bar in words)
    for ending in ("json", "npz"):
        found.save(tmp_path / f"why.{ending}")
        np.testing.assert_array_equal(wf.load(tmp_path / f"why.{ending}").errors, found.errors)
    assert np.array_equal(found.to_frame()["error"], found.errors)


def test_interactions_are_second_differences_of_both_ends() -> None:
    value = value_of_tokens("bert", 5)
    how = {"replace": MASK, "keep_special": False, "interactions": 2}
    (found,) = explained("bert", first_tokens("bert"), double=True, **METHOD, **how)
    everyone = frozenset(range(5))

    def second(i: int, j: int) -> float:
        low = value(frozenset({i, j})) - value(frozenset({i})) - value(frozenset({j})) + value(frozenset())
        high = value(everyone) - value(everyone - {i}) - value(everyone - {j}) + value(everyone - {i, j})
        return (low + high) / 2

    first = sorted(np.argsort(-np.abs(found.scores))[:4].tolist())  # six pairs, of which two are kept
    pairs = sorted(((i, j) for i in first for j in first if i < j), key=lambda pair: -abs(second(*pair)))
    labels = found.units.labels
    assert found.interactions is not None and len(found.interactions) == 2
    for (one, other, measured), (i, j) in zip(found.interactions, pairs, strict=False):
        assert (one, other) == (labels[i], labels[j]) and measured == pytest.approx(second(i, j), abs=1e-5)
    assert found.cost.forwards == 2**5, "all sets were known"


def test_pairs_of_words_that_occur_twice_carry_their_places() -> None:
    model, tokenizer = wf.demo.load_sentiment()
    found = wf.explain(model, "good film, not good, good", processor=tokenizer, **METHOD | {"interactions": 10})
    assert found.interactions is not None
    labels, pairs = found.units.labels, [pair[:2] for pair in found.interactions]
    assert len(set(pairs)) == len(pairs) == 10
    for name in {name for pair in pairs for name in pair}:
        word, _, place = name.rstrip("]").partition(" [")
        assert labels.count(word) == 1 if not place else labels.count(word) > 1 and labels[int(place)] == word


def test_interactions_are_counted_shown_and_saved(tmp_path: Path) -> None:
    model, tokenizer = wf.demo.load_sentiment()
    how = METHOD | {"evaluations": 20, "interactions": 3, "algorithm": "regression"}
    found = wf.explain(model, "This movie is not bad at all", processor=tokenizer, **how)
    assert found.interactions is not None and len(found.interactions) == 3
    sizes = [abs(value) for *_, value in found.interactions]
    assert sizes == sorted(sizes, reverse=True)
    assert {"not", "bad"} <= {name for pair in found.interactions for name in pair[:2]}
    assert 22 < found.cost.forwards <= wf.list_methods()["shap"].cost(9, **found.options)[0]
    page = found.to_html().replace("&#x27;", "'")
    assert "× 'bad'" in page or "'bad' ×" in page
    found.save(tmp_path / "why.json")
    assert wf.load(tmp_path / "why.json").interactions == found.interactions
