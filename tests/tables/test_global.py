"""Many rows or texts averaged: equal to averaging by hand, whatever the batches; and what a mean is taken over."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.stats import spearmanr, t
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from tests.models.case import seeded
from tests.references.tables import permutation_drop
from tests.tables.models import CATEGORIES, CLASSES, LAYOUTS, NUMBERS, rows, saint, shared, table
from whyformer.demo import load_adult, load_sentiment
from whyformer.demo.census import adult_rows
from whyformer.errors import BadInput
from whyformer.tables import CorpusExplanation
from whyformer.tables.global_explanation import Remarks

SOME = rows(23)


@pytest.mark.parametrize("method", ["raw_attention", "occlusion"])
def test_it_is_the_mean_over_rows(method: str) -> None:
    model = LAYOUTS["rtdl"].build()
    explained = wf.explain(model, SOME, processor=table(), method=method, target=1)
    each = np.stack([e.scores for e in explained]).astype(float)
    found = wf.explain_global(model, pd.DataFrame(SOME), processor=table(), method=method, target=1, batch_size=5)
    assert found.rows == 23 and found.target == "yes" and found.labels == ("[CLS]", *NUMBERS, *CATEGORIES)
    np.testing.assert_allclose(found.mean, each.mean(0), atol=1e-5)
    np.testing.assert_allclose(found.mean_size, np.abs(each).mean(0), atol=1e-5)
    error = t.ppf(0.975, 22) * each.std(0, ddof=1) / np.sqrt(23)
    np.testing.assert_allclose([found.high - found.mean, found.mean - found.low], [error, error], atol=1e-5)
    assert found.samples is not None and found.samples.shape == (23, 6)
    assert found.ranked()[0][0] != "[CLS]" and len(found.ranked()) == 5
    if method == "raw_attention":
        np.testing.assert_allclose(found.matrix, np.mean([e.matrix for e in explained], 0), atol=1e-5)


def test_columns_that_attention_does_not_see_have_no_score() -> None:
    found = wf.explain_global(shared("lucidrains_tab"), SOME[:5], processor=table(), method="generic_attention")
    frame = found.to_frame().set_index("column")
    assert frame.loc[list(NUMBERS), "mean"].isna().all() and not frame.loc[list(NUMBERS), "explained"].any()
    assert frame.loc[list(CATEGORIES), "mean"].notna().all()
    assert "age" not in dict(found.ranked(specials=True)) and "which are not scored" in found.to_html()


def test_few_samples_are_kept_and_signed_scores_of_several_classes_warn() -> None:
    found = wf.explain_global(shared("rtdl"), SOME, processor=table(), method="input_x_gradient", samples=4)
    assert found.samples is not None and len(found.samples) == 4 and len(found.sample_values) == 4
    assert found.target == "the prediction of each row" and any("pass target=" in w for w in found.warnings)
    assert found.importance is found.mean_size
    case = CASES["rtdl_ft_transformer"]  # of tensors, without a Table
    plain = wf.explain_global(case.build(None), case.inputs(), target=0)
    assert plain.rows == 2 and plain.labels[1] == "x_cont[0]"


def test_warnings_of_one_kind_are_told_once_and_none_is_dropped() -> None:
    model = LAYOUTS["rtdl"].build()
    how = {"processor": table(), "method": "integrated_gradients", "steps": 1, "target": 1}
    each = [w for e in wf.explain(model, SOME, **how) for w in e.warnings if "completeness" in w]
    shares = sorted(float(w.split("error is ")[1].split("%")[0]) for w in each)
    (told,) = [w for w in wf.explain_global(model, SOME, batch_size=5, **how).warnings if "completeness" in w]
    count = "all 23" if len(each) == 23 else f"{len(each)} of 23"
    assert shares[0] < shares[-1] and f"error is {shares[0]:.0f}% to {shares[-1]:.0f}% of" in told
    assert told.endswith(f"({count} rows)") and "Table(…, reference=rows)" in told


def test_kinds_of_warnings() -> None:
    remarks = Remarks("rows")
    for row in range(12):
        remarks.add(["same for all, 3 times", f"{row} % here, x{row % 2} there", *[f"kind {'abcdefghijkl'[row]}"] * 2])
    assert remarks.told(12) == [
        "same for all, 3 times",
        "0 to 10 % here, x0 there (6 of 12 rows)",
        "kind a (1 of 12 rows)",
        "1 to 11 % here, x1 there (6 of 12 rows)",
        *(f"kind {letter} (1 of 12 rows)" for letter in "bcdefghijkl"),
    ]


def test_errors_come_before_long_work() -> None:
    for some, options, said in (
        ([*SOME, SOME[0] | {"work": "other"}], {"processor": table()}, "row 23 of column 'work'"),
        (SOME, {"processor": table(), "target": [0, 1]}, "targets: 2, rows: 23"),
        ([{"age": 1}], {}, "processor=Table"),
    ):
        with pytest.raises(BadInput, match=said):
            wf.explain_global(shared("rtdl"), some, **options)


# Words over many texts: the mean over their occurrences.


TEXTS = [
    "A great film, great!",
    "A dull film.",
    "Great acting in a dull story.",
    "Not great, not dull: a film.",
    "So dull",
]


def test_it_is_the_mean_over_occurrences() -> None:
    model, tokenizer = load_sentiment()
    how = {"processor": tokenizer, "method": "input_x_gradient", "target": "positive"}
    each: dict[str, list[float]] = {}
    for explanation in wf.explain(model, TEXTS, **how):
        for word, score in explanation.words():
            each.setdefault(word.casefold(), []).append(score)
    corpus = wf.explain_global(model, TEXTS, batch_size=2, **how)
    assert isinstance(corpus, CorpusExplanation)
    assert corpus.texts == len(TEXTS) and corpus.target == "positive" and corpus.signed
    assert set(corpus.words) == {word for word, scores in each.items() if len(scores) > 1}
    assert corpus.left_out == sum(len(scores) == 1 for scores in each.values())
    for i, word in enumerate(corpus.words):
        scores = np.array(each[word])
        error = t.ppf(0.975, len(scores) - 1) * scores.std(ddof=1) / np.sqrt(len(scores))
        told = (corpus.counts[i], corpus.mean[i], corpus.mean_size[i], corpus.high[i] - corpus.mean[i])
        assert told == pytest.approx((len(scores), scores.mean(), np.abs(scores).mean(), error), abs=1e-5)
        assert word in corpus.examples[i].casefold()
    assert corpus.ranked()[0][0] == max(corpus.words, key=lambda w: np.mean(each[w]))


def test_columns_of_texts_and_rare_words() -> None:
    model, tokenizer = load_sentiment()
    corpus = wf.explain_global(model, pd.Series(TEXTS), processor=tokenizer, method="occlusion", least=1)
    assert corpus.left_out == 0 and np.isnan(corpus.low).any()
    assert list(corpus.to_frame().columns) == ["word", "counts", "mean", "low", "high", "mean_size", "example"]
    assert corpus.target == "the prediction of each text" and any("pass target=" in w for w in corpus.warnings)
    with pytest.raises(BadInput, match="pass least=4, or more texts"):
        wf.explain_global(model, TEXTS, processor=tokenizer, least=50, method="random")
    often = wf.explain_global(model, TEXTS, processor=tokenizer, least=4, method="random")
    assert isinstance(often, CorpusExplanation) and set(often.words) == {"a", "dull", "great"}


# What "mean" means: reference rows, or an input's own steps; never the other inputs of the batch.


MEANS: list[dict[str, Any]] = [
    {"method": "integrated_gradients", "baseline": "mean", "steps": 8},
    {"method": "occlusion", "replace": "mean"},
    {"method": "shap", "replace": "mean"},
]
FOUR = rows(4)


@pytest.mark.parametrize("how", MEANS, ids=lambda how: how["method"])
def test_a_row_has_the_same_scores_alone_and_with_others(how: dict[str, Any]) -> None:
    model, described = LAYOUTS["rtdl"].build(), table(reference=rows(9, seed=3))
    usual = {k: v for k, v in how.items() if v != "mean"}  # real rows for perturbation, the mean for gradients
    for options in (how, usual):
        together = wf.explain(model, FOUR, processor=described, target=1, **options)[0]
        alone = wf.explain(model, FOUR[0], processor=described, target=1, **options)
        np.testing.assert_allclose(together.scores, alone.scores, atol=1e-5)
    assert np.abs(alone.scores).max() > 1e-3


@pytest.mark.parametrize("how", MEANS[:2], ids=lambda how: how["method"])
def test_rows_to_take_the_mean_from_have_to_be_named(how: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=r"mean .*not .*explained together.*reference=rows"):
        wf.explain(shared("rtdl"), FOUR, processor=table(), **how)
    case = CASES["rtdl_ft_transformer"]
    with pytest.raises(BadInput, match=r"mean of a column.*reference=rows"):
        wf.explain(case.build(None), case.inputs(), **how)


def test_columns_without_a_token_are_on_the_path_of_integrated_gradients() -> None:
    """Numbers of a TabTransformer go around attention, and move with the tokens from the typical row to the input."""
    model, reference = LAYOUTS["lucidrains_tab"].build(), rows(9, seed=3)
    described = table(reference=reference)
    found = wf.explain(model, FOUR, processor=described, method="integrated_gradients", target=1, steps=100)
    typical: dict[str, Any] = {n: float(np.mean([r[n] for r in reference])) for n in NUMBERS}
    typical |= {k: max(known := [r[k] for r in reference], key=known.count) for k in CATEGORIES}
    start = wf.explain(model, typical, processor=described, target=1)
    for one in found:
        assert one.units.labels == (*NUMBERS, *CATEGORIES)
        assert one.base == pytest.approx(start.value, abs=1e-5)
        assert float(one.scores.sum()) == pytest.approx(one.value - start.value, abs=0.1)


class Series(nn.Module):
    """A head over the mean of attended steps."""

    def __init__(self) -> None:
        super().__init__()
        self.attend, self.out = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 3)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        y = torch.tanh(self.attend(x, x, x, key_padding_mask=~mask.bool())[0] + x)
        return self.out((y * mask[..., None]).sum(1) / mask.sum(1, keepdim=True))


@pytest.mark.parametrize("how", MEANS, ids=lambda how: how["method"])
def test_steps_take_the_mean_of_their_own_series(how: dict[str, Any]) -> None:
    model = seeded(Series)
    x = torch.randn(3, 5, 8, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(3, 5, dtype=torch.int64)
    mask[0, 4:] = 0
    found = wf.explain(model, {"x": x, "mask": mask}, target=1, **how)[0]
    alone = wf.explain(model, {"x": x[:1], "mask": mask[:1]}, target=1, **how)[0]
    np.testing.assert_allclose(found.scores, alone.scores, atol=1e-5)
    if how["method"] == "occlusion":
        changed = x[:1].clone()
        changed[0, 1] = x[0, :4].mean(0)
        expected = model(x[:1], mask[:1])[0, 1] - model(changed, mask[:1])[0, 1]
        assert float(found.scores[1]) == pytest.approx(expected.item(), abs=1e-5)
    if how["method"] == "integrated_gradients":
        changed = torch.where(mask[:1, :, None].bool(), x[0, :4].mean(0), x[:1])
        assert found.base == pytest.approx(model(changed, mask[:1])[0, 1].item(), abs=1e-5)


def test_comparing_on_one_row_needs_others_for_the_mean() -> None:
    model = LAYOUTS["rtdl"].build()
    with pytest.raises(BadInput, match=r"single input is the input itself.*reference="):
        wf.compare(model, FOUR[:1], processor=table(), method=["saliency"], replace="mean")
    result = wf.compare(model, FOUR[:1], processor=table(), method=["saliency"], replace="mean", reference=FOUR[1:])
    assert result["saliency"].scores


# Permutation importance against its definition, scikit-learn's own, and answers that are known beforehand.


FORTY = rows(40)
FRAME = pd.DataFrame(FORTY)
TRUTH = np.array([CLASSES[i % 3] for i in range(40)])


class Blind(nn.Module):
    """Looks at age and work, never at the rest."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embed = nn.Embedding(3, 3)

    def forward(self, x_num: torch.Tensor, x_cat: torch.Tensor) -> torch.Tensor:
        return self.embed(x_cat[:, 0]) + x_num[:, :1] * torch.tensor([1.0, -1.0, 0.5])


