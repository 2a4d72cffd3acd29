"""A real server, and what a person does on its page."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import uvicorn

from tests.support.browser import Browser
from whyformer.serve.app import Served, application, bound


@contextmanager
def up(whole: Served, browser: Browser) -> Iterator[str]:
    """The address of a server that is up."""
    listening = bound("127.0.0.1", 0)
    server = uvicorn.Server(uvicorn.Config(application(whole), log_level="error", timeout_graceful_shutdown=1))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    while not server.started:
        time.sleep(0.01)
    yield f"http://localhost:{listening.getsockname()[1]}"
    browser.open("about:blank")  # lets go of what it listens to
    whole.jobs.close()
    server.should_exit = True
    thread.join()
    listening.close()


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
    press(browser, "Explain")
    return result(browser, other_than)


def texts(browser: Browser, selector: str) -> list[str]:
    return list(browser.does(f"[...document.querySelectorAll({json.dumps(selector)})].map(e => e.textContent)"))
