"""Bad input gets a clear error before long work: it names what was wrong and what to do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

import whyformer as wf
from tests.models import LEAKY, WITHOUT_ATTENTION
from tests.study.test_study import Hiding
from tests.support import folders
from tests.support.processors import picture
from whyformer import errors


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> wf.Explainer:
    return wf.Explainer(folders.bert(), folders.tokenizer(tmp_path_factory.mktemp("tokenizer")))


def refused(kind: type[Exception], *words: str) -> Any:
    return pytest.raises(kind, match="(?s)" + ".*".join(words))


LIKE = "i like it"
BAD, UNKNOWN = errors.BadInput, errors.UnknownName
QUESTIONS: list[tuple[Any, dict[str, Any], type[Exception], tuple[str, ...]]] = [
    (LIKE, {"method": "generic_atention"}, UNKNOWN, ("generic_atention", "Did you mean 'generic_attention'")),
    (LIKE, {"method": ["grad_sam", "raw_attention"], "stepps": 1}, UNKNOWN, ("stepps",)),
    (LIKE, {"method": []}, BAD, ("is empty",)),
    (LIKE, {"method": "raw_attention", "layers": 7}, BAD, ("layers",)),
    (LIKE, {"method": "raw_attention", "heads": [0, 9]}, BAD, ("heads",)),
    (LIKE, {"method": "occlusion", "replace": "masks"}, BAD, ("mask",)),
    ([LIKE], {"target": "postive"}, BAD, ("postive", "Did you mean 'positive'")),
    ([LIKE], {"target": 2.5j}, BAD, ("2.5j", "class index or label")),
    ([LIKE], {"target": (0, 1, 1)}, BAD, ("rather",)),
    ("   ", {}, BAD, ("empty",)),
    ([LIKE, ""], {}, BAD, ("empty",)),
    ([], {}, BAD, ("the list of inputs is empty",)),
    ([3], {}, BAD, ("string",)),
]


@pytest.mark.parametrize(("inputs", "how", "kind", "words"), QUESTIONS, ids=str)
def test_what_cannot_be_asked_of_a_text(
    text: wf.Explainer, inputs: Any, how: dict[str, Any], kind: type[Exception], words: tuple[str, ...]
) -> None:
    with refused(kind, *words):
        text.explain(inputs, **how)


ONES = torch.ones(1, 3, dtype=torch.long)


@pytest.mark.parametrize(
    ("model", "inputs", "kind", "words"),
    [
        (folders.bert, LIKE, errors.MissingProcessor, ("AutoTokenizer",)),
        (folders.bert, {"input_id": ONES}, UNKNOWN, ("input_id", "Did you mean 'input_ids'")),
        (folders.bert, {"input_ids": ONES.repeat(2, 1), "attention_mask": ONES}, BAD, ("batch size",)),
        (folders.bert, {"input_ids": ONES.repeat(1, 7)}, errors.TooLong, ("21 tokens", "takes 16")),
        (folders.bert, {"input_ids": 999 * ONES}, BAD, ("999",)),
        (object, LIKE, BAD, ("torch.nn.Module",)),
    ],
)
def test_models_and_tensors_that_do_not_fit(
    model: Any, inputs: Any, kind: type[Exception], words: tuple[str, ...]
) -> None:
    with refused(kind, *words):
        wf.explain(model(), inputs)


def test_processors_of_another_model(tmp_path: Path) -> None:
    tokenizer, images = folders.tokenizer(tmp_path), folders.image_processor()
    tokenizer.add_tokens(["strange"])
    for model, inputs, processor, words in (
        (folders.bert(), "strange movie", tokenizer, "not the model's own tokenizer"),
        (folders.bert(), LIKE, images, "not a tokenizer"),
        (folders.vit(), picture(), tokenizer, "not an image processor"),
    ):
        with refused(BAD, words):
            wf.explain(model, inputs, processor=processor)


class Named(Hiding):
    def forward(self, x: torch.Tensor, padding_mask: torch.Tensor) -> torch.Tensor:
        return super().forward(x, padding_mask)


@pytest.mark.parametrize("method", ["integrated_gradients", "generic_attention"])
def test_a_mask_that_says_true_for_what_is_hidden(method: str) -> None:
    """What True means is measured: a ``mask`` that hides is explained as a ``padding_mask`` is, without its padding."""
    hidden = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1]]).bool()
    inputs = (torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]]), hidden)
    found = []
    for kind in (Hiding, Named):
        torch.manual_seed(0)
        found.append(wf.explain(kind(hides=True).eval(), inputs, method=method))
        assert [e.units.labels for e in found[-1]] == [("5", "6", "7", "8"), ("9", "10")]
    for one, other in zip(*found, strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-6)


def test_unreadable_and_missing_images(tmp_path: Path) -> None:
    explainer = wf.Explainer(folders.vit(), folders.image_processor())
    (tmp_path / "a.png").write_text("no picture")
    for given, *words in (
        (tmp_path / "a.png", "a.png", "cannot be read"),
        (str(tmp_path / "b.png"), "does not exist"),
        (Image.fromarray(np.zeros((4, 4), np.float32)), "one number per pixel", "fromarray"),
        (3, "PIL image"),
    ):
        with refused(BAD, *words):
            explainer.explain(given)


@pytest.mark.parametrize("name", ["mamba", "resnet"])
def test_models_without_attention(name: str) -> None:
    case = WITHOUT_ATTENTION[name]
    model = case.build(None)
    with refused(errors.NothingCaptured, "no attention", "occlusion"):
        wf.explain(model, case.inputs(), method="attention_rollout")
    assert len(wf.explain(model, case.inputs(), method="occlusion")) == 2


@pytest.mark.parametrize("name", ["longformer", "xcit", "talking_heads", "token_mixing"])
def test_models_whose_attention_tells_only_part_of_the_story(name: str) -> None:
    case = (WITHOUT_ATTENTION | LEAKY)[name]
    model = case.build(None)
    for method in ("raw_attention", "generic_attention"):
        with refused(
            errors.NotOverUnits if name == "xcit" else errors.PartlyCaptured, "gradient or perturbation method"
        ):
            wf.explain(model, case.inputs(), method=method)


def test_nan_logits() -> None:
    model = folders.bert()
    with torch.no_grad():
        model.classifier.bias[0] = float("nan")
    with refused(errors.NonFinite, "NaN", "float32"):
        wf.explain(model, {"input_ids": torch.ones(1, 4, dtype=torch.long)})


def test_gradients_of_weights_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model = folders.bert()
    inputs = {"input_ids": torch.full((1, 4), 6)}
    with refused(errors.NotOffered, "inference_mode", "attention_rollout"):
        wf.explain(model, inputs, method="generic_attention")
    for method in ("attention_rollout", "value_norms"):
        assert len(wf.explain(model, inputs, method=method)) == 1


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace_method` is deprecated:DeprecationWarning")
def test_a_scripted_model() -> None:
    scripted = torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3))
    with refused(errors.NotOffered, "TorchScript"):
        wf.explain(scripted, (torch.ones(1, 3),))
