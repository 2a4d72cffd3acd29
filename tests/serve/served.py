"""Tiny models behind the application, and a client that asks it."""

from __future__ import annotations

import json
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from io import BytesIO
from typing import Any

import jsonschema
import numpy as np
import torch
import uvicorn
from starlette.testclient import TestClient

from tests.models import CASES, UNUSUAL
from tests.models.case import seeded
from tests.support import language, processors
from tests.support.browser import Browser
from tests.support.processors import pair_tokenizer, picture
from whyformer.serve.app import Served, application, bound
from whyformer.serve.jobs import Jobs
from whyformer.serve.models import Models, ServedModel
from whyformer.serve.safety import BoundedProtocol
from whyformer.serve.store import Store
from whyformer.verbs import Explainer

TEXT = "anna lives in paris and bob works in rome"
CLIP = (np.sin(np.arange(1600) / 9) * np.hanning(1600) * 0.6).astype(np.float32)  # a tenth of a second
SMALL = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 48}
NAMES = {"id2label": {0: "no", 1: "yes", 2: "<b>maybe</b>"}, "label2id": {"no": 0, "yes": 1, "<b>maybe</b>": 2}}


def bert(gain: float = 1.5, **config: Any) -> Explainer:
    import transformers as t

    made = t.BertConfig(**SMALL, vocab_size=32, **config)
    return Explainer(seeded(lambda: t.BertForSequenceClassification(made), gain), pair_tokenizer())


@cache
def explainer(kind: str) -> Explainer:
    import transformers as t

    if kind == "text":
        return bert(**NAMES)
    if kind == "language":
        return Explainer(language.model("gpt2"), language.tokenizer())
    if kind == "image":
        vit = t.ViTConfig(**SMALL, **NAMES, image_size=32, patch_size=8)
        return Explainer(seeded(lambda: t.ViTForImageClassification(vit)), processors.vit())
    if kind == "table":
        from whyformer.demo import load_adult

        return Explainer(*load_adult())
    case, processor, _ = STREAMS[kind]
    model = (CASES | UNUSUAL)[case].build((CASES | UNUSUAL)[case].implementations[0])
    return Explainer(model.bert if kind == "similarity" else model, processor())


# Models of several streams, by what they are called here: the case that builds them, their processor, their kind.
STREAMS: dict[str, tuple[str, Callable[[], Any], str]] = {
    "pair": ("vilt", processors.vilt, "pair"),
    "caption": ("clip", processors.clip, "pair"),
    "similarity": ("bert", processors.tokenizer, "similarity"),
    "sound": ("wav2vec2", processors.wav2vec2, "sound"),
    "detector": ("detr", partial(processors.detr, 16), "detector"),
    "translation": ("t5", processors.tokenizer, "text"),
}


def model_of(kind: str) -> ServedModel:
    samples: dict[str, Any] = {"text": [TEXT, "who is anna"], "language": ["the capital of france is"]}
    samples |= {"image": [picture()], "detector": [picture()], "similarity": [("a cat on the mat", "two birds")]}
    samples |= {"pair": [(picture(), "what is this")], "caption": [(picture(), "a photo of a cat")]}
    samples |= {"translation": ["the cat"], "sound": [(CLIP, 16_000)]}
    taken = STREAMS[kind][2] if kind in STREAMS else kind
    return ServedModel(kind, taken, explainer(kind), samples.get(kind, ()))


def served(*kinds: str, store: Store | None = None, most: int = 64, **how: Any) -> Served:
    torch.manual_seed(0)
    loader = how.pop("loader", None)
    return Served(
        Models([model_of(kind) for kind in kinds or ("text",)], loader), store or Store(None), Jobs(most), **how
    )


def client(what: Served, **how: Any) -> TestClient:
    """Without the rehearsal that begins a server. Every reply has to be one that openapi.json describes."""
    asking = TestClient(application(what), base_url="http://localhost", **how)
    asking.event_hooks = {"response": [described]}
    return asking


@cache
def schema() -> dict[str, Any]:
    with torch.random.fork_rng(devices=[]):  # it is made at the first reply, within somebody else's question
        what = served()
    return dict(TestClient(application(what), base_url="http://localhost").get("/api/openapi.json").json())


