"""A client of completions servers (vLLM and others with OpenAI's /v1/completions) that returns log-probabilities."""

from __future__ import annotations

import json
import math
import socket
import ssl
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from http.client import HTTPException
from typing import Annotated, Any
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, OpenerDirector, ProxyHandler, Request, build_opener

from whyformer.errors import BadInput, ModelFailed, NotOffered, WhyformerError, shown
from whyformer.parameters import Count, Limits, NotEmpty, checked

PAUSE = 0.5  # seconds before the second try, then twice as long each time
LONGEST_PAUSE = 30.0
BUSY = {408, 425, 429, 500, 502, 503, 504}  # statuses that are tried again
NOT_THERE = (ConnectionRefusedError, socket.gaierror, ssl.SSLCertVerificationError)  # errors that are not
NEEDED = (
    "Explaining needs the log-probabilities of the tokens of the prompt, in the reply to POST /v1/completions with "
    '"echo": true and "logprobs": 1. vLLM returns them; if a server does not, explain the model locally.'
)


class CompletionServer:
    """A model behind a server: ``server(prompts, answers)`` returns log-probabilities, so that it can be explained.

    url: its address, such as "http://localhost:8000". model: which of its models; None: the only one. key: sent as a
    bearer token. timeout: seconds for one reply. parallel: requests at a time. retries: how often a busy server (429,
    5xx) or a lost connection is tried again. start: put before an answer without a prompt, since the first token of a
    text has no log-probability.

    >>> server = wf.CompletionServer("http://localhost:8000")  # vLLM, llama.cpp, …
    >>> wf.explain(server, ("The capital of France is", " Paris")).show()
    """

    @checked
    def __init__(
        self,
        url: Annotated[str, NotEmpty()],
        model: str | None = None,
        *,
        key: str | None = None,
        timeout: Annotated[float, Limits(0, open_low=True)] = 60.0,
        parallel: Annotated[int, Limits(1, 1024)] = 8,
        retries: Annotated[int, Limits(0, 100)] = 4,
        start: Annotated[str, NotEmpty()] = "\n",
    ) -> None:
        self.url = url.rstrip("/").removesuffix("/completions").removesuffix("/v1").rstrip("/")
        host = _host(self.url)
        if key is not None and not (key.isascii() and key.isprintable() and key.strip() == key and key):
            raise BadInput("key is not a bearer token: give printable text without spaces or line breaks around it.")
        self.timeout, self.parallel, self.retries, self.start = timeout, parallel, retries, start
        self.requests = 0  # sent so far, those that were tried again included
        self._model, self._key = model, key
        self._least = 0  # tokens to generate: none, or one where a server wants that
        self._lock = threading.RLock()
        handlers: list[Any] = [_Stays()]
        if host in {"localhost", "127.0.0.1", "::1"}:  # no proxy knows what is on this machine
            handlers.append(ProxyHandler({}))
        self._opener: OpenerDirector = build_opener(*handlers)

    def __repr__(self) -> str:
        return f"CompletionServer({self.url!r}, model={self._model!r})"

    @property
    def __name__(self) -> str:
        """The name in results and errors, as that of a function."""
        return self._model or "CompletionServer"

    @property
    def identity(self) -> str:
        """The key of its answers in a cache."""
        return f"{self.url} {self.model}"

    @property
    def model(self) -> str | None:
        """The name of the model, requested from the server if none was given. None: the server lists none."""
        with self._lock:
            if self._model is None:
                self._model = self._only_model()
        return self._model or None

    def __call__(self, prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
        """Return the log-probability of each answer after its prompt."""
        _ = self.model  # requested once, before there are threads
        pairs = list(zip(prompts, answers, strict=True))
        with ThreadPoolExecutor(max(1, min(self.parallel, len(pairs)))) as pool:
            replies = [pool.submit(self.log_probability, *pair) for pair in pairs]
            try:
                return [reply.result() for reply in replies]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def log_probability(self, prompt: str, answer: str) -> float:
        """Return the sum over the tokens of one answer."""
        number = self._summed(prompt, answer) if prompt else None
        if number is None:
            number = self._summed(self.start + prompt, answer)
        if number is None:
            raise NotOffered(
                f"the server returns no log-probability for {shown(answer)} after {shown(prompt)}, not even with start="
                f"{shown(self.start)} before it: give CompletionServer(start=…) the start token of its model, such as "
                "'<s>' or '<|endoftext|>'."
            )
        return number

    def _summed(self, prompt: str, answer: str) -> float | None:
        """Return the sum over the answer's tokens; None where one begins the text, and has no log-probability."""
        text = prompt + answer
        numbers, starts = _tokens_of(self._completion({"prompt": text, "echo": True, "logprobs": 1}), text)
        ends = [*starts[1:], len(text)]
        # A token that holds the end of the prompt and the start of the answer is the answer's. Pieces of one character
        # have no length of their own; what the server generated begins where the text ends.
        counted = [
            number
            for number, start, end in zip(numbers, starts, ends, strict=True)
            if (start >= len(prompt) or end > len(prompt)) and start < len(text)
        ]
        if not counted or any(number is None for number in counted):
            return None
        return math.fsum(number for number in counted if number is not None)

    @checked
    def generate(self, prompt: str, max_tokens: Count = 16) -> str:
        """Return what the model generates greedily."""
        text = self._completion({"prompt": prompt or self.start}, max_tokens).get("text")
        if not isinstance(text, str):
            raise ModelFailed(f"{self.url} replied without a text: it does not support OpenAI's /v1/completions.")
        return text

    # Requests

    def _completion(self, question: dict[str, Any], max_tokens: int | None = None) -> dict[str, Any]:
        """Return the first choice of the reply."""
        body = {"max_tokens": self._least if max_tokens is None else max_tokens, "temperature": 0, **question}
        if self.model is not None:
            body["model"] = self.model
        try:
            reply = self._reply("/v1/completions", body)
        except _Refused as refusal:
            if refusal.status in {400, 422} and "max_tokens" in str(refusal) and not body["max_tokens"]:
                self._least = 1  # the generated token is ignored
                return self._completion(question)
            raise self._explained(refusal) from None
        choices = reply.get("choices") if isinstance(reply, dict) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise ModelFailed(f"{self.url} replied without choices: it does not support OpenAI's /v1/completions.")
        return choices[0]

    def _only_model(self) -> str:
        try:
            listing = self._reply("/v1/models", None)
        except _Refused as refusal:
            if refusal.status == 404:  # a server that has no list: it may have one model without a name
                return ""
            raise self._explained(refusal) from None
        data = listing.get("data") if isinstance(listing, dict) else None
        names = [str(m["id"]) for m in data or [] if isinstance(m, dict) and "id" in m]
        if len(names) > 1:
            raise BadInput(
                f"{self.url} has {len(names)} models: name one, CompletionServer(url, model=…): "
                f"{', '.join(names[:20])}{', …' if len(names) > 20 else ''}."
            )
        return names[0] if names else ""

    def _explained(self, refusal: _Refused) -> WhyformerError:
        said = f"{self.url} refused the request ({refusal})."
        if refusal.status in {401, 403}:
            return BadInput(f"{said} Give its key, CompletionServer(url, key=…).")
        if refusal.status == 404:
            return BadInput(f"{said} Check the address, and that it has model={self._model!r} (GET /v1/models).")
        if 300 <= refusal.status < 400:
            return BadInput(f"{said} It redirects to another address: give that one as url.")
        if any(word in str(refusal) for word in ("echo", "logprobs")):
            return NotOffered(f"{said} {NEEDED}")
        return ModelFailed(said)

    def _reply(self, path: str, body: dict[str, Any] | None) -> Any:
        """Return the server's reply; a busy server is tried again, after a growing pause."""
        headers = {"Content-Type": "application/json", "Accept": "application/json"}
        if self._key is not None:
            headers["Authorization"] = f"Bearer {self._key}"
        data = None if body is None else json.dumps(body).encode()
        for left in reversed(range(self.retries + 1)):
            pause = min(LONGEST_PAUSE, PAUSE * 2 ** (self.retries - left))
            with self._lock:
                self.requests += 1
            try:
                with self._opener.open(Request(self.url + path, data, headers), timeout=self.timeout) as reply:
                    return json.loads(reply.read())
            except HTTPError as error:
                refusal = _Refused(error)
                if refusal.status not in BUSY:
                    raise refusal from None
                trouble, pause = str(refusal), min(LONGEST_PAUSE, refusal.pause or pause)
            except (URLError, HTTPException, OSError) as error:
                reason = getattr(error, "reason", error)
                trouble = f"{type(reason).__name__}: {reason}" if isinstance(reason, Exception) else str(reason)
                if isinstance(reason, NOT_THERE):
                    raise ModelFailed(
                        f"no server was reached at {self.url} ({trouble}): start it, or correct the url."
                    ) from error
            except ValueError as error:
                raise ModelFailed(f"{self.url}{path} replied with something that is not JSON: {error}.") from error
            if left:
                time.sleep(pause)
        raise ModelFailed(
            f"{self.url} did not answer in {self.retries + 1} tries ({trouble}). Check that it is running and not "
            "overloaded; see timeout=, parallel= and retries= of CompletionServer."
        )


def _host(url: str) -> str:
    """Return the host of an address; raise if it is not a usable one."""
    try:
        address = urlsplit(url)
        host, port = address.hostname, address.port
    except ValueError:  # half a bracket, a port beyond all ports
        address, host, port = urlsplit(""), None, None
    if address.username is not None:
        raise BadInput("url contains a user name: give the address alone, and the credentials as key=.")
    plain = url.isascii() and url.isprintable() and " " not in url and port != 0
    if address.scheme not in {"http", "https"} or not host or not plain:
        raise BadInput(f"url={shown(url)} is not the address of a server: give one such as 'http://localhost:8000'.")
    return host


class _Stays(HTTPRedirectHandler):
    """Follows no redirect: the key is for this server only."""

    def redirect_request(self, *request: Any) -> None:  # type: ignore[override]
        return None


class _Refused(Exception):
    """A reply with another status than 200, with the server's message."""

    def __init__(self, error: HTTPError) -> None:
        self.status = error.code
        after = error.headers.get("Retry-After", "") if error.headers else ""
        self.pause = float(after) if after.strip().isdigit() else None
        with error:
            said = " ".join(error.read(4000).decode("utf-8", "replace").split())
        super().__init__(f"HTTP {error.code}: {said[:300] or error.reason}")


def _tokens_of(choice: dict[str, Any], text: str) -> tuple[list[float | None], list[int]]:
    """Return the log-probabilities of a reply's tokens, and where in the text each begins."""
    facts = choice.get("logprobs")
    facts = facts if isinstance(facts, dict) else {}
    tokens, numbers = facts.get("tokens"), facts.get("token_logprobs")
    if not isinstance(tokens, list) or not isinstance(numbers, list) or len(tokens) != len(numbers):
        raise NotOffered(f"the server's reply has no log-probabilities of tokens. {NEEDED}")
    if text not in str(choice.get("text")):
        raise NotOffered(f"the server's reply does not repeat the text that was sent. {NEEDED}")
    # The server's own offsets are not read: those of vLLM are off by the start tokens.
    starts = _aligned(text, [str(token) for token in tokens])
    if starts is None:
        raise NotOffered(f"the tokens of the server's reply do not spell the text that was sent. {NEEDED}")
    return numbers, starts


def _aligned(text: str, tokens: list[str]) -> list[int] | None:
    """Return where each token begins, found by matching in order; None where they do not spell the text."""
    # Tokens that are not in the text (a start token, the bytes of a character) have no length; the space before a word
    # may be missing in its token.
    starts, at, unread = [], 0, 0
    for token in tokens:
        word = token.strip()
        skipped = len(text) - at - len(text[at:].lstrip())
        if token and text.startswith(token, at):
            starts.append(at)
            at, unread = at + len(token), 0
        elif word and text.startswith(word, at + skipped):
            starts.append(at)
            at, unread = at + skipped + len(word), 0
        elif unread and token and 0 <= (place := text.find(token, at, at + unread + len(token))):
            starts.append(place)  # behind a character of as many bytes at most
            at, unread = place + len(token), 0
        else:
            starts.append(at)
            unread += 1
    return starts if len(text) - at <= unread else None