def test_unused_columns_get_exactly_zero() -> None:
    found = wf.feature_permutation(Blind(), FRAME, TRUTH, processor=table(), metric="neg_log_loss", repeats=4)
    assert not found.drops[[1, 2, 4]].any() and not found.low[[1, 2, 4]].any() and found.mean[[0, 3]].all()
    transformer = LAYOUTS["rtdl"].build()
    with torch.no_grad():
        transformer.cont_embeddings.weight[1] = 0  # "hours" says nothing: in batches, too
    found = wf.feature_permutation(transformer, FRAME, TRUTH, processor=table(), metric="neg_log_loss", batch_size=7)
    assert dict(found.ranked())["hours"] == 0.0


def test_equals_its_definition() -> None:
    model, described = LAYOUTS["rtdl"].build(), table()
    found = wf.feature_permutation(model, FRAME, TRUTH, processor=described, metric="accuracy", repeats=3, seed=5)
    columns = {c: FRAME[c].to_numpy() for c in FRAME}

    def accuracy(some: dict[str, Any]) -> float:
        numbers, codes = described.encode({k: np.asarray(v) for k, v in some.items()})
        logits = model(torch.tensor(numbers).float(), torch.tensor(codes)).detach().numpy()
        return sum(CLASSES[row.argmax()] == t for row, t in zip(logits, TRUTH, strict=True)) / len(TRUTH)

    assert found.score == pytest.approx(accuracy(columns))
    for repeat in range(3):
        order = np.random.default_rng([5, repeat]).permutation(40)
        for i, column in enumerate(found.labels):
            assert found.drops[i, repeat] == pytest.approx(permutation_drop(accuracy, columns, column, order))
    np.testing.assert_allclose(found.mean, found.drops.mean(1))


