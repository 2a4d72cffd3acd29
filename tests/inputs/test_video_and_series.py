"""Videos and time series: blocks of one tensor, found by running the model, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import BATCH, randint, randn
from tests.models.kinds import KINDS
from tests.models.others import OTHERS
from whyformer.errors import BadInput, MissingProcessor, NotOverUnits
from whyformer.inputs.video_and_series import Blocks, blocks_of


def built(name: str) -> tuple[Any, dict[str, Tensor]]:
    case = (OTHERS | {k: kind.case for k, kind in KINDS.items()})[name]
    return case.build(case.implementations[0]), dict(case.inputs())


@torch.no_grad()
def drop(model: nn.Module, inputs: dict[str, Tensor], name: str, place: tuple[Any, ...], target: int) -> list[float]:
    """What each input's logit loses if one part of it becomes the mean over time (and over the picture)."""
    x = inputs[name]
    mean = x.mean((1, 3, 4) if x.ndim == 5 else 1, keepdim=True).expand_as(x)
    changed = x.clone()
    changed[place] = mean[place]
    logits = [getattr(out, "logits", None) for out in (model(**inputs), model(**{**inputs, name: changed}))]
    return (logits[0] - logits[1])[:, target].tolist()


@pytest.mark.parametrize("name", ["videomae", "vivit", "timesformer"])
def test_tubelets_are_masked_where_their_label_says(name: str) -> None:
    model, inputs = built(name)
    depth = 1 if name == "timesformer" else 2  # frames in a block
    found = wf.explain(model, inputs, method="occlusion", target=1)
    labels = [
        label for label, special in zip(found[0].units.labels, found[0].units.special, strict=True) if not special
    ]
    assert labels[0] == "frame 1, patch 1,1" and labels[-1] == f"frame {5 - depth}, patch 2,2"
    assert found[0].units.grid == (4 // depth * 2, 2) and found[0].units.image_size == (4 // depth * 16, 16)
    wanted = "frame 3, patch 1,2"
    place = slice(None), slice(2, 2 + depth), slice(None), slice(0, 8), slice(8, 16)
    expected = drop(model, inputs, "pixel_values", place, 1)
    for one, value in zip(found, expected, strict=True):
        assert one.scores[one.units.labels.index(wanted)] == pytest.approx(value, abs=1e-5)
    if name == "timesformer":
        with pytest.raises(NotOverUnits, match=r"one part of the input at a time.*frames of one patch"):
            wf.explain(model, inputs, method="generic_attention")
    else:
        (attended, _) = wf.explain(model, inputs, method="generic_attention", target=1)
        assert not any("not scored" in warning for warning in attended.warnings), "its positions are the whole video"
        assert attended.units == found[0].units


def test_gradients_of_a_video_are_those_at_its_pixels() -> None:
    model, inputs = built("vivit")
    leaf = inputs["pixel_values"].clone().requires_grad_()
    with torch.enable_grad():
        (gradient,) = torch.autograd.grad(model(pixel_values=leaf).logits[:, 1].sum(), leaf)
    product = (leaf * gradient).detach()
    for row, one in enumerate(wf.explain(model, inputs, method="input_x_gradient", target=1)):
        by_block = product[row].view(2, 2, 3, 2, 8, 2, 8).sum((1, 2, 4, 6)).flatten()
        np.testing.assert_allclose(one.scores[1:], by_block, atol=1e-5)
        assert one.units.special[0] and one.scores[0] == 0


def test_a_video_of_frames_needs_its_processor() -> None:
    model, _ = built("videomae")

    class Processor:
        image_mean, image_std, do_normalize = [0.5] * 3, [0.5] * 3, True

        def __call__(self, images: Any, return_tensors: str) -> dict[str, Tensor]:
            frames = torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2).float() / 255
            return {"pixel_values": (frames[None] - 0.5) / 0.5}

    clip = (randn(4, 16, 16, 3).sigmoid() * 255).byte().numpy()
    one = wf.explain(model, [clip], processor=Processor(), method="occlusion", target=1)[0]
    assert len(one.scores) == 8 and one.picture is not None
    with pytest.raises(MissingProcessor, match="AutoImageProcessor"):
        wf.explain(model, [clip], method="occlusion")


