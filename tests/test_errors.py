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
from tests.inputs.test_raw_inputs import picture
from tests.models import CASES, LEAKY, WITHOUT_ATTENTION
from tests.support import folders
from whyformer import errors


@pytest.fixture
def text(tmp_path: Path) -> wf.Explainer:
    return wf.Explainer(folders.bert(), folders.tokenizer(tmp_path))


def refused(kind: type[Exception], *words: str) -> Any:
    return pytest.raises(kind, match="(?s)" + ".*".join(words))


def test_unknown_method_with_close_matches(text: wf.Explainer) -> None:
    with refused(errors.UnknownName, "generic_atention", "Did you mean 'generic_attention'"):
        text.explain("i like it", method="generic_atention")


def test_unknown_option_with_close_matches(text: wf.Explainer) -> None:
    with refused(errors.UnknownName, "start_layers", "Did you mean 'start_layer'"):
        text.explain("i like it", method="generic_attention", start_layers=1)


def test_option_that_none_of_several_methods_has(text: wf.Explainer) -> None:
    with refused(errors.UnknownName, "stepps"):
        text.explain("i like it", method=["grad_sam", "raw_attention"], stepps=1)


@pytest.mark.parametrize(
    ("method", "option", "word"),
    [
        ("raw_attention", {"layers": 7}, "layers"),
        ("raw_attention", {"layers": "first"}, "first"),
        ("raw_attention", {"heads": "average"}, "average"),
        ("raw_attention", {"heads": [0, 9]}, "heads"),
        ("raw_attention", {"read": "rows"}, "'row'"),
        ("attention_rollout", {"residual": 2}, "residual"),
        ("attention_rollout", {"discard": 1.0}, "discard"),
        ("attention_rollout", {"start_layer": 5}, "start_layer"),
        ("grad_sam", {"reduce": "keys"}, "'key'"),
        ("integrated_gradients", {"steps": 0}, "steps"),
        ("integrated_gradients", {"baseline": "blank"}, "blank"),
        ("occlusion", {"replace": "masks"}, "mask"),
    ],
)
def test_option_values_outside_their_domain(text: wf.Explainer, method: str, option: dict[str, Any], word: str) -> None:
    with refused(errors.BadInput, word):
        text.explain("i like it", method=method, **option)


@pytest.mark.parametrize(
    ("target", "words"),
    [
        ("postive", ("postive", "Did you mean 'positive'")),
        (7, ("7", "0 to 1")),
        (2.5j, ("2.5j", "class index or label")),
        ([0, 1, 1], ("3 targets for 1",)),
        ((0, 1, 1), ("rather",)),
    ],
)
def test_unknown_targets(text: wf.Explainer, target: Any, words: tuple[str, ...]) -> None:
    with refused(errors.BadInput, *words):
        text.explain(["i like it"], target=target)


@pytest.mark.parametrize("scalar", ["logits", "prob"])
def test_unknown_scalar(text: wf.Explainer, scalar: str) -> None:
    with refused(errors.UnknownName, scalar):
        text.explain("i like it", scalar=scalar)


@pytest.mark.parametrize("empty", ["", "   ", ["i like it", ""]])
def test_empty_text(text: wf.Explainer, empty: Any) -> None:
    with refused(errors.BadInput, "empty"):
        text.explain(empty)


def test_an_empty_list(text: wf.Explainer) -> None:
    with refused(errors.BadInput, "nothing to explain"):
        text.explain([])


@pytest.mark.parametrize("value", [0, -1, 2.5])
def test_batch_size(text: wf.Explainer, value: Any) -> None:
    with refused(errors.BadInput, "batch_size"):
        text.explain("i like it", batch_size=value)


def test_no_method_at_all(text: wf.Explainer) -> None:
    with pytest.raises(errors.BadInput, match="names no method"):
        text.explain("i like it", method=[])


def test_a_mask_that_says_true_for_what_is_hidden() -> None:
    """Read the other way round, it would have padding explained. What the message advises works."""

    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layer = nn.TransformerEncoderLayer(16, 4, 32, batch_first=True)
            self.embed, self.head = nn.Embedding(50, 16), nn.Linear(16, 3)
            self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

        def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
            return self.head(self.layers(self.embed(x), src_key_padding_mask=mask)[:, 0])

    class Wrapped(nn.Module):
        def __init__(self, model: nn.Module) -> None:
            super().__init__()
            self.model = model

        def forward(self, x: torch.Tensor, padding_mask: torch.Tensor) -> torch.Tensor:
            return self.model(x, padding_mask)

    ids = torch.tensor([[5, 6, 7, 8], [9, 10, 0, 0]])
    hidden = torch.tensor([[0, 0, 0, 0], [0, 0, 1, 1]]).bool()
    model = Masked().eval()
    for method in ("integrated_gradients", "generic_attention"):
        with pytest.raises(errors.BadInput, match="padding"):
            wf.explain(model, (ids, hidden), method=method)
        assert [e.units.labels for e in wf.explain(Wrapped(model), (ids, hidden), method=method)] == [
            ("5", "6", "7", "8"),
            ("9", "10"),
        ]