def test_a_boosted_tree_is_shuffled_as_by_scikit_learn() -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.inspection import permutation_importance

    frame = FRAME.astype({"work": "category", "sex": "category"})
    y = (frame["age"] + (frame["work"] == "private") > 0.3).astype(int).to_numpy()
    settings: dict[str, Any] = {"categorical_features": "from_dtype", "min_samples_leaf": 2, "max_iter": 5}
    tree = HistGradientBoostingClassifier(random_state=0, **settings).fit(frame, y)
    found = wf.feature_permutation(tree, frame, y, repeats=20)
    theirs = permutation_importance(tree, frame, y, n_repeats=20, random_state=0, n_jobs=1)
    assert found.metric == "accuracy" and found.score == tree.score(frame, y) and found.ranked()[0][0] == "age"
    np.testing.assert_allclose(found.mean, theirs.importances_mean, atol=0.08)  # other shuffles


def test_functions_arrays_and_any_metric() -> None:
    from sklearn.linear_model import LinearRegression

    X = np.random.default_rng(0).normal(size=(50, 3))
    y = 3 * X[:, 0] - X[:, 1]
    fitted = LinearRegression().fit(X, y)
    by_estimator = wf.feature_permutation(fitted, X, y)
    by_function = wf.feature_permutation(lambda table: table @ [3.0, -1.0, 0.0], X, y)
    assert by_estimator.metric == by_function.metric == "r2"
    np.testing.assert_allclose(by_estimator.mean, by_function.mean, atol=1e-9)
    assert by_function.mean[2] == 0.0 and by_function.labels == ("0", "1", "2")
    for metric in (lambda t, p: -float(np.abs(t - p).max()), "neg_root_mean_squared_error"):
        mean = wf.feature_permutation(fitted, X, y, metric=metric).mean
        assert mean[0] > mean[1] > mean[2] - 1e-12
    named = wf.feature_permutation(lambda t: 2 * np.asarray(t["a"]), {"a": X[:, 0], "b": X[:, 1]}, 2 * X[:, 0])
    assert named.labels == ("a", "b") and named.mean[1] == 0.0
    two = lambda t: np.stack([1 - (t[:, 0] > 0), t[:, 0] > 0], 1).astype(float)  # noqa: E731
    for function, truth in ((two, (X[:, 0] > 0).astype(int)), (lambda t: 4 * t[:, :1], X[:, 0] > 0)):  # or one logit
        probable = wf.feature_permutation(function, X, truth, metric="roc_auc")
        assert probable.score == 1.0 and probable.mean[0] > 0.2 and probable.mean[1] == 0.0
        assert wf.feature_permutation(function, X, truth).score == 1.0


