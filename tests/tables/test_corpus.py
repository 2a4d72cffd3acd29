"""Words over many texts: the mean over their occurrences, whatever the batches."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

import whyformer as wf
from whyformer.demo import load_sentiment
from whyformer.errors import BadInput
from whyformer.tables import CorpusExplanation

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
    page = corpus.to_html()
    assert "Words over many texts" in page and "great" in page
    with pytest.raises(BadInput, match="smaller least"):
        wf.explain_global(model, TEXTS, processor=tokenizer, least=50)


def test_predictions_of_several_classes_are_said() -> None:
    model, tokenizer = load_sentiment()
    corpus = wf.explain_global(model, TEXTS, processor=tokenizer, method="occlusion")
    assert corpus.target == "the prediction of each text" and any("pass target=" in w for w in corpus.warnings)
