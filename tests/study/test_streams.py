"""Several streams of tokens: found, put in order, explained by the published rules, none of them lost."""

from __future__ import annotations

import json
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.methods.properties import near as close
from tests.models import CASES, UNUSUAL, model_of
from tests.models.case import alone, randint, run, softmax_outputs
from tests.references import generic_attention_streams as twin
from tests.references.generic_attention_streams import layers_of
from tests.support.released import BEFORE_FIVE, media_types
from whyformer.errors import BadInput, NotOffered, NotOverUnits, PartlyCaptured
from whyformer.study.schedule import Link

ALL = CASES | UNUSUAL
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
    "wav2vec2": [AUDIO] * 2,
    "rtdl_ft_transformer": None,
    "clip": [IMAGE] * 2 + [TEXT] * 2,
    "siglip": [IMAGE] * 2 + [("queries", "image")] + [TEXT] * 2,
    "vilt": [("text+image",) * 2] * 2,
    "lxmert": [TEXT] * 2 + [IMAGE] + [("text", "image"), ("image", "text"), TEXT, IMAGE] * 2,
    "detr": [IMAGE] * 2 + [("queries", "queries"), ("queries", "image")] * 2,
    "t5": DECODING,
    "blip_retrieval": [IMAGE] * 2 + [TEXT, ("text", "image")] * 2,
    "llava": [IMAGE] * 2 + [TEXT] * 2 if BEFORE_FIVE else [TEXT] * 2,
    "bart_cls": DECODING,
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


@pytest.mark.parametrize("reduce", ["query", "key"])
@pytest.mark.parametrize("name", ["lxmert", "t5"])
def test_grad_sam_sums_every_attention_of_a_stream(name: str, reduce: str) -> None:
    found = explained(name, CASES[name].inputs(), "grad_sam", reduce=reduce)
    streams_of = STREAMS[name]
    assert streams_of is not None
    for row, explanation in enumerate(found):
        layers, where = layers_of(name, row, 1), np.array(explanation.units.stream)
        want, maps = {str(stream): np.zeros((where == stream).sum()) for stream in where}, 0
        for (attention, gradient), (query, key) in zip(layers, streams_of, strict=True):
            cells = (attention * gradient.clip(min=0)).mean(0)
            want[query if reduce == "query" else key] += cells.sum(1 if reduce == "query" else 0)
            maps += bool(gradient.any())
        for stream, sums in want.items():
            close(explanation.scores[where == stream], sums / (maps * len(where)))


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
        ("transformer_attr", "transformer_attribution", {}),
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
        single = explained(name, alone(CASES[name].inputs(), row), METHODS)  # without padding
        for method in METHODS:
            one = together[method][row]
            close(one.scores, single[method][0].scores)
            assert (one.scores >= 0).all() and len(one.scores) == len(one.units), method


@pytest.mark.usefixtures("advised")
@pytest.mark.parametrize(("name", "method"), [("lxmert", "attention_flow"), ("clip", "alti"), ("t5", "alti")])
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


# Streams that are placed in others: image tokens in a language model, BLIP's answer about question and image


def unpadded(name: str, row: int) -> dict[str, Tensor]:
    """One input, its padding cut off; Qwen's patches are taken out of the row they are packed in."""
    inputs: Any = ALL[name].inputs()
    real = inputs["attention_mask"][row].bool()
    one = {k: v[row : row + 1] for k, v in inputs.items()}
    if "image_grid_thw" in inputs:
        one["pixel_values"] = inputs["pixel_values"][24 * row : 24 * row + 24]
    return {k: v[:, real] if v.ndim == 2 and v.shape[1] == len(real) else v for k, v in one.items()}


def softmaxes_of(name: str, row: int, target: int, logits: Any) -> list[twin.Layer]:
    """(attention, gradient) of every softmax of an eager float64 model, one input."""
    model = ALL[name].build("eager").double()
    one = {k: v.double() if v.is_floating_point() else v for k, v in unpadded(name, row).items()}
    with softmax_outputs() as maps:
        score = logits(model, one)[target]
    gradients = torch.autograd.grad(score, maps, allow_unused=True)
    pairs = zip(maps, gradients, strict=True)
    return [(m[0].detach().numpy(), (torch.zeros_like(m) if g is None else g)[0].numpy()) for m, g in pairs]


def last_logits(model: nn.Module, one: dict[str, Tensor]) -> Tensor:
    return run(model, one).logits[0, -1]


# Image tokens in a language model