def test_variables_and_times_of_a_series() -> None:
    """PatchTST reads each variable by itself: units are variables × time, and attention is refused with that reason."""
    model, inputs = built("patchtst")
    found = wf.explain(model, inputs, method="occlusion", target=1)[0]
    assert found.units.labels[:5] == (*(f"variable 0, t {i}–{i + 7}" for i in (0, 8, 16, 24)), "variable 1, t 0–7")
    assert found.units.grid == (2, 4) and set(found.units.stream) == {"series"}
    x = inputs["past_values"]
    changed = x.clone()
    changed[:, 8:16, 1] = x[:, :, 1].mean(1, keepdim=True)
    with torch.no_grad():
        logits = [model(past_values=values).prediction_logits[0, 1] for values in (x, changed)]
    at = found.units.labels.index("variable 1, t 8–15")
    assert found.scores[at] == pytest.approx(float(logits[0] - logits[1]), abs=1e-5)
    with pytest.raises(NotOverUnits, match="one variable"):
        wf.explain(model, inputs, method="attention_rollout")
    raw = wf.explain(model, x[0].numpy(), method="occlusion", target=1)
    np.testing.assert_allclose(raw.scores, found.scores, atol=1e-6)


def test_a_forecast_is_explained_over_patches_of_time() -> None:
    model, inputs = built("timesfm")
    with torch.no_grad():
        forecast = float(model(**inputs).mean_predictions[0, 3])
    for method in ("generic_attention", "occlusion", "input_x_gradient"):
        one = wf.explain(model, inputs, method=method, target=3)[0]
        assert one.units.labels == ("t 0–7", "t 8–15", "t 16–23", "t 24–31")
        assert one.value == pytest.approx(forecast, abs=1e-4)


def test_a_series_of_tokens_is_a_text() -> None:
    """Chronos: a T5 that reads and writes bins of values; each step of the past is a token."""
    import transformers as hf

    torch.manual_seed(0)
    sizes = {"d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 1, "num_heads": 4}
    model = hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=40, decoder_start_token_id=0, **sizes)).eval()
    bins = {"input_ids": randint(2, 40, BATCH, 12, seed=1), "attention_mask": torch.ones(BATCH, 12).long()}
    asked = bins | {"decoder_input_ids": torch.zeros(BATCH, 1).long()}
    one = wf.explain(model, asked, method="occlusion", target=7, replace=2)[0]
    past = [score for score, stream in zip(one.scores, one.units.stream, strict=True) if stream == "source"]
    changed = asked | {"input_ids": asked["input_ids"].clone()}
    changed["input_ids"][:, 4] = 2
    with torch.no_grad():
        expected = (model(**asked).logits - model(**changed).logits)[0, 0, 7]
    assert len(past) == 12 and past[4] == pytest.approx(float(expected), abs=1e-5)


# The blocks themselves


def test_blocks_are_found_and_uneven_ones_are_not() -> None:
    """Of a convolution over (time, height): its strides, a token in front; overlapping patches are no blocks."""
    x = randn(8, 1, 6)

    def values(stride: int, size: int, front: bool) -> Any:
        weight = randn(1, 1, 2, size, seed=3)

        def at(other: Tensor) -> Tensor:
            out = nn.functional.conv2d(other.transpose(0, 1)[None], weight, stride=(2, stride)).flatten(1)[0][:, None]
            return torch.cat([torch.ones(1, 1), out]) if front else out

        return at

    assert blocks_of(x, (0, 2), values(3, 3, True)) == Blocks((4, 1, 2), (0, 2), 9, frozenset((0,)))
    assert blocks_of(x, (0, 2), values(3, 3, False)) == Blocks((4, 1, 2), (0, 2), 8)
    assert blocks_of(x, (0, 2), values(1, 3, False)) is None
    index = Blocks((4, 1, 2), (0, 2)).index((8, 1, 6))
    assert index[3, 0].tolist() == [2, 2, 2, 3, 3, 3]


def test_series_of_different_length_are_refused_together() -> None:
    model, _ = built("patchtst")
    with pytest.raises(BadInput, match="one by one"):
        wf.explain(model, [np.zeros((32, 2)), np.zeros((16, 2))], method="occlusion")
    with pytest.raises(BadInput, match=r"\(steps, variables\)"):
        wf.explain(model, np.zeros((32, 2, 2)), method="occlusion")
