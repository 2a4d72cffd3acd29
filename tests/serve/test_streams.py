"""Pairs, sound, detectors and models that write, over HTTP: what is asked is what Python gives."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tests.models import CASES
from tests.models.kinds import KINDS
from tests.serve.served import CLIP, asked, client, explainer, png, refused, served
from tests.serve.test_safety import OTHERS_DRAW
from tests.support.processors import picture, siglip, tokenizer
from whyformer.heads.importance import head_importance
from whyformer.serve.models import Models, ServedModel, kind_of, sample_of, second_of
from whyformer.serve.safety import opened_sound, written_sound
from whyformer.verbs import Explainer

UNCHECKED = [HealthCheck.function_scoped_fixture, HealthCheck.too_slow]  # a busy machine is slow, not wrong


@pytest.fixture(scope="module")
def ask() -> Iterator[TestClient]:
    whole = served("pair", "caption", "similarity", "sound", "detector", "translation", "text", "image")
    yield client(whole)
    whole.jobs.close()


def scores(told: dict[str, Any], view: int = 0) -> np.ndarray[Any, Any]:
    return np.array(told["views"][view]["data"]["maps"][0]["scores"])


def test_a_picture_and_a_text_are_explained_together(ask: TestClient) -> None:
    up = ask.post("/api/images", content=png()).json()["image"]
    told = ask.post("/api/explain", json=asked("pair", input={"image": up, "text": "two birds"})).json()
    twin = explainer("pair").explain((picture(40, 60), "two birds"))
    assert np.allclose(scores(told), twin.scores, rtol=1e-4, atol=1e-6)
    assert told["views"][0]["data"]["picture"].startswith("data:image/jpeg") and told["title"] == "two birds"
    sample = ask.post("/api/explain", json=asked("pair", input={"sample": 0, "text": "two birds"})).json()
    assert np.allclose(scores(sample), twin.scores, rtol=1e-4, atol=1e-6)  # the picture of a sample with another text
    refused(ask, "predict", "not sample and text", model="text", input={"sample": 0, "text": "anna"})
    for wrong in ({"image": up}, {"text": "two birds"}, {"prompt": "x"}):
        refused(ask, "predict", "give image and text", model="pair", input=wrong)


def test_pairs_of_texts(ask: TestClient) -> None:
    pair = {"text": "who is anna", "second": "anna lives in rome"}
    told = ask.post("/api/explain", json=asked("text", input=pair)).json()
    twin = explainer("text").explain(("who is anna", "anna lives in rome"))
    assert np.allclose(scores(told), twin.scores, rtol=1e-4) and told["title"] == "who is anna · anna lives in rome"
    alike = ask.post("/api/predict", json={"model": "similarity", "input": {"text": "a cat", "second": "a dog"}}).json()
    assert alike["value"] == pytest.approx(explainer("similarity").explain(("a cat", "a dog")).value, rel=1e-5)
    refused(ask, "predict", "needs two texts", model="similarity", input={"text": "a cat"})
    refused(ask, "predict", "takes one text", model="translation", input=pair)


def test_a_sound_is_uploaded_at_any_rate(ask: TestClient) -> None:
    up = ask.post("/api/sounds", content=written_sound(CLIP, 16_000)).json()
    assert up["seconds"] == pytest.approx(0.1)
    told = ask.post("/api/explain", json=asked("sound", input={"sound": up["sound"]})).json()
    heard = opened_sound(written_sound(CLIP, 16_000))[0]
    assert np.allclose(scores(told), explainer("sound").explain((heard, 16_000)).scores, rtol=1e-4)
    twice = ask.post("/api/sounds", content=written_sound(np.repeat(CLIP, 2), 32_000)).json()["sound"]
    other = ask.post("/api/explain", json=asked("sound", input={"sound": twice})).json()
    assert scores(other).shape == scores(told).shape  # as long, at the model's rate
    again = opened_sound(ask.get(f"/api/sounds/{up['sound']}").content)
    assert again[1] == 16_000 and np.allclose(again[0], heard, atol=1e-3)
    assert opened_sound(ask.get("/api/samples?model=sound&number=0").content)[1] == 16_000


def wav(rate: int = 16_000, channels: int = 1, bits: int = 16, size: int = 320, told: int | None = None) -> bytes:
    """A WAV file that says so much of itself."""
    frame = channels * bits // 8
    kind = struct.pack("<HHIIHH", 1, channels, rate, rate * frame, frame, bits)
    told = size if told is None else told
    head = b"RIFF" + struct.pack("<I", 36 + told) + b"WAVEfmt " + struct.pack("<I", 16) + kind
    return head + b"data" + struct.pack("<I", told) + bytes(size)


@pytest.mark.parametrize(
    "content",
    [b"", b"RIFF", b"ID3" + bytes(99), png(), wav(bits=8), wav(rate=1), wav(rate=500_000), wav(channels=9), wav(size=0),
     wav(size=61 * 32_000), wav(told=2**31 - 100), wav()[:30]],
)  # fmt: skip
def test_what_is_no_short_plain_sound_is_refused(ask: TestClient, content: bytes) -> None:
    told = ask.post("/api/sounds", content=content)
    assert told.status_code == 422 and told.json()["error"]


def test_uploads_are_what_they_are(ask: TestClient) -> None:
    image = ask.post("/api/images", content=png()).json()["image"]
    sound = ask.post("/api/sounds", content=wav()).json()["sound"]
    for model, wrong in (("sound", {"sound": image}), ("image", {"image": sound}), ("sound", {"image": sound})):
        assert ask.post("/api/predict", json={"model": model, "input": wrong}).status_code == 422
    assert ask.get(f"/api/sounds/{image}").status_code == 422 and ask.get(f"/api/images/{sound}").status_code == 422
    assert ask.get("/api/sounds/nothing").status_code == 404


def test_every_object_of_a_detector_is_explained(ask: TestClient) -> None:
    told = ask.post("/api/explain", json=asked("detector", target=0.3, method=["generic_attention", "saliency"])).json()
    twins = explainer("detector").explain(picture(), target=0.3, method="saliency")
    assert len(told["items"]) == len(told["views"]) == len(twins) > 1
    assert told["items"] == [f"{twin.target}, query {twin.target.position}" for twin in twins]
    for view, twin in zip(told["views"], twins, strict=True):
        assert [each["method"] for each in view["data"]["maps"]] == ["generic_attention", "saliency"]
        assert np.allclose(view["data"]["maps"][1]["scores"], twin.scores, rtol=1e-3, atol=1e-6)
    assert f"{len(twins)} detections" in told["html"] and told["said"].count("LABEL") == len(twins)
    table = ask.get(f"/api/results/{told['id']}/export?format=csv").text.splitlines()
    assert table[0].startswith("method,of,unit") and len(table) == 1 + 2 * sum(len(twin.units) for twin in twins)
    page = ask.get(f"/api/results/{told['id']}/export?format=html").text
    assert page.count('class="wf-data"') == len(twins)
    said = ask.post("/api/predict", json={"model": "detector", "input": {"sample": 0}}).json()
    every = explainer("detector").explain(picture())
    assert [item["query"] for item in said["items"]] == [each.target.position for each in every]
    more = ask.post("/api/predict", json={"model": "detector", "input": {"sample": 0}, "target": 0.3}).json()
    assert len(more["items"]) == len(twins) and more["note"] is None
    refused(ask, "predict", "for detectors", model="image", input={"sample": 0}, target=0.3)


def test_trust_and_heads_are_of_the_object_that_was_chosen(ask: TestClient) -> None:
    result = ask.post("/api/explain", json=asked("detector", target=0.3)).json()
    last = len(result["items"]) - 1
    each = ({"result": result["id"], "item": item, "wait": 60} for item in (0, last))
    told = [ask.post("/api/trust", json=question).json()["about"] for question in each]
    twins = explainer("detector").explain(picture(), target=0.3, scalar="probability")
    whole = [about["curves"]["remove"]["lines"][0]["curve"][0] for about in told]
    assert whole == pytest.approx([twins[0].value, twins[last].value], abs=1e-4) and whole[0] != whole[1]
    again = ask.post("/api/trust", json={"result": result["id"], "item": last}).json()["about"]
    assert again == told[1]  # remembered, each by itself
    refused(ask, "trust", "object 99 does not exist", result=result["id"], item=99)


def test_written_tokens_are_all_told_and_the_first_explained(ask: TestClient) -> None:
    told = ask.post("/api/explain", json=asked("translation")).json()
    twins = explainer("translation").explain("the cat")
    assert len(told["views"]) == 20 and told["left_out"] == f"The first 20 of {len(twins)} are explained here."
    assert np.allclose(scores(told, 7), twins[7].scores, rtol=1e-3, atol=1e-6)
    assert "sources of each generated token" in told["html"] and told["tabs"] == []
    refused(ask, "trust", "one prediction", result=told["id"])


def test_heads_have_the_names_of_their_own_stream(ask: TestClient) -> None:
    result = ask.post("/api/explain", json=asked("caption")).json()["id"]
    told = ask.post("/api/heads", json={"result": result, "wait": 60}).json()["about"]
    units = explainer("caption").explain((picture(), "a photo of a cat"), method="random").units
    assert [layer["stream"] for layer in told["layers"]] == ["image", "image", "text", "text"]
    named = [told["names"][layer["names"]] for layer in told["layers"]]
    patches = [label for label, at in zip(units.labels, units.stream, strict=True) if at == "image"]
    assert named[0] == patches and len(patches) == 17 and named[2][:2] == ["a", "photo"]


def test_importance_stands_beside_the_layer_that_it_is_of() -> None:
    """SigLIP measures a layer in the middle that has no map over the input: those after it are not moved up."""
    made = Explainer(CASES["siglip"].build("sdpa"), siglip())
    whole = served("text")
    whole.models = Models([ServedModel("siglip", "pair", made, [(picture(), "a cat")])])
    asking = client(whole)
    result = asking.post("/api/explain", json=asked("siglip")).json()["id"]
    told = asking.post("/api/heads", json={"result": result, "wait": 60}).json()["about"]
    measured = head_importance(made.model, [(picture(), "a cat")], processor=made.processor)
    by_path = dict(zip(measured.paths, measured.scores.tolist(), strict=True))
    assert len(told["layers"]) == len(measured.paths) - 1
    for layer, row in zip(told["layers"], told["importance"], strict=True):
        assert row == pytest.approx(by_path[layer["path"]], abs=1e-4)
    whole.jobs.close()


def test_what_a_model_is_asked_with_is_known_from_its_class() -> None:
    plain = lambda name: Explainer(KINDS[name].case.build(None))  # noqa: E731
    assert kind_of(plain("yolos"), "image") == "detector" and kind_of(plain("bert_headless"), "text") == "similarity"
    names = {name: second_of(plain(name), "text") for name in ("bert_question", "bert_choice", "bert_tokens")}
    assert names["bert_question"] and names["bert_question"][1] and names["bert_tokens"] is None
    assert len(sample_of(plain("bert_choice"), "text")[1]) == 2  # two answers to choose among


def test_a_model_that_cannot_be_tried_says_why() -> None:
    """Its sample has no word that is masked, so nothing is predicted."""
    masked = Explainer(KINDS["bert_masked"].case.build(None), tokenizer())
    model = ServedModel("masked", "text", masked, ["a cat on the mat"])
    assert list(model.rehearsal()) == [] and "mask" in model.trouble
    assert {each["applies"] for each in model.methods()} == {None} and model.described()["trouble"] == model.trouble
    good = ServedModel("masked", "text", masked)
    assert "[MASK]" in good.samples[0]


# Questions of every shape to models of every kind

FIELDS = {
    "text": st.sampled_from(["a cat", "", "  ", "[MASK]", "\ud800", "<image>", "a\x00b"]),
    "second": st.sampled_from(["two birds", "", "a\nb", None]),
    "prompt": st.sampled_from(["a cat", None]),
    "row": st.sampled_from([{"age": 1}, {}, None]),
    "image": st.sampled_from(["IMAGE", "SOUND", "nothing"]),
    "sound": st.sampled_from(["SOUND", "IMAGE", "nothing"]),
    "sample": st.sampled_from([0, 1, 10_000]),
    "erased": st.lists(st.sampled_from([0, 1, 5, 99_999]), max_size=2),
    "answer": st.sampled_from(["a dog", None]),
    "chat": st.booleans(),
}
MODELS = st.sampled_from(["pair", "caption", "similarity", "sound", "detector", "text", "image"])
AIMS = st.sampled_from([None, 0, 2, 10**6, 0.4, "LABEL_0", "similarity"])


@OTHERS_DRAW
@settings(max_examples=30, deadline=None, derandomize=True, suppress_health_check=UNCHECKED)
@given(MODELS, st.lists(st.sampled_from([*FIELDS]), min_size=1, max_size=3, unique=True), st.data())
def test_no_input_is_a_500(ask: TestClient, model: str, names: list[str], data: st.DataObject) -> None:
    known = {"IMAGE": ask.post("/api/images", content=png()).json()["image"]}
    known["SOUND"] = ask.post("/api/sounds", content=wav()).json()["sound"]
    drawn = {name: data.draw(FIELDS[name]) for name in names}
    asked_for = {name: known.get(value, value) if isinstance(value, str) else value for name, value in drawn.items()}
    question: dict[str, Any] = {"model": model, "input": asked_for}
    more = {"method": "random", "target": data.draw(AIMS), "versus": data.draw(AIMS), "wait": 30}
    for path, body in (("/api/predict", question), ("/api/explain", question | more)):
        sent = json.dumps(body).encode()
        answered = ask.post(path, content=sent, headers={"content-type": "application/json"})
        assert answered.status_code in (200, 422), answered.text