def test_images_of_different_sizes_in_one_batch() -> None:
    inputs: Any = ALL["qwen2_vl"].inputs()
    ids = inputs["input_ids"].clone()
    ids[1, 6:8] = 50  # four image tokens are left
    wide = {
        **inputs,
        "input_ids": ids,
        **media_types((ids == 99).int()),
        "image_grid_thw": torch.tensor([[1, 4, 6], [1, 4, 4]]),
        "pixel_values": inputs["pixel_values"][:40],
    }
    found = wf.explain(model_of("qwen2_vl"), wide, target=7)
    assert [e.units.grid for e in found] == [(2, 3), (2, 2)]
    one = {k: v[1:] for k, v in wide.items()} | {"pixel_values": inputs["pixel_values"][24:40]}
    close(found[1].scores, wf.explain(model_of("qwen2_vl"), one, target=7)[0].scores)
    with pytest.raises(BadInput, match=r"which image belongs to which text|images: 1, inputs: 2"):
        wf.explain(model_of("qwen2_vl"), wide | {"image_grid_thw": wide["image_grid_thw"][:1]}, target=7)
    with pytest.raises(BadInput, match=r"40 (entries were expected|patches)"):
        wf.explain(model_of("qwen2_vl"), wide | {"pixel_values": wide["pixel_values"][1:]}, target=7)


def test_queries_between_image_and_text() -> None:
    """BLIP-2: queries read the image, and what they found starts five tokens of the text (rules 5-11, then a link)."""
    found = wf.explain(model_of("blip2"), ALL["blip2"].inputs(), method=METHODS[:2], target=7)
    for row in range(2):
        each = softmaxes_of("blip2", row, 7, last_logits)
        asked = twin.encoder_decoder(each[:2], [tuple(each[2:4]), tuple(each[4:6])], "image", "queries")
        tokens = each[-1][0].shape[-1]
        place = np.zeros((tokens, 5))
        place[range(2, 7), range(5)] = 1
        own = np.diag(1 - place.sum(1))
        rows = {"text": own, "queries": place @ asked["queries", "queries"], "image": place @ asked["queries", "image"]}
        for layer in each[6:]:
            rows = {stream: r + twin.cam(layer) @ r for stream, r in rows.items()}
        one = found["generic_attention"][row]
        close(one.scores, np.concatenate([rows["image"][-1], rows["text"][-1] + place @ rows["queries"][-1]]))
        assert [one.units.stream.count(s) for s in ("image", "queries", "text")] == [17, 5, (10, 7)[row]]
        assert one.units.labels[19:24] == tuple(f"[query {i}]" for i in range(5)) and all(one.units.special[19:24])
        assert one.heatmap().shape == (4, 4) and not one.warnings
        half = [(np.eye(a.shape[-1]) + a.mean(0)) / 2 if i not in {3, 5} else None for i, (a, _) in enumerate(each)]
        image, text = half[1] @ half[0], half[7] @ half[6]
        queries = half[4] @ half[2]
        crossed = queries.T @ each[5][0].mean(0) @ image
        starts = text @ place
        expected = [(starts @ crossed)[-1], (text @ own)[-1] + place @ (starts @ queries)[-1]]
        close(found["attention_rollout"][row].scores, np.concatenate(expected))


def entering_tokens(name: str, row: int) -> np.ndarray:
    """Scores at the last position of image tokens and words, where they enter the language model; one input.

    Before transformers 5 the layers of the vision encoder are followed, too, where its patches are told from the data:
    a token starts with what its patches gathered, each of them an equal part where they were merged.
    """
    each = softmaxes_of(name, row, 7, last_logits)
    words = twin.one_stream(each[-2:])[-1]
    if BEFORE_FIVE and name in {"llava", "qwen2_vl"}:
        patches = twin.one_stream(each[:-2])
        at = (unpadded(name, row)["input_ids"][0] == 99).numpy()
        own = 1 if name == "llava" else 0  # [CLS]
        merged = (len(patches) - own) // at.sum()
        for_token = patches[own:, own:].reshape(at.sum(), merged, at.sum(), merged).sum((1, 3)) / merged
        words[at] = words[at] @ for_token
    return words


IMAGE_TOKENS = [("llava", 16, (4, 4)), ("qwen2_vl", 6, (2, 3)), ("llava_next", 52, None), ("qwen2_5_vl", 6, (2, 3))]


@pytest.mark.parametrize(("name", "tokens", "grid"), IMAGE_TOKENS)
def test_image_tokens_are_scored_where_they_enter_the_language_model(
    name: str, tokens: int, grid: tuple[int, int] | None
) -> None:
    """Whatever the vision encoder does: LLaVA-Next reads the whole image and its tiles, Qwen 2.5 looks in windows."""
    for row, explanation in enumerate(
        wf.explain(model_of(name), ALL[name].inputs(), method="generic_attention", target=7)
    ):
        close(explanation.scores, entering_tokens(name, row))
        assert explanation.units.stream.count("image") == tokens and explanation.units.grid == grid


@pytest.mark.usefixtures("advised")
@pytest.mark.parametrize("method", ["occlusion", "integrated_gradients"])
def test_tiles_are_not_taken_away(method: str) -> None:
    with pytest.raises(NotOffered, match=r"52 image tokens.*several views.*generic_attention"):
        wf.explain(model_of("llava_next"), ALL["llava_next"].inputs(), target=7, method=method)


def test_a_link_is_of_one_image() -> None:
    with pytest.raises(BadInput, match="one image"):
        Link("image", "text", torch.tensor([[0.5, 0.5]])).at(torch.tensor([[True, True]]))


