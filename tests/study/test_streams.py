"""Several streams of tokens: found, put in order, explained by the published rules, none of them lost."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.methods.properties import near as close
from tests.models import CASES, model_of
from tests.references import generic_attention_streams as twin
from tests.references.streams_quantities import alone, layers_of
from whyformer.errors import BadInput, NotOffered, NotOverUnits

SEVERAL = ["lxmert", "clip", "siglip", "detr", "t5", "whisper", "blip_retrieval", "blip_caption", "visual_bert", "vilt"]
CLASSIFYING = ["t5_cls", "bart_cls"]  # both streams of which are one text
METHODS = ["generic_attention", "attention_rollout", "raw_attention", "attention_gradcam"]
GOLDEN = Path(__file__).parents[1] / "golden" / "lxmert"
pytestmark = pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors:UserWarning")


def explained(name: str, inputs: Any, method: str | list[str] = "generic_attention", **how: Any) -> Any:
    how = {"target": (2, 1)} | how if name == "detr" else {"target": 0 if name in {"clip", "siglip"} else 1} | how
    return wf.explain(model_of(name), inputs, method=method, **how)


# Streams found

TEXT, IMAGE, AUDIO = ("text", "text"), ("image", "image"), ("audio", "audio")
DECODING = [("source", "source")] * 2 + [("target", "target"), ("target", "source")] * 2
STREAMS = {
    "bert": [TEXT] * 2,
    "vit": [IMAGE] * 2,
    "wav2vec2": [AUDIO] * 2,
    "rtdl_ft_transformer": None,
    "clip": [IMAGE] * 2 + [TEXT] * 2,
    "siglip": [IMAGE] * 2 + [("queries", "image")] + [TEXT] * 2,
    "visual_bert": [("text+image",) * 2] * 2,
    "vilt": [("text+image",) * 2] * 2,
    "lxmert": [TEXT] * 2 + [IMAGE] + [("text", "image"), ("image", "text"), TEXT, IMAGE] * 2,
    "detr": [IMAGE] * 2 + [("queries", "queries"), ("queries", "image")] * 2,
    "t5": DECODING,
    "blip_retrieval": [IMAGE] * 2 + [TEXT, ("text", "image")] * 2,
    "blip_caption": [IMAGE] * 2 + [TEXT, ("text", "image")] * 2,
    "llava": [IMAGE] * 2 + [TEXT] * 2,
    "bart_cls": DECODING,
    "whisper": DECODING,
    "nn_transformer": DECODING,
}


@pytest.mark.parametrize("name", STREAMS)
def test_streams_of_every_site_are_found(name: str) -> None:
    case = CASES[name]
    explainer = wf.Explainer(model_of(name))
    sites = explainer.record(case.inputs()).sites
    expected = STREAMS[name] or [("table", "table")] * len(sites)
    assert [s.streams for s in sites] == expected
    assert [s.kind for s in sites] == ["self" if q == k else "cross" for q, k in expected]
    assert [s.streams for s in explainer.study(case.inputs()).sites] == expected


# Twins

HOW = [{}, {"normalize_cross": False}, {"self_in_rule_10": False}]
TWIN_NAMES = {"normalize_cross": "normalize", "self_in_rule_10": "with_self"}


def expected_maps(name: str, layers: list[twin.Layer], how: dict[str, bool]) -> dict[tuple[str, str], Any]:
    how = {TWIN_NAMES[k]: v for k, v in how.items()}
    if name == "lxmert":
        return twin.co_attention(layers[:2], layers[2:3], [tuple(layers[3:7]), tuple(layers[7:11])], **how)
    if name == "clip":
        return {IMAGE: twin.one_stream(layers[:2]), TEXT: twin.one_stream(layers[2:])}
    source, target = {"detr": ("image", "queries"), "blip_retrieval": ("image", "text")}.get(name, ("source", "target"))
    return twin.encoder_decoder(layers[:2], [tuple(layers[2:4]), tuple(layers[4:6])], source, target, **how)


@pytest.mark.parametrize("how", HOW, ids=str)
@pytest.mark.parametrize("name", ["lxmert", "detr", "clip", "t5", "blip_retrieval"])
def test_generic_attention_agrees_with_its_twin(name: str, how: dict[str, bool]) -> None:
    """The batch, with padding, against each input alone in float64."""
    target = {"target": (0, 1)} if name == "detr" else {}
    found = explained(name, CASES[name].inputs(), **target, **how)
    for row, explanation in enumerate(found):
        layers = layers_of(name, row, 0 if name == "clip" else 1)
        expected = expected_maps(name, layers, how)
        for pair, want in expected.items():
            close(explanation.matrix[pair], want)
        rows = {"lxmert": {"text": 0}, "detr": {"queries": 0}, "clip": {"image": 0, "text": -1}}
        rows["blip_retrieval"] = {"text": 0}
        streams = np.array(explanation.units.stream)
        for stream in dict.fromkeys(explanation.units.stream):
            total = sum(
                expected[s, stream][r] for s, r in rows.get(name, {"target": -1}).items() if (s, stream) in expected
            )
            close(explanation.scores[streams == stream], total)


# The authors' own numbers


@cache
def lxmert_of_the_authors() -> Any:
    from transformers import LxmertForQuestionAnswering

    return LxmertForQuestionAnswering.from_pretrained(GOLDEN, attn_implementation="eager", local_files_only=True)


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize(
    ("key", "method", "options"),
    [
        ("gae", "generic_attention", {}),
        ("gae_no_norm", "generic_attention", {"normalize_cross": False}),
        ("gae_no_self10", "generic_attention", {"self_in_rule_10": False}),
        ("raw_attn", "raw_attention", {}),
        ("rollout", "attention_rollout", {}),
        ("attn_gradcam", "attention_gradcam", {}),
    ],
)
def test_lxmert_meets_the_authors_numbers(key: str, method: str, options: dict[str, bool], row: int) -> None:
    meta, model = json.loads((GOLDEN / "meta.json").read_text()), lxmert_of_the_authors()
    stored, want = np.load(GOLDEN / "inputs.npz"), np.load(GOLDEN / "expected.npz")
    names = meta["build"]["inputs"]
    inputs = {k: torch.from_numpy(np.array(stored[k])) for k in names if k in stored}
    inputs |= {k: torch.from_numpy(stored[f"{k}_int8"].astype(np.float32) / 32) for k in names if k not in stored}
    target = [int(t) for t in stored["target"]]
    found = wf.explain(model, inputs, method=method, target=target, **options)[row]
    seen = 0
    for (s, a), (t, b) in [((s, s[0]), (t, t[0])) for s in ("text", "image") for t in ("text", "image")]:
        name = f"{key}.R_{a}_{b}"
        if f"{name}.b{row}" in want:
            expected, got = want[f"{name}.b{row}"].copy(), found.matrix[s, t].copy()
            if s == t == "text":
                expected[0, 0] = got[0, 0] = 0  # the authors' pictures leave the self cell out; ours keeps it
            assert np.abs(got - expected).max() <= meta["arrays"][name]["tol"] * max(np.abs(expected).max(), 1e-12)
            seen += 1
    assert seen >= 2


# Contracts


@pytest.mark.parametrize("name", SEVERAL + CLASSIFYING)
def test_batch_is_singles_and_padding_changes_nothing(name: str) -> None:
    inputs: Any = CASES[name].inputs()
    together = explained(name, inputs, METHODS)
    for row in range(2):
        single = explained(name, alone(name, row), METHODS)  # without padding
        for method in METHODS:
            one = together[method][row]
            close(one.scores, single[method][0].scores)
            assert (one.scores >= 0).all() and len(one.scores) == len(one.units), method


@pytest.mark.usefixtures("advised")
@pytest.mark.parametrize(("name", "method"), [("lxmert", "attention_flow"), ("clip", "grad_sam"), ("t5", "grad_sam")])
def test_methods_for_one_stream_refuse(name: str, method: str) -> None:
    with pytest.raises(NotOverUnits, match="generic_attention"):
        explained(name, CASES[name].inputs(), method)


@pytest.mark.parametrize("name", SEVERAL)
def test_occlusion_takes_units_of_every_stream_away(name: str) -> None:
    explanation = explained(name, CASES[name].inputs(), "occlusion")[0]
    for stream in dict.fromkeys(explanation.units.stream):
        own = [s for s, of in zip(explanation.scores, explanation.units.stream, strict=True) if of == stream]
        assert (max(np.abs(own)) > 1e-5) == (stream != "queries")


def test_vilt_patches_come_in_order() -> None:
    """ViLT shuffles its patches; brightening one patch must move that patch's own occlusion score, wherever it was."""
    inputs: Any = dict(CASES["vilt"].inputs())
    explanation = explained("vilt", inputs, "raw_attention")[0]
    assert explanation.units.grid == (4, 4)
    flat = {k: v.clone() for k, v in inputs.items()}
    flat["pixel_values"][:] = 0
    before = explained("vilt", flat, "raw_attention")[0]
    flat["pixel_values"][:, :, 8:16, 24:32] = 5  # patch 1,3
    after = explained("vilt", flat, "raw_attention")[0]
    change = np.abs(after.heatmap() - before.heatmap())
    assert np.unravel_index(change.argmax(), (4, 4)) == (1, 3)