def described(reply: Any) -> None:
    """Assert that a reply has a status, a media type and a content of the schema."""
    path, verb = reply.request.url.path, reply.request.method.lower()
    paths = [at for at in schema()["paths"] if re.fullmatch(re.sub(r"{\w+}", "[^/]+", at), path)]
    operation = schema()["paths"][paths[0]].get(verb) if paths else None
    if operation is None:
        assert reply.status_code < 500
        return
    kind = reply.headers["content-type"].partition(";")[0]
    if reply.status_code in (303, 401) and not path.startswith("/api"):
        return  # the guard's words to a person who opens a page
    content = operation["responses"][str(reply.status_code)]["content"]
    if kind == "application/json" and "export" not in path:
        whole = {"$ref": f"#/x{len(paths)}", f"x{len(paths)}": content[kind]["schema"], **schema()}
        jsonschema.validate(json.loads(reply.read()), whole)
    assert kind in content, (path, reply.status_code, kind)


def asked(kind: str = "text", **more: Any) -> dict[str, Any]:
    inputs: dict[str, Any] = {"text": {"text": TEXT}, "language": {"prompt": "the cat sat on"}}
    return {"model": kind, "input": inputs.get(kind, {"sample": 0}), "wait": 60, **more}


def refused(asking: TestClient, path: str, words: str, **question: Any) -> None:
    """Assert that a question is a 422 with these words."""
    told = asking.post(f"/api/{path}", json=question)
    assert told.status_code == 422 and words in told.json()["error"], told.json()


def png(width: int = 60, height: int = 40, form: str = "PNG") -> bytes:
    written = BytesIO()
    picture(height, width).save(written, form)
    return written.getvalue()


# A real server, and what a person does on its page.


@contextmanager
def running(app: Any) -> Iterator[str]:
    """The address of an application that is up."""
    listening = bound("127.0.0.1", 0)
    config = uvicorn.Config(app, http=BoundedProtocol, ws="none", log_level="error", timeout_graceful_shutdown=1)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://localhost:{listening.getsockname()[1]}"
    server.should_exit = True
    thread.join()
    listening.close()


@contextmanager
def up(whole: Served, browser: Browser | None = None) -> Iterator[str]:
    """The address of a server that is up."""
    with running(application(whole)) as at:
        yield at
        if browser is not None:
            browser.open("about:blank")  # lets go of what it listens to
        whole.jobs.close()


def until(browser: Browser, expression: str, seconds: float = 60) -> Any:
    """The value of an expression, once it is one."""
    end = time.monotonic() + seconds
    while not (value := browser.does(expression)):
        assert time.monotonic() < end, (expression, browser.does("document.body.innerText"), browser.errors)
        time.sleep(0.05)
    return value


def visit(browser: Browser, address: str, **how: Any) -> Browser:
    browser.open(address, **how)
    until(browser, "document.documentElement?.classList.contains('wf-started')")
    return browser


def press(browser: Browser, words: str, inside: str = "body") -> None:
    wanted = f"[...document.querySelector({json.dumps(inside)}).querySelectorAll('button')]"
    browser.does(f"{wanted}.find(b => b.textContent === {json.dumps(words)}).click()")


def choose(browser: Browser, model: str) -> None:
    browser.does(
        f"(s => {{ s.value = {json.dumps(model)}; s.dispatchEvent(new Event('change')); }})"
        "(document.querySelector('#sv-model'))"
    )
    until(browser, "!!document.querySelector('.sv-methods input:checked')")
    until(browser, "!!document.querySelector('.sv-prediction *')")


def tick(browser: Browser, *methods: str) -> None:
    for name in methods:
        browser.does(f"document.querySelector('.sv-methods input[value={name}]').click()")


def write(browser: Browser, words: str, into: str = ".sv-area") -> None:
    browser.does(
        f"(a => {{ a.value = {json.dumps(words)}; a.dispatchEvent(new Event('input')); }})"
        f"(document.querySelector({json.dumps(into)}))"
    )


def drop(browser: Browser, content: bytes, name: str) -> None:
    browser.does(
        f"(() => {{ const data = new DataTransfer();"
        f"data.items.add(new File([new Uint8Array({json.dumps(list(content))})], {json.dumps(name)}));"
        "const drop = new DragEvent('drop', {dataTransfer: data, bubbles: true});"
        "document.querySelector('.sv-drop').dispatchEvent(drop); })()"
    )


def result(browser: Browser, other_than: str = "") -> str:
    """The id of what is shown."""
    return str(
        until(
            browser,
            f"(r => r && r.dataset.id !== '{other_than}' && r.dataset.id)(document.querySelector('.sv-result'))",
        )
    )


def explained(browser: Browser, other_than: str = "") -> str:
    """Press Explain, and return the id of the result; the example that a page opens with is not waited for."""
    shown = browser.does("document.querySelector('.sv-result')?.dataset.id ?? ''")
    press(browser, "Explain")
    return result(browser, other_than or shown)


def texts(browser: Browser, selector: str) -> list[str]:
    return list(browser.does(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"))
