"""Permutation importance against its definition, scikit-learn's own, and answers that are known beforehand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import whyformer as wf
from tests.references.tables import permutation_drop
from tests.tables.models import CLASSES, LAYOUTS, rows, saint, table
from whyformer.errors import BadInput, UnknownName

SOME = rows(40)
FRAME = pd.DataFrame(SOME)
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
    scores = dict(found.ranked())
    assert scores["hours"] == scores["gain"] == scores["sex"] == 0.0
    assert (found.drops[[1, 2, 4]] == 0.0).all() and (found.low[[1, 2, 4]] == 0).all()
    assert scores["age"] != 0 and scores["work"] != 0
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
    assert (found.low <= found.mean).all() and (found.mean <= found.high).all()


def test_a_boosted_tree_and_a_transformer_stand_side_by_side() -> None:
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.inspection import permutation_importance

    frame = FRAME.astype({"work": "category", "sex": "category"})
    y = (frame["age"] + (frame["work"] == "private") > 0.3).astype(int).to_numpy()
    tree = HistGradientBoostingClassifier(
        categorical_features="from_dtype", min_samples_leaf=2, max_iter=5, random_state=0
    ).fit(frame, y)
    found = wf.feature_permutation(tree, frame, y, repeats=20)
    theirs = permutation_importance(tree, frame, y, n_repeats=20, random_state=0, n_jobs=1)
    assert found.metric == "accuracy" and found.score == tree.score(frame, y)
    assert found.ranked()[0][0] == "age"
    np.testing.assert_allclose(found.mean, theirs.importances_mean, atol=0.08)  # other shuffles
    model = wf.feature_permutation(Blind(), FRAME, y, processor=wf.Table(
        numerical=["age", "hours", "gain"], categorical={"work": ["private", "state", "self"], "sex": ["f", "m"]}),
        metric=lambda truth, logits: float((logits.argmax(1) == truth).mean()))  # fmt: skip
    assert set(model.labels) == set(found.labels)


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
    own = wf.feature_permutation(fitted, X, y, metric=lambda t, p: -float(np.abs(t - p).max()))
    assert own.ranked()[0][0] == "0"
    scored = wf.feature_permutation(fitted, X, y, metric="neg_root_mean_squared_error")
    assert scored.mean[0] > scored.mean[1] > scored.mean[2] - 1e-12
    named = wf.feature_permutation(lambda t: 2 * np.asarray(t["a"]), {"a": X[:, 0], "b": X[:, 1]}, 2 * X[:, 0])
    assert named.labels == ("a", "b") and named.mean[1] == 0.0
    probable = wf.feature_permutation(
        lambda t: np.stack([1 - (t[:, 0] > 0), t[:, 0] > 0], 1).astype(float), X, (X[:, 0] > 0).astype(int),
        metric="roc_auc")  # fmt: skip
    assert probable.score == 1.0 and probable.mean[0] > 0.2 and probable.mean[1] == 0.0


def test_one_logit_models() -> None:
    def one(t: Any) -> Any:
        return 4 * t[:, :1]

    X = np.random.default_rng(1).normal(size=(60, 2))
    found = wf.feature_permutation(one, X, X[:, 0] > 0, metric="roc_auc")
    assert found.score == 1.0 and found.mean[1] == 0.0
    assert wf.feature_permutation(one, X, X[:, 0] > 0).score == 1.0


def test_groups_are_shuffled_together() -> None:
    X = np.random.default_rng(0).normal(size=(200, 1)).repeat(2, 1)  # twins: each makes up for the other
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(c=1.0)
    y = X[:, 0]

    def both(t: pd.DataFrame) -> Any:
        return np.where(np.abs(t["a"] - t["b"]) < 1e-9, t["a"], 0.5 * (t["a"] + t["b"]))

    alone = wf.feature_permutation(both, frame, y)
    together = wf.feature_permutation(both, frame, y, groups={"twins": ["a", "b"]})
    assert together.labels == ("twins", "c") and together.groups == {"twins": ("a", "b")}
    assert together.mean[0] > alone.mean[0] + 0.3 and together.mean[1] == 0.0


def test_it_is_reproducible_and_one_repeat_shows_no_spread() -> None:
    first = wf.feature_permutation(Blind(), FRAME, TRUTH, processor=table(), repeats=2, seed=3)
    again = wf.feature_permutation(Blind(), FRAME, TRUTH, processor=table(), repeats=2, seed=3, batch_size=7)
    np.testing.assert_array_equal(first.drops, again.drops)
    assert list(first.to_frame().columns) == ["column", "mean", "low", "high"]
    single = wf.feature_permutation(Blind(), FRAME, TRUTH, processor=table(), repeats=1)
    assert np.isnan(single.low).all()


def test_saint_predicts_in_batches_and_says_so() -> None:
    found = wf.feature_permutation(saint(), FRAME, TRUTH, processor=table(reference=SOME[:8]), repeats=1, batch_size=16)
    assert any("batches of 16 rows" in w for w in found.warnings)


def test_errors_come_first() -> None:
    for wrong, said in (
        ({"repeats": 0}, "repeats=0"),
        ({"batch_size": 0}, "batch_size=0"),
        ({"groups": {"g": ["agee"]}}, "group 'g': 'agee'. Did you mean 'age'"),
        ({"groups": {"g": ["age"], "h": ["age"]}}, "in two groups"),
        ({"groups": {"g": []}}, "holds no column"),
        ({"metric": "acuracy"}, "unknown metric 'acuracy'. Did you mean 'accuracy'"),
        ({"processor": None}, "processor=Table"),
    ):
        with pytest.raises(BadInput, match=said):
            wf.feature_permutation(Blind(), FRAME, TRUTH, **{"processor": table(), **wrong})  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="39"):
        wf.feature_permutation(Blind(), FRAME, TRUTH[:39], processor=table())
    with pytest.raises(UnknownName, match="class in y: 'perhaps'"):
        wf.feature_permutation(Blind(), FRAME, np.where(TRUTH == "no", "perhaps", TRUTH), processor=table())
    with pytest.raises(BadInput, match="predicts nothing"):
        wf.feature_permutation(3, FRAME, TRUTH)
    with pytest.raises(BadInput, match="'age' has no value"):
        wf.feature_permutation(Blind(), FRAME.assign(age=np.nan), TRUTH, processor=table())