def test_text_without_tokenizer() -> None:
    with refused(errors.MissingProcessor, "AutoTokenizer"):
        wf.explain(folders.bert(), "i like it")


def test_something_that_is_no_text(text: wf.Explainer) -> None:
    with refused(errors.BadInput, "string"):
        text.explain([3])


def test_a_tokenizer_of_another_model(tmp_path: Path) -> None:
    tokenizer = folders.tokenizer(tmp_path)
    tokenizer.add_tokens(["strange"])
    with refused(errors.BadInput, "not the model's own tokenizer"):
        wf.explain(folders.bert(), "strange movie", processor=tokenizer)


def test_an_image_processor_for_a_text_model() -> None:
    with refused(errors.BadInput, "no tokenizer"):
        wf.explain(folders.bert(), "i like it", processor=folders.image_processor())


def test_a_tokenizer_for_an_image_model(tmp_path: Path) -> None:
    with refused(errors.BadInput, "no image processor"):
        wf.explain(folders.vit(), picture(), processor=folders.tokenizer(tmp_path))


def test_wrong_tensor_names() -> None:
    with refused(errors.UnknownName, "input_id", "Did you mean 'input_ids'"):
        wf.explain(folders.bert(), {"input_id": torch.ones(1, 3, dtype=torch.long)})


def test_tensors_of_different_batch_sizes() -> None:
    tensors = {"input_ids": torch.ones(2, 3, dtype=torch.long), "attention_mask": torch.ones(1, 3)}
    with refused(errors.BadInput, "batch size"):
        wf.explain(folders.bert(), tensors)


def test_tensors_longer_than_the_model_takes() -> None:
    with refused(errors.TooLong, "20 tokens", "takes 16"):
        wf.explain(folders.bert(), {"input_ids": torch.ones(1, 20, dtype=torch.long)})


def test_ids_outside_the_vocabulary() -> None:
    with refused(errors.BadInput, "999"):
        wf.explain(folders.bert(), {"input_ids": torch.full((1, 4), 999)})


def test_unreadable_and_missing_images(tmp_path: Path) -> None:
    explainer = wf.Explainer(folders.vit(), folders.image_processor())
    (tmp_path / "a.png").write_text("no picture")
    with refused(errors.BadInput, "a.png", "cannot be read"):
        explainer.explain(tmp_path / "a.png")
    with refused(errors.BadInput, "does not exist"):
        explainer.explain(str(tmp_path / "b.png"))
    with refused(errors.BadInput, "one number per pixel", "fromarray"):
        explainer.explain(Image.fromarray(np.zeros((4, 4), np.float32)))
    with refused(errors.BadInput, "PIL image"):
        explainer.explain(3)


def test_something_else_instead_of_a_model() -> None:
    with refused(errors.BadInput, "torch.nn.Module"):
        wf.explain(object(), "i like it")


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
        with refused(errors.PartlyCaptured, "gradient or perturbation method"):
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
    assert len(wf.explain(model, inputs, method="attention_rollout")) == 1


class Quantised(nn.Module):
    """Integer weights, as quantisation libraries leave them."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(4, 4, dtype=torch.int8), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x @ self.weight.to(x.dtype)


def test_gradients_of_a_quantised_model() -> None:
    case = CASES["einsum"]
    model = nn.Sequential(case.build(None), nn.Module())
    model[1] = Quantised()
    model[0].head = nn.Linear(32, 4)
    with refused(errors.NotOffered, "quantised", "float16"):
        wf.explain(model, case.inputs(), method="generic_attention")


@pytest.mark.filterwarnings("ignore:`torch.jit.trace` is deprecated:DeprecationWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace_method` is deprecated:DeprecationWarning")
def test_a_scripted_model() -> None:
    scripted = torch.jit.trace(nn.Linear(3, 2), torch.ones(1, 3))
    with refused(errors.NotOffered, "TorchScript"):
        wf.explain(scripted, (torch.ones(1, 3),))


def test_a_model_in_train_mode_is_handled(text: wf.Explainer) -> None:
    expected = text.explain("i like it").scores
    text.model.train()
    assert np.array_equal(text.explain("i like it").scores, expected)
    assert text.model.training


def test_saved_files(tmp_path: Path, text: wf.Explainer) -> None:
    with refused(errors.BadInput, "no file"):
        wf.load(tmp_path / "nothing.json")
    (tmp_path / "x.json").write_text("{}")
    with refused(errors.BadInput, "no saved explanation"):
        wf.load(tmp_path / "x.json")
    with refused(errors.UnknownName, "file type"):
        text.explain("i like it").save(tmp_path / "x.docx")
