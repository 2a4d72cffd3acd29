"""Sound as time by frequency: which axis is time is found, and what is silenced is what the label says."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import randn, seeded
from tests.support import processors
from whyformer.errors import BadInput, NotOffered

SMALL: dict[str, Any] = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
SMALL |= {"num_labels": 3}
BOTH: dict[str, Any] = {"d_model": 32, "vocab_size": 50, "max_target_positions": 20}
BOTH |= {"encoder_layers": 2, "decoder_layers": 2, "encoder_ffn_dim": 64, "decoder_ffn_dim": 64}
BOTH |= {"encoder_attention_heads": 4, "decoder_attention_heads": 4, "decoder_start_token_id": 1}
BOTH |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
Sound = tuple[nn.Module, dict[str, Tensor]]


def ast(stride: int = 4, frames: int = 24) -> Sound:
    """(time, mel), cut into patches: 16 bands by 24 frames."""
    sizes = {"patch_size": 4, "frequency_stride": stride, "time_stride": stride}
    config = hf.ASTConfig(**SMALL, **sizes, max_length=frames, num_mel_bins=16)
    return seeded(lambda: hf.ASTForAudioClassification(config)).eval(), {"input_values": randn(1, frames, 16)}


def wav2vec2_bert(frames: int = 20) -> Sound:
    """(time, mel), one position for each frame."""
    config = hf.Wav2Vec2BertConfig(
        **SMALL, feature_projection_input_dim=16, conv_depthwise_kernel_size=3, classifier_proj_size=16
    )
    model = seeded(lambda: hf.Wav2Vec2BertForSequenceClassification(config)).eval()
    return model, {"input_features": randn(1, frames, 16), "attention_mask": torch.ones(1, frames, dtype=torch.long)}


def speech2text() -> Sound:
    """(time, mel), one position for four frames; as many bands as positions would be taken for time."""
    config = hf.Speech2TextConfig(
        **BOTH, input_feat_per_channel=40, conv_channels=32, max_source_positions=100, num_conv_layers=2
    )
    model = seeded(lambda: hf.Speech2TextForConditionalGeneration(config)).eval()
    sound = {"input_features": randn(1, 40, 40), "attention_mask": torch.ones(1, 40, dtype=torch.long)}
    return model, sound | {"decoder_input_ids": torch.tensor([[1, 5, 6]])}


def whisper_classifier() -> Sound:
    """(mel, time), one position for two columns."""
    config = hf.WhisperConfig(**BOTH, num_mel_bins=8, max_source_positions=12, num_labels=3, classifier_proj_size=16)
    return seeded(lambda: hf.WhisperForAudioClassification(config)).eval(), {"input_features": randn(1, 8, 24)}


def patch(i: int) -> tuple[slice, ...]:
    band, step = divmod(i, 6)
    return slice(None), slice(4 * step, 4 * step + 4), slice(4 * band, 4 * band + 4)


def frames(width: int, axis: int = 1) -> Callable[[int], tuple[slice, ...]]:
    return lambda i: (*[slice(None)] * axis, slice(width * i, width * i + width))


@pytest.mark.parametrize(
    ("make", "place_of", "count"),
    [(ast, patch, 24), (wav2vec2_bert, frames(1), 20), (speech2text, frames(4), 10),
     (whisper_classifier, frames(2, axis=2), 12)],
)  # fmt: skip
def test_what_is_silenced_is_what_the_label_says(
    make: Callable[[], Sound], place_of: Callable[[int], tuple[slice, ...]], count: int
) -> None:
    model, inputs = make()
    result = wf.explain(model, inputs, method="occlusion", target=1)[0]
    places = [i for i, (s, special) in enumerate(zip(result.units.stream, result.units.special, strict=True))
              if s != "target" and not special]  # fmt: skip
    assert len(places) == count
    name = next(iter(inputs))
    with torch.no_grad():
        for i, place in enumerate(places):
            sound = inputs[name].clone()
            sound[place_of(i)] = 0
            logits = model(**(inputs | {name: sound})).logits
            whole = model(**inputs).logits
            change = (whole - logits)[0, 1] if logits.ndim == 2 else (whole - logits)[0, -1, 1]
            assert result.scores[place] == pytest.approx(float(change), abs=1e-5)


def test_patches_have_names_a_grid_and_tokens_that_are_none() -> None:
    model, inputs = ast()
    result = wf.explain(model, inputs, method="generic_attention")[0]
    units = result.units
    assert units.labels[:4] == ("[CLS]", "[DIST]", "frame 0 mel 0–3", "frame 4 mel 0–3")
    assert units.labels[-1] == "frame 20 mel 12–15"
    assert units.special == (True, True, *[False] * 24)
    assert units.grid == (4, 6) and units.image_size == (16, 24)
    assert result.heatmap().shape == (4, 6)
    model, inputs = ast(stride=3, frames=31)  # patches that overlap
    units = wf.explain(model, inputs, method="attention_rollout")[0].units
    assert units.grid == (5, 10) and len(units) == 52


def test_a_spectrogram_is_drawn_with_low_frequencies_at_the_bottom() -> None:
    model, inputs = ast()
    result = wf.explain(model, inputs, method="attention_rollout")[0]
    scores = np.arange(26, dtype=np.float32)
    from whyformer.views.explained import explanation_view
    from whyformer.views.marks import Heat

    view = explanation_view(result.replace(scores=scores))
    assert view.title == "sound, 4 bands × 6 steps"
    heats = [mark for panel in view.panels for mark in panel.marks if isinstance(mark, Heat)]
    assert heats and "frequency ↑" in view.panels[0].title
    assert heats[0].values_RC[-1].tolist() == scores[2:8].tolist()  # the lowest band
    assert "<title>patch 1,2: 3.0<" in view.to_html() and "<title>patch 4,6: 25.0<" in view.to_html()
    with pytest.raises(BadInput, match="patches of sound"):
        explanation_view(result, image=np.zeros((16, 24, 3), np.uint8))


@pytest.mark.parametrize("method", ["input_x_gradient", "attn_lrp"])
@pytest.mark.parametrize("make", [ast, whisper_classifier])
def test_gradients_are_taken_where_the_positions_are(make: Callable[[], Sound], method: str) -> None:
    """The tensor has fewer rows than the model has positions, and they are not the same."""
    model, inputs = make()
    result = wf.explain(model, inputs, method=method, target=1)[0]
    assert len(result.scores) == len(result.units) and np.count_nonzero(result.scores[2:]) == len(result.units) - 2
    if method != "attn_lrp":
        with pytest.raises(NotOffered, match="at='embeddings'"):
            wf.explain(model, inputs, method=method, at="input")


def test_seconds_where_they_are_known_and_frames_where_not() -> None:
    model, inputs = whisper_classifier()
    assert wf.explain(model, inputs, method="attention_rollout")[0].units.labels[:2] == ("frame 0", "frame 1")
    extractor = processors.whisper().feature_extractor  # 666 samples to a column, 16,000 a second
    clip = np.random.default_rng(0).normal(size=16000).astype(np.float32)
    clip[:8000] = 0
    units = wf.explain(model, clip, processor=extractor, method="attention_rollout").units
    assert units.labels[:3] == ("0.00s", "0.08s", "0.17s")
    assert units.seconds == pytest.approx(float(units.labels[1][:-1]) * len(units), abs=0.005 * len(units))
    assert units.wave is not None and max(units.wave) == 1
    loud = np.flatnonzero(units.wave) * units.seconds / len(units.wave)
    assert (loud.min(), loud.max()) == (pytest.approx(0.5, abs=0.01), pytest.approx(1.0, abs=0.01))


def test_padding_is_no_frame() -> None:
    model, inputs = wav2vec2_bert()
    pair = {k: v.repeat(2, *[1] * (v.ndim - 1)) for k, v in inputs.items()}
    pair["attention_mask"][1, 12:] = 0
    pair["input_features"][1, 12:] = 0
    long, short = wf.explain(model, pair, method="occlusion", target=1)
    assert len(long.units) == 20 and len(short.units) == 12
    alone = wf.explain(model, {k: v[1:, :12] for k, v in pair.items()}, method="occlusion", target=1)[0]
    np.testing.assert_allclose(short.scores, alone.scores, atol=1e-4)


def test_the_passes_that_find_time_are_counted() -> None:
    (model, inputs), calls = whisper_classifier(), []
    model.register_forward_hook(lambda *_: calls.append(1))
    cost = wf.explain(model, inputs, method="attention_rollout")[0].cost
    assert cost.setup_forwards + cost.forwards == len(calls)
    again = wf.explain(model, inputs, method="attention_rollout")[0].cost
    assert again.setup_forwards == 0 and cost.setup_forwards + cost.forwards + again.forwards == len(calls)