def test_groups_are_shuffled_together() -> None:
    X = np.random.default_rng(0).normal(size=(200, 1)).repeat(2, 1)  # twins: each makes up for the other
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(c=1.0)
    y = X[:, 0]

    def both(t: pd.DataFrame) -> Any:
        return np.where(np.abs(t["a"] - t["b"]) < 1e-9, t["a"], 0.5 * (t["a"] + t["b"]))

    alone, together = (wf.feature_permutation(both, frame, y, groups=g) for g in (None, {"twins": ["a", "b"]}))
    assert together.labels == ("twins", "c") and together.groups == {"twins": ("a", "b")}
    assert together.mean[0] > alone.mean[0] + 0.3 and together.mean[1] == 0.0


def test_it_is_reproducible_and_one_repeat_shows_no_spread() -> None:
    first = wf.feature_permutation(Blind(), FRAME, TRUTH, processor=table(), repeats=2, seed=3)
    again = wf.feature_permutation(Blind(), FRAME, TRUTH, processor=table(), repeats=2, seed=3, batch_size=7)
    np.testing.assert_array_equal(first.drops, again.drops)
    assert list(first.to_frame().columns) == ["column", "mean", "low", "high"]
    how: dict[str, Any] = {"processor": table(reference=FORTY[:8]), "repeats": 1, "batch_size": 16}
    single = wf.feature_permutation(saint(), FRAME, TRUTH, **how)
    assert np.isnan(single.low).all() and any("batches of 16 rows" in w for w in single.warnings)  # rows see each other


