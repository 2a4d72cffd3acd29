"""What is asked over HTTP is what Python gives; what cannot be answered is said in words; which models are served."""

from __future__ import annotations

import json
import logging
import re
import sqlite3
from base64 import b64decode
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from starlette.testclient import TestClient
from typer.testing import CliRunner

from tests.serve.served import TEXT, asked, client, explainer, png, refused, served
from tests.support.processors import picture
from whyformer.cli.main import app
from whyformer.cli.service_commands import served_model
from whyformer.errors import BadInput, UnknownName
from whyformer.explainer import CoreExplainer
from whyformer.registry import list_methods
from whyformer.results.codec import from_plain
from whyformer.results.result import Result
from whyformer.serve.app import address, bound
from whyformer.serve.models import Models, ServedModel
from whyformer.serve.store import Store
from whyformer.views.html.live import live_html


@pytest.fixture(scope="module")
def ask() -> Iterator[TestClient]:
    whole = served("text", "language", "image", "table")
    yield client(whole)
    whole.jobs.close()


def test_models_say_what_they_take(ask: TestClient) -> None:
    listed = {model["name"]: model for model in ask.get("/api/models").json()["models"]}
    assert [listed[kind]["takes"] for kind in listed] == [["text"], ["prompt", "text"], ["image"], ["row"]]
    assert listed["text"]["indices"] == [0, 1, 2] and listed["text"]["second"]["must"] is False
    assert listed["text"]["labels"] == ["no", "yes", "<b>maybe</b>"] and listed["image"]["pictures"] == 1
    assert [c["name"] for c in listed["table"]["columns"]][:2] == ["age", "workclass"] and listed["language"]["chat"]


TIME = r"(< )?[\d.]+ m?s\b"  # that an explanation took


@pytest.mark.parametrize("kind", ["text", "language", "image", "table"])
def test_an_explanation_is_that_of_python_and_is_opened_by_its_link(ask: TestClient, kind: str) -> None:
    told = ask.post("/api/explain", json=asked(kind, method="input_x_gradient")).json()
    raw = {"text": TEXT, "language": "the cat sat on"}.get(kind)
    if raw is None:
        models = {m["name"]: m for m in ask.get("/api/models").json()["models"]}
        raw = models["table"]["samples"][0] if kind == "table" else picture()
    twin = explainer(kind).explain(raw, method="input_x_gradient")
    (view,) = told["views"]
    assert np.allclose(view["data"]["maps"][0]["scores"], twin.scores, rtol=1e-4, atol=1e-7)
    data, drawn = json.dumps(view["data"], ensure_ascii=False), _as_plain(live_html(twin.view()))
    assert re.sub(TIME, "", data) in re.sub(TIME, "", drawn)
    assert ask.get(f"/api/results/{told['id']}").json() == told and ask.get(told["link"]).status_code == 200
    said = ask.post("/api/predict", json={k: v for k, v in asked(kind).items() if k != "wait"}).json()["prediction"]
    assert (said["label"], said["probability"]) == (str(twin.prediction), pytest.approx(twin.prediction.probability))


def _as_plain(element: str) -> str:
    return json.dumps(json.loads(element[element.index(">") + 1 : element.rindex("</script>")]), ensure_ascii=False)


def test_contrast_target_and_options_reach_the_method(ask: TestClient) -> None:
    how = {"method": "integrated_gradients", "options": {"steps": 3}, "target": "yes", "versus": "no"}
    told = ask.post("/api/explain", json=asked(**how)).json()
    plain = ask.get(f"/api/results/{told['id']}/export?format=json").json()
    assert plain["target"]["label"] == "yes" and plain["target"]["versus_label"] == "no"
    assert plain["options"]["steps"] == 3


def test_a_method_that_fails_is_an_entry_beside_those_that_do_not(ask: TestClient) -> None:
    told = ask.post("/api/explain", json=asked(method=["grad_cam", "attn_lrp", "saliency"])).json()
    assert list(told["failures"]) == ["grad_cam"] and "no image" in told["failures"]["grad_cam"]
    assert [m["method"] for m in told["views"][0]["data"]["maps"]] == ["attn_lrp", "saliency"]
    refused(ask, "explain", "no image", **asked(method="grad_cam"))


def test_methods_that_do_not_apply_are_told_with_the_reason(ask: TestClient) -> None:
    whole = served("text")
    with client(whole) as begun:  # with the rehearsal of a server that starts
        listed = {m["name"]: m for m in begun.get("/api/methods?model=text&wait=60").json()["methods"]}
    assert listed.keys() == list_methods().keys() and listed["two_ended"]["default"]
    refusing = {name for name, m in listed.items() if m["applies"] is False}
    assert refusing == {"grad_cam", "vit_cx"} and "no image" in listed["grad_cam"]["reason"]
    assert listed["shap"]["applies"] is None  # not tried: its package takes long to import
    assert {m["applies"] for m in ask.get("/api/methods?model=text").json()["methods"]} == {None}


