"""Whatever explain takes, every verb takes: kinds of inputs times verbs."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn

import whyformer as wf
from tests.inputs.test_stream_families import Sentences
from tests.models import CASES
from tests.support.demo_models import loaded
from whyformer.inputs.modalities import unpacked

TEXTS = ["I like the movie", "so boring and bad", "a great cast", "not my film"]
METHODS = ["occlusion", "random"]


class Own(nn.Module):
    """A transformer of one's own on bare tensors: ids, vectors, columns or pixels, and a head."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.kind, self.ids, self.vectors = kind, nn.Embedding(20, 8), nn.Linear(5, 8)
        self.columns, self.pixels = nn.Parameter(torch.randn(4, 8)), nn.Conv2d(3, 8, 8, 8)
        self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 8, 0.0, batch_first=True), 1)
        self.head = nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states = {
            "ids": lambda: self.ids(x),
            "vectors": lambda: self.vectors(x),
            "columns": lambda: x[..., None] * self.columns,
            "pixels": lambda: self.pixels(x).flatten(2).transpose(1, 2),
        }[self.kind]()
        return self.head(self.encoder(states).mean(1))


class CrossEncoder(nn.Module):
    """What one of sentence_transformers looks like: the classifier and its tokenizer inside."""

    def __init__(self) -> None:
        super().__init__()
        self.model, self.tokenizer = loaded("sentiment")

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.model(*inputs, **named)


def probabilities(texts: Any) -> Any:
    goodness = np.array([sum(map(str(text).count, ("like", "great"))) for text in texts])
    return np.stack([1 - goodness / 4, goodness / 4], 1)


def of_rows(rows: Any) -> Any:
    return 1 / (1 + np.exp(-np.stack([rows["a"], -rows["b"]], 1)))


def kinds() -> dict[str, tuple[Any, Any, Any]]:
    model, tokenizer = loaded("sentiment")
    random = torch.Generator().manual_seed(1)
    frame = pd.DataFrame(torch.randn(4, 2, generator=random).numpy(), columns=["a", "b"])
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    return {
        "texts": (model, TEXTS, tokenizer),
        "tokens": (model, dict(tokenizer(TEXTS, padding=True, return_tensors="pt")), None),
        "ids": (Own("ids").eval(), torch.randint(0, 20, (4, 5), generator=random), None),
        "vectors": (Own("vectors").eval(), torch.randn(4, 3, 5, generator=random), None),
        "columns": (Own("columns").eval(), torch.randn(4, 4, generator=random), None),
        "pixels": (Own("pixels").eval(), torch.randn(4, 3, 16, 16, generator=random), None),
        "sentences": (Sentences(CASES["bert"].build("sdpa").bert, "mean").eval(), pairs, None),
        "function of texts": (probabilities, TEXTS, None),
        "function of rows": (of_rows, frame, None),
        "function of images": (lambda a: a.mean((1, 2)) / 300, np.arange(768).reshape(4, 8, 8, 3) % 200, None),
    }


KINDS = [*kinds()]


@pytest.mark.parametrize("kind", KINDS)
def test_every_verb_takes_what_explain_takes(kind: str, tmp_path: Path) -> None:
    model, inputs, processor = kinds()[kind]
    settings: dict[str, Any] = {"processor": processor}
    explanations = wf.explain(model, inputs, **settings)
    assert len(explanations) == 4
    assert wf.estimate(model, inputs, method="occlusion", **settings).forwards > 1
    compared = wf.compare(model, inputs, method=METHODS, metric=["comprehensiveness"], **settings)
    assert not compared.failures and {"occlusion", "random"} <= {row.name for row in compared.rows}
    assert wf.recommend(model, inputs, method=METHODS, report=False, **settings).leaders
    checked = wf.check(model, inputs, checks=["invariance", "sinks"], method="occlusion", **settings)
    assert not [finding.text for finding in checked.findings if "was not run" in finding.title]
    written = wf.report(model, inputs, method=METHODS, checks=["sinks"], **settings).save(tmp_path / "report.html")
    assert Path(written or tmp_path / "report.html").stat().st_size > 10_000


def test_a_cross_encoder_is_explained_as_its_classifier() -> None:
    model = CrossEncoder().eval()
    inner, tokenizer = unpacked(model, None)
    assert inner is model.model and tokenizer is model.tokenizer
    pair = (TEXTS[0], TEXTS[1])
    one = wf.explain(model, pair, method="occlusion")
    assert np.array_equal(one.scores, wf.explain(model.model, pair, model.tokenizer, method="occlusion").scores)
    with torch.no_grad():
        logits = model(**model.tokenizer(*pair, return_tensors="pt")).logits[0]
    assert one.value == pytest.approx(float(logits.max()), abs=1e-5)


def test_more_tensors_than_the_model_takes() -> None:
    with pytest.raises(wf.errors.BadInput, match="2 tensors were given, and the model takes only input"):
        wf.explain(nn.Identity(), (torch.zeros(1, 2), torch.zeros(1, 2)))


def test_a_negative_number_of_layers_is_refused() -> None:
    from types import SimpleNamespace

    model = Own("columns")
    model.config = SimpleNamespace(num_hidden_layers=-1)  # type: ignore[assignment]
    with pytest.raises(wf.errors.BadInput, match="num_hidden_layers=-1"):
        wf.explain(model, torch.zeros(1, 4))


def test_one_text_for_an_encoder_is_refused_with_what_to_pass() -> None:
    model, _, _ = kinds()["sentences"]
    for inputs in ("two birds", ["two birds"]):
        with pytest.raises(wf.errors.BadInput, match="pass a pair of texts"):
            wf.explain(model, inputs)


def test_a_list_of_one_answers_like_its_one() -> None:
    model, tensors, _ = kinds()["tokens"]
    one = wf.explain(model, {name: tensor[:1] for name, tensor in tensors.items()}, method="random")
    assert len(one) == 1 and one.ranked() == one[0].ranked() and one.value == one[0].value
    several = wf.explain(model, tensors, method="random")
    with pytest.raises(AttributeError, match=r"these are 4 explanations.*\[0\]\.ranked"):
        several.ranked()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        one.nothing  # type: ignore[attr-defined]  # noqa: B018