# BLIP writes an answer about a question about an image


def test_the_answer_is_followed_into_question_and_image() -> None:
    """Rules 5-11 for three streams: the answer asks the question, which has asked the image."""
    name = "blip_vqa"
    found = wf.explain(model_of(name), ALL[name].inputs(), target=7)

    def logits(model: nn.Module, one: dict[str, Tensor]) -> Tensor:
        image = model.vision_model(pixel_values=one["pixel_values"]).last_hidden_state
        question = model.text_encoder(one["input_ids"], encoder_hidden_states=image).last_hidden_state
        return model.text_decoder(one["decoder_input_ids"], encoder_hidden_states=question).logits[0, -1]

    for row, explanation in enumerate(found):
        each = softmaxes_of(name, row, 7, logits)
        asked = twin.encoder_decoder(each[:2], [tuple(each[2:4]), tuple(each[4:6])], "image", "text")
        r_qq, r_qi = asked["text", "text"], asked["text", "image"]
        r_aa, r_aq, r_ai = np.eye(3), np.zeros((3, len(r_qq))), np.zeros((3, 17))
        for own, cross in (each[6:8], each[8:10]):
            a, c = twin.cam(own), twin.cam(cross)
            r_aa, r_aq, r_ai = r_aa + a @ r_aa, r_aq + a @ r_aq, r_ai + a @ r_ai
            r_aq, r_ai = r_aq + twin.normalized(r_aa).T @ c @ twin.normalized(r_qq), r_ai + c @ r_qi
        for stream, expected in (("image", r_ai), ("text", r_aq), ("target", r_aa)):
            close(explanation.matrix["target", stream], expected)
            own = np.array(explanation.units.stream) == stream
            close(explanation.scores[own], expected[-1])
            assert expected[-1].max() > 0


# The leak audit


class Leaky(nn.Module):
    """An encoder-decoder whose source positions mix, or reach the target, outside attention."""

    def __init__(self, where: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.where, self.inner = where, nn.Transformer(16, 2, 1, 1, 32, dropout=0.0, batch_first=True)
        self.words, self.head = nn.Embedding(20, 16), nn.Linear(16, 3)

    def forward(self, src: Tensor, tgt: Tensor) -> Tensor:
        src, tgt = self.words(src), self.words(tgt)
        memory = self.inner.encoder(src)
        if self.where == "source":
            memory = memory + memory.roll(1, 1)
        if self.where == "target":
            tgt = tgt + memory.mean(1, keepdim=True)
        return self.head(self.inner.decoder(tgt, memory)[:, -1])


@pytest.mark.parametrize("where", ["nowhere", "source", "target"])
def test_leaks_inside_and_between_streams_are_found(where: str) -> None:
    inputs = {"src": randint(1, 20, 1, 5), "tgt": randint(1, 20, 1, 4)}
    explainer = wf.Explainer(Leaky(where).eval())
    leak = explainer.audit(inputs)
    assert leak.found == (where != "nowhere") and leak.checked > 0
    refusal = pytest.raises(PartlyCaptured, match="outside the captured attention") if leak.found else nullcontext()
    with refusal:
        explainer.explain(inputs, method="attention_rollout")


def test_a_leak_between_windows_is_found() -> None:
    model = CASES["swin"].build("sdpa")
    block = model.swin.encoder.layers[0].blocks[1]
    block.register_forward_hook(lambda m, args, out: (out[0] + out[0].mean(1, keepdim=True), *out[1:]))
    assert wf.Explainer(model).audit(CASES["swin"].inputs()).found


class Hops(nn.Module):
    """The head reads two weighted means of the words (Lin et al. 2017), with weights written in one of four ways."""

    def __init__(self, written: str) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.written, self.words, self.head = written, nn.Embedding(20, 8), nn.Linear(16, 3)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True)
        self.asks = nn.Parameter(torch.randn(2, 8))

    def forward(self, ids: Tensor) -> Tensor:
        h = self.layer(self.words(ids))
        scores = {
            "queries": lambda: self.asks.expand(len(h), 2, 8) @ h.transpose(1, 2),
            "matmul": lambda: self.asks @ h.transpose(1, 2),
            "einsum": lambda: torch.einsum("qd,bnd->bqn", self.asks, h),
            "linear": lambda: nn.functional.linear(h, self.asks).transpose(1, 2),
        }[self.written]()
        return self.head((scores.softmax(-1) @ h).flatten(1))


@pytest.mark.parametrize("written", ["matmul", "einsum", "linear"])
@pytest.mark.parametrize("method", ["attention_rollout", "generic_attention"])
def test_several_rows_of_weights_are_queries_however_they_are_written(written: str, method: str) -> None:
    inputs = {"ids": randint(1, 20, 1, 5)}
    one, other = (wf.explain(Hops(how).eval(), inputs, method=method, target=0)[0] for how in (written, "queries"))
    assert one.units.labels == other.units.labels and not one.warnings
    close(one.scores, other.scores)