def test_an_edited_word_is_told_as_a_difference(ask: TestClient) -> None:
    before = ask.post("/api/explain", json=asked()).json()
    edit = {"text": TEXT.replace("paris", "rome").replace("bob works", "ben lives")}
    after = ask.post("/api/explain", json=asked(input=edit, edited_from=before["id"])).json()
    told = after["beside"]["difference"]
    plain = (ask.get(f"/api/results/{r['id']}/export?format=json").json() for r in (before, after))
    one, two = (from_plain(Result, each) for each in plain)
    assert told["value"] == [pytest.approx(one.value), pytest.approx(two.value)]
    labels = [(u["label"], u["before"] is None, u["after"] is None) for u in told["units"]]
    assert ("paris", False, True) in labels and ("ben", True, False) in labels and ("anna", False, False) in labels
    anna = next(u for u in told["units"] if u["label"] == "anna")
    assert anna["before"] == pytest.approx(one.scores[1], abs=1e-5)
    assert anna["after"] == pytest.approx(two.scores[1], abs=1e-5)
    assert sum(c["after"] for c in told["classes"]) == pytest.approx(1)


def test_an_uploaded_picture_is_explained_and_a_patch_erased(ask: TestClient) -> None:
    up = ask.post("/api/images", content=png()).json()
    assert (up["width"], up["height"]) == (60, 40)
    before = ask.post("/api/explain", json=asked("image", input={"image": up["image"]})).json()
    assert before["views"][0]["data"]["picture"].startswith("data:image/jpeg")
    erased = asked("image", input={"image": up["image"], "erased": [6]}, edited_from=before["id"])
    after = ask.post("/api/explain", json=erased).json()["beside"]["difference"]
    assert after["value"][0] != after["value"][1] and len(after["units"]) == 17
    none = ask.post("/api/explain", json=asked("image", input={"image": up["image"], "erased": [0]})).json()
    assert "not a patch" in none["error"]  # unit 0 is [CLS]


def test_a_language_model_is_asked_and_answers(ask: TestClient) -> None:
    question = {"prompt": "what is the capital of france ?", "chat": True}
    told = ask.post("/api/explain", json=asked("language", input=question, generate=3)).json()
    assert told["html"] and "wf-dialogue" in told["html"] and told["said"]
    plain = ask.get(f"/api/results/{told['id']}/export?format=json").json()
    assert plain["what"] == "generation" and len(plain["tokens"]) <= 3


def test_heads_are_the_attention_of_the_model(ask: TestClient) -> None:
    result = ask.post("/api/explain", json=asked()).json()["id"]
    told = ask.post("/api/heads", json={"result": result, "wait": 60}).json()["about"]
    record = explainer("text").record([TEXT])
    assert len(told["layers"]) == 2 and [layer["heads"] for layer in told["layers"]] == [4, 4]
    first = np.frombuffer(b64decode(told["layers"][0]["data"]), np.uint8).reshape(4, 11, 11)
    attention_HQK = record.sites[0].attention_BHQK[0].numpy()
    scaled = first[2] / 255 * told["layers"][0]["highest"][2]
    assert np.abs(scaled - attention_HQK[2]).max() < 0.5 / 255 * attention_HQK[2].max() + 1e-5
    assert np.shape(told["importance"]) == (2, 4)


def test_trust_is_measured_on_this_input(ask: TestClient) -> None:
    result = ask.post("/api/explain", json=asked(method=["attn_lrp", "input_x_gradient"])).json()["id"]
    told = ask.post("/api/trust", json={"result": result, "wait": 60}).json()["about"]
    remove, keep = told["curves"]["remove"], told["curves"]["keep"]
    assert [line["method"] for line in remove["lines"]] == ["attn_lrp", "input_x_gradient"]  # all that is on screen
    for gone, alone in zip(remove["lines"], keep["lines"], strict=True):
        assert gone["curve"][0] == alone["curve"][-1] == pytest.approx(remove["mean"][0])  # nothing gone, all there
        assert gone["curve"][-1] == alone["curve"][0]
    assert remove["lines"][0]["curve"] != remove["lines"][1]["curve"]
    measured = {each["method"]: each for each in told["ran"]}
    assert [name for name, each in measured.items() if each["shown"]] == ["attn_lrp", "input_x_gradient"]
    assert measured["attn_lrp"]["agreement"] == pytest.approx(1) and -1 <= measured["saliency"]["agreement"] <= 1
    assert {f["check"] for f in told["findings"]} >= {"capture_audit", "sinks", "class_dependence"}
    assert told["unasked"] == "two_ended" and told["statement"].startswith(
        "On this input, the probability falls faster"
    )
    assert f"in {remove['lines'][0]['worse']} of 10 random orders" in told["statement"]
    assert "1 input: too few to rank methods" in told["statement"]
    assert ask.post("/api/trust", json={"result": result}).json()["about"] == told  # remembered
    slow = ask.post("/api/trust", json={"result": result, "thorough": True, "wait": 60}).json()["about"]
    assert slow["thorough"] and len(slow["findings"]) > len(told["findings"])  # not what was remembered