def test_wrong_permutations_are_refused() -> None:
    for wrong, said in (
        ({"groups": {"g": ["agee"]}}, "group 'g': 'agee'. Did you mean 'age'"),
        ({"groups": {"g": ["age"], "h": ["age"]}}, "in two groups"),
        ({"groups": {"g": []}}, "holds no column"),
        ({"metric": "acuracy"}, "unknown metric 'acuracy'. Did you mean 'accuracy'"),
        ({"processor": None}, "processor=Table"),
    ):
        with pytest.raises(BadInput, match=said):
            wf.feature_permutation(Blind(), FRAME, TRUTH, **{"processor": table(), **wrong})  # type: ignore[arg-type]
    for model, frame, truth, said in (
        (Blind(), FRAME, TRUTH[:39], "39"),
        (Blind(), FRAME, np.where(TRUTH == "no", "perhaps", TRUTH), "class in y: 'perhaps'"),
        (3, FRAME, TRUTH, "cannot predict"),
        (Blind(), FRAME.assign(age=np.nan), TRUTH, "'age' has no value"),
    ):
        with pytest.raises(BadInput, match=said):
            wf.feature_permutation(model, frame, truth, processor=None if model == 3 else table())


# Agreement with an explanation


def test_agreement_is_the_rank_correlation_of_scipy() -> None:
    model, described = load_adult()
    some = adult_rows()[:30]
    answers, how = [r["income"] for r in some], {"processor": described, "repeats": 2}
    lost = wf.feature_permutation(model, some, answers, metric="neg_log_loss", **how)  # type: ignore[arg-type]
    each = wf.explain(model, some, described, method="attn_lrp")
    overall = wf.explain_global(model, some, described, method="attn_lrp", reference=lost)
    where = [each[0].units.labels.index(name) for name in lost.labels]
    scores = np.abs(np.stack([e.scores[where] for e in each]).astype(float))
    agreement = lost.agreement(each)
    assert agreement.spearman == pytest.approx(spearmanr(scores.mean(0), lost.drops.mean(1)).statistic, abs=1e-6)
    assert agreement.low <= agreement.spearman <= agreement.high and agreement.high - agreement.low > 0.01

    # Of single rows: the change of the logit of the class that the model predicts.
    def logits(rows: Any) -> Any:
        found = wf.explain(model, rows, described, target=[e.prediction.index for e in each], method="random")
        return np.array([e.value for e in found])

    changes, before = np.zeros_like(scores), logits(some)
    for order in [np.random.default_rng([0, repeat]).permutation(30) for repeat in range(2)]:
        for column, name in enumerate(lost.labels):
            shuffled = [r | {name: some[int(order[i])][name]} for i, r in enumerate(some)]
            changes[:, column] += np.abs(logits(shuffled) - before) / 2
    assert agreement.per_row is not None
    expected = [spearmanr(s, c).statistic for s, c in zip(scores, changes, strict=True)]
    np.testing.assert_allclose(agreement.per_row, expected, atol=1e-6)
    assert set(agreement.classes) == {e.prediction.label for e in each}
    for name, value in agreement.classes.items():
        members = [e.prediction.label == name for e in each]
        assert value == pytest.approx(spearmanr(scores[members].mean(0), changes[members].mean(0)).statistic, abs=1e-6)
    assert overall.agreement is not None and overall.agreement.spearman == pytest.approx(agreement.spearman, abs=1e-6)
    assert overall.agreement.classes == pytest.approx(agreement.classes, abs=1e-6)
    assert str(lost.agreement(each).high) == str(agreement.high), "the same seed draws the same rows"
    passed = dict(zip(lost.labels, lost.drops.mean(1), strict=True))
    theirs = wf.explain_global(model, some, described, method="attn_lrp", reference=passed).agreement
    assert theirs is not None and theirs.spearman == pytest.approx(agreement.spearman, abs=1e-6)
    assert not theirs.metric and "Agreement with scores passed" in theirs.to_html() and theirs.low < theirs.spearman
    as_method = wf.explain(model, some[0], described, method=lost)
    np.testing.assert_allclose(as_method.scores[where], np.clip(lost.mean, 0, None), rtol=1e-6)
    compared = wf.compare(model, some[:3], processor=described, method=[lost, "random"], metric=["aopc"])
    assert np.isfinite(compared.values["aopc"][lost.name]).all()


