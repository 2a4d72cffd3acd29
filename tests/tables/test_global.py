"""Many rows or texts averaged: equal to averaging by hand, whatever the batches; nothing grows with their number."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import whyformer as wf
from tests.models import CASES
from tests.tables.models import CATEGORIES, LAYOUTS, NUMBERS, rows, saint, shared, table
from whyformer.demo import load_sentiment
from whyformer.errors import BadInput
from whyformer.tables import CorpusExplanation
from whyformer.tables.table_results import Remarks

SOME = rows(23)


@pytest.mark.parametrize("method", ["raw_attention", "occlusion"])
def test_it_is_the_mean_over_rows(method: str) -> None:
    model = LAYOUTS["rtdl"].build()
    each = np.stack([e.scores for e in wf.explain(model, SOME, processor=table(), method=method, target=1)]).astype(
        float
    )
    found = wf.explain_global(model, pd.DataFrame(SOME), processor=table(), method=method, target=1, batch_size=5)
    assert found.rows == 23 and found.target == "yes" and found.labels == ("[CLS]", *NUMBERS, *CATEGORIES)
    np.testing.assert_allclose(found.mean, each.mean(0), atol=1e-5)
    np.testing.assert_allclose(found.mean_size, np.abs(each).mean(0), atol=1e-5)
    error = 1.96 * each.std(0, ddof=1) / np.sqrt(23)
    np.testing.assert_allclose(found.high - found.mean, error, atol=1e-5)
    np.testing.assert_allclose(found.mean - found.low, error, atol=1e-5)
    assert found.samples is not None and found.samples.shape == (23, 6)
    assert found.ranked()[0][0] != "[CLS]" and len(found.ranked()) == 5
    if method == "raw_attention":
        whole = np.stack([e.matrix for e in wf.explain(model, SOME, processor=table(), method=method)]).mean(0)
        np.testing.assert_allclose(found.matrix, whole, atol=1e-5)


def test_columns_that_attention_does_not_see_have_no_score() -> None:
    found = wf.explain_global(shared("lucidrains_tab"), SOME[:5], processor=table())
    frame = found.to_frame().set_index("column")
    assert found.unseen == NUMBERS
    assert frame.loc[list(NUMBERS), "mean"].isna().all() and not frame.loc[list(NUMBERS), "explained"].any()
    assert frame.loc[list(CATEGORIES), "mean"].notna().all()
    assert "age" not in dict(found.ranked(specials=True))
    assert "not explained by attention" in found.to_html()


def test_few_samples_are_kept_and_signed_scores_of_several_classes_warn() -> None:
    found = wf.explain_global(shared("rtdl"), SOME, processor=table(), method="input_x_gradient", samples=4)
    assert found.samples is not None and len(found.samples) == 4 and len(found.sample_values) == 4
    assert found.target == "the prediction of each row" and any("pass target=" in w for w in found.warnings)
    assert found.importance is found.mean_size


def test_saint_and_plain_tensors() -> None:
    found = wf.explain_global(saint(), SOME[:3], processor=table(reference=rows(8, seed=2)), target=1)
    assert found.rows == 3 and any("looking" in w or "look at each other" in w for w in found.warnings)
    case = CASES["rtdl_ft_transformer"]
    plain = wf.explain_global(case.build(None), case.inputs(), target=0)
    assert plain.rows == 2 and plain.labels[1] == "x_cont[0]"


def test_warnings_of_one_kind_are_told_once_and_none_is_dropped() -> None:
    model = LAYOUTS["rtdl"].build()
    how = {"processor": table(), "method": "integrated_gradients", "steps": 1, "target": 1}
    each = [w for e in wf.explain(model, SOME, **how) for w in e.warnings if "miss" in w]
    shares = sorted(float(w.split("miss ")[1].split("%")[0]) for w in each)
    assert 2 <= len(each) and len(set(shares)) > 1
    (told,) = [w for w in wf.explain_global(model, SOME, batch_size=5, **how).warnings if "miss" in w]
    count = "all 23" if len(each) == 23 else f"{len(each)} of 23"
    assert f"miss {shares[0]:.0f}% to {shares[-1]:.0f}% of" in told and told.endswith(f"({count} rows)")
    assert "Table(…, reference=rows)" in told


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
        (SOME, {"processor": table(), "target": [0, 1]}, "2 targets for 23 rows"),
        (SOME, {"processor": table(), "samples": -1}, "samples=-1"),
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
        assert corpus.counts[i] == len(scores)
        assert corpus.mean[i] == pytest.approx(scores.mean(), abs=1e-5)
        assert corpus.mean_size[i] == pytest.approx(np.abs(scores).mean(), abs=1e-5)
        error = 1.96 * scores.std(ddof=1) / np.sqrt(len(scores))
        assert corpus.high[i] - corpus.mean[i] == pytest.approx(error, abs=1e-5)
        assert word in corpus.examples[i].casefold()
    assert corpus.ranked()[0][0] == max(corpus.words, key=lambda w: np.mean(each[w]))


def test_columns_of_texts_rare_words_and_pictures() -> None:
    model, tokenizer = load_sentiment()
    corpus = wf.explain_global(model, pd.Series(TEXTS), processor=tokenizer, target="positive", least=1)
    assert corpus.left_out == 0 and np.isnan(corpus.low).any()
    assert list(corpus.to_frame().columns) == ["word", "counts", "mean", "low", "high", "mean_size", "example"]
    with pytest.raises(BadInput, match="smaller least"):
        wf.explain_global(model, TEXTS, processor=tokenizer, least=50)


def test_predictions_of_several_classes_are_said() -> None:
    model, tokenizer = load_sentiment()
    corpus = wf.explain_global(model, TEXTS, processor=tokenizer, method="occlusion")
    assert corpus.target == "the prediction of each text" and any("pass target=" in w for w in corpus.warnings)