def test_trust_holds_what_the_method_held(ask: TestClient) -> None:
    """The curves end where the held part is alone, and not where nothing is left."""
    holding = asked(method=["two_ended"], options={"hold": 1})
    result = ask.post("/api/explain", json=holding).json()["id"]
    told = ask.post("/api/trust", json={"result": result, "wait": 60}).json()["about"]
    plain = ask.post("/api/explain", json=asked(method=["two_ended"])).json()["id"]
    whole = ask.post("/api/trust", json={"result": plain, "wait": 60}).json()["about"]
    assert told["curves"]["parts"] == whole["curves"]["parts"] - 1
    assert told["curves"]["remove"]["lines"][0]["curve"][-1] != whole["curves"]["remove"]["lines"][0]["curve"][-1]
    assert [f["title"] for f in told["findings"]].count("Held features") == 1
    assert "Held features" not in [f["title"] for f in whole["findings"]]


def test_methods_are_compared_and_results_put_side_by_side(ask: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    asked_for, explain = [], CoreExplainer.explain
    noted = lambda self, x, **how: asked_for.append(how["method"]) or explain(self, x, **how)  # noqa: E731
    monkeypatch.setattr(CoreExplainer, "explain", noted)
    methods = ["saliency", "raw_attention"]
    how = {"model": "text", "inputs": [{"text": TEXT}, {"sample": 1}], "methods": methods, "wait": 60}
    told = ask.post("/api/compare", json=how).json()
    assert asked_for == methods, "each method explains once"
    plain = ask.get(f"/api/results/{told['id']}/export?format=json").json()
    twin = explainer("text").compare([TEXT, "who is anna"], method=methods)
    for metric, by_method in json.loads(json.dumps(twin.to_dict()))["values"].items():
        for name, values in by_method.items():
            assert plain["values"][metric][name] == pytest.approx(values, abs=1e-6)
    assert "<table" in told["html"]
    results = [ask.post("/api/explain", json=asked(method=m)).json()["id"] for m in ("saliency", "attn_lrp")]
    beside = ask.post("/api/compare", json={"results": results}).json()
    assert [m["name"] for m in beside["views"][0]["data"]["maps"]] == ["saliency", "attn_lrp"]


def test_results_are_listed_searched_exported_and_deleted(ask: TestClient) -> None:
    told = ask.post("/api/explain", json=asked(input={"text": "where 100%_ is anna"}, method="saliency")).json()
    search = lambda words: [r["id"] for r in ask.get("/api/results", params={"search": words}).json()["results"]]  # noqa: E731
    assert search("anna 100%_ saliency") == [told["id"]] and search("anna 100%%") == []
    link = f"/api/results/{told['id']}"
    page = ask.get(f"{link}/export?format=html")
    assert page.text.startswith("<!doctype html>") and "attachment" in page.headers["content-disposition"]
    assert ask.get(f"{link}/export?format=csv").text.splitlines()[0] == "unit,score,special,stream,word"
    assert ask.get(f"{link}/export?format=png").content.startswith(b"\x89PNG")
    assert ask.get(f"{link}/export?format=exe").status_code == 422
    assert ask.delete(link).status_code == 200 and ask.get(link).status_code == 404 and search("anna 100%_") == []


def test_history_is_there_after_a_restart(tmp_path: Path) -> None:
    file = tmp_path / "results.sqlite"
    first = served("image", store=Store(file))
    asking = client(first)
    up = asking.post("/api/images", content=png()).json()["image"]
    told = asking.post("/api/explain", json=asked("image", input={"image": up})).json()
    first.jobs.close()
    first.store.close()
    assert file.stat().st_mode & 0o077 == 0  # nobody else's to read
    second = served("image", store=Store(file))
    again = client(second)
    assert again.get(f"/api/results/{told['id']}").json() == told
    assert again.post("/api/predict", json={"model": "image", "input": {"image": up}}).status_code == 200
    second.jobs.close()
    second.store.close()


def test_a_file_that_is_no_store_is_refused_untouched(tmp_path: Path) -> None:
    empty, words, other = (tmp_path / name for name in ("empty", "words", "other.sqlite"))
    empty.touch()
    Store(empty).close()  # one to begin with
    words.write_bytes(b"no database at all, but long enough to be one" * 9)
    with closing(sqlite3.connect(other)) as database:
        database.execute("CREATE TABLE people (name TEXT)")
        database.commit()
    for file in (words, other):
        before = file.read_bytes()
        with pytest.raises(BadInput, match="name another file"):
            Store(file)
        assert file.read_bytes() == before


# Which models are served: what the command line loads, what a sample is, what the terminal is told.


@pytest.mark.parametrize("kind", ["text", "language", "image"])
def test_a_folder_is_served_as_what_it_holds(tmp_path: Path, kind: str) -> None:
    loaded = explainer(kind)
    loaded.model.save_pretrained(tmp_path / "mine")  # type: ignore[operator]
    loaded.processor.save_pretrained(tmp_path / "mine")
    served = served_model(str(tmp_path / "mine"))
    assert (served.name, served.kind) == ("mine", kind)  # where it lies is not told
    assert served.explainer.explain(served.samples[0]).scores.size  # something to try it on was made up


def test_kinds_that_the_page_cannot_ask_are_refused() -> None:
    with pytest.raises(BadInput, match=r"the server does not support.*use Python"):
        ServedModel("lxmert", "regions", explainer("text"))
    twice = Models([ServedModel("mine", "text", explainer("text")), ServedModel("mine", "image", explainer("image"))])
    assert [(name, model.kind) for name, model in twice.by_name.items()] == [("mine", "text"), ("mine #2", "image")]
    with pytest.raises(UnknownName, match="unknown model"):
        Models([])["text"]


def test_the_command_refuses_before_it_loads_anything(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logging.getLogger(), "handlers", [])  # the command sets up logging for the whole process
    run = lambda *words: CliRunner().invoke(app, ["serve", *words])  # noqa: E731
    assert "16 or more" in run("--token", "short").output
    assert "no folder" in run("--store", str(tmp_path / "none" / "x.sqlite")).output
    with bound("127.0.0.1", 0) as taken, pytest.raises(BadInput, match="another --host or --port"):
        bound("127.0.0.1", taken.getsockname()[1])


def test_the_address_has_the_token_where_one_is_needed() -> None:
    assert address("127.0.0.1", 8765, None) == "http://localhost:8765/"
    assert address("0.0.0.0", 80, "word") == "http://localhost:80/?token=word"
    assert address("fe80::1", 80, "word") == "http://[fe80::1]:80/?token=word"


# openapi.json: served.py holds every reply of these tests to it.


def test_a_client_made_from_the_schema_uploads_explains_and_reads(ask: TestClient) -> None:
    schema = ask.get("/api/openapi.json").json()
    calls = {
        entry["operationId"]: (verb, path, entry) for path, at in schema["paths"].items() for verb, entry in at.items()
    }

    def call(name: str, body: Any = None, **names: str) -> Any:
        verb, path, entry = calls[name]
        kind = next(iter(entry.get("requestBody", {}).get("content", {})), "")
        content = json.dumps(body).encode() if kind == "application/json" else body
        told = ask.request(verb, path.format(**names), content=content, headers={"content-type": kind})
        model = entry["responses"][str(told.status_code)]["content"]["application/json"]["schema"]["$ref"]
        return model.rpartition("/")[2], told.json()

    kind, image = call("upload_image", png())
    assert (kind, image["width"]) == ("UploadedImage", 60)
    question = {"model": "image", "input": {"image": image["image"]}, "method": "saliency", "wait": 60}
    kind, result = call("explain", question)
    assert kind == "Result" and call("result", identity=result["id"]) == ("Result", result)
    kind, job = call("explain", question | {"wait": 0})
    assert kind == "Job" and call("cancel", identity=job["job"])[0] == "Job"
    assert call("pin", identity=result["id"])[1] == {"id": result["id"], "pinned": True}
    assert call("result", identity="none") == ("Failure", {"error": "unknown result."})
    assert {"202", "404", "409", "422", "429"} <= calls["explain"][2]["responses"].keys()


def test_errors_of_a_body_name_it(ask: TestClient) -> None:
    assert ask.post("/api/explain").json() == {"error": "body: Field required"}
    broken = ask.post("/api/explain", content=b"{", headers={"content-type": "application/json"})
    assert broken.json()["error"].startswith("body: JSON decode error")


def test_a_405_names_all_methods_of_an_address(ask: TestClient) -> None:
    assert ask.put("/api/results/x").headers["allow"] == "DELETE, GET"