def test_agreement_with_the_models_own_predictions_where_rows_have_no_answer() -> None:
    model, described = load_adult()
    some = [{k: v for k, v in r.items() if k != "income"} for r in adult_rows()[:12]]
    agreement = wf.explain_global(model, some, described, method="attn_lrp", reference="permutation").agreement
    assert agreement is not None and agreement.metric == "accuracy"
    assert wf.feature_permutation(model, some, [e.prediction.label for e in wf.explain(model, some, described,
        method="random")], processor=described).agreement(wf.explain(model, some, described, method="attn_lrp")
        ).spearman == pytest.approx(agreement.spearman, abs=1e-6)  # fmt: skip
    with pytest.raises(BadInput, match="rows in memory"):
        wf.explain_global(*load_sentiment()[:1], ["good", "bad"], load_sentiment()[1], reference="permutation")


def test_what_cannot_agree_is_refused() -> None:
    lost = wf.feature_permutation(lambda t: t @ [3.0, -1.0, 0.0], np.eye(3), np.arange(3.0))
    model, described = load_adult()
    with pytest.raises(BadInput, match="0 columns in common"):
        lost.agreement(wf.explain(model, adult_rows()[0], described, method="attn_lrp"))
    with pytest.raises(BadInput, match="not a str"):
        lost.agreement("attn_lrp")
    with pytest.raises(BadInput, match="has no importance of"):
        wf.explain(model, adult_rows()[0], described, method=lost)