def test_the_cosine_is_the_logit_without_its_scale() -> None:
    inputs = CASES["clip"].inputs()
    logit, cosine = explained("clip", inputs)[0], explained("clip", inputs, scalar="cosine")[0]
    assert cosine.scalar == "cosine" and -1 <= cosine.value <= 1
    scale = float(model_of("clip").logit_scale.detach().exp())
    close(logit.value, cosine.value * scale, 1e-4)
    with pytest.raises(NotOffered, match="cosine"):
        wf.explain(CASES["bert"].build("sdpa"), CASES["bert"].inputs(), scalar="cosine")


def test_the_last_layer_only() -> None:
    """CLIP's notebook: R = I + Ā_L in each tower."""
    explanation = explained("clip", CASES["clip"].inputs(), start_layer=-1)[0]
    layers = layers_of("clip", 0, 0)
    close(explanation.matrix[IMAGE], np.eye(17) + twin.cam(layers[1]))
    close(explanation.matrix[TEXT], np.eye(10) + twin.cam(layers[3]))
    with pytest.raises(BadInput, match="start_layer"):
        explained("clip", CASES["clip"].inputs(), start_layer=2)


# Detection


def test_all_detections_above_a_threshold() -> None:
    case = CASES["detr"]
    model, inputs = case.build("sdpa"), case.inputs()
    with torch.no_grad():
        best, classes = model(**inputs).logits.softmax(-1)[..., :-1].max(-1)
    threshold = float(best.flatten().sort().values[5])
    found = wf.explain(model, inputs, target=threshold)
    for row, detections in enumerate(found):
        queries = (best[row] > threshold).nonzero()[:, 0].tolist() or [int(best[row].argmax())]
        assert [d.target.position for d in detections] == queries
        assert [d.target.index for d in detections] == [int(classes[row, q]) for q in queries]
        for detection, query in zip(detections, queries, strict=True):
            asked = wf.explain(model, inputs, target=(query, int(classes[row, query])))[row]
            close(detection.scores, asked.scores)
    nothing = wf.explain(model, inputs, target=0.999)
    assert [len(d) for d in nothing] == [1, 1]
    assert "no detection" in nothing[0][0].warnings[0]
    with pytest.raises(BadInput, match="numbered 0 to 5"):
        wf.explain(model, inputs, target=(6, 0))


def test_padding_of_images_is_left_out() -> None:
    case = CASES["detr"]
    model, inputs = case.build("sdpa"), dict(case.inputs())
    mask = torch.ones(2, 16, 40, dtype=torch.long)
    mask[1, 8:], mask[1, :, 24:] = 0, 0
    found = wf.explain(model, inputs | {"pixel_mask": mask}, target=(2, 1))[1]
    assert found.units.grid == (1, 3)
    assert found.heatmap().shape == (1, 3)
