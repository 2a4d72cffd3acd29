"""A server on this machine, with completions whose log-probabilities are known and chats whose shares are."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

ANSWER, ELSE = " Paris", -1.5  # the token whose log-probability the words before it decide; that of all others
FLOOR = -6.0
WEIGHTS = {"France": 2.0, "capital": 1.0, "Berlin": -1.0, "river": 0.25}  # what each word adds to it, once
BEGIN = "<s>"


def tokens_of(text: str) -> list[str]:
    return re.findall(r" ?\w+|.", text, re.DOTALL)


def log_probability(token: str, before: list[str]) -> float:
    if token != ANSWER:
        return ELSE
    words = {word.strip() for word in before}
    return FLOOR + sum(weight for word, weight in WEIGHTS.items() if word in words)


def known(prompt: str, answer: str) -> float:
    """The log-probability of an answer, where it begins with a token of its own."""
    before = tokens_of(prompt)
    return sum(log_probability(t, before + tokens_of(answer)[:i]) for i, t in enumerate(tokens_of(answer)))


@dataclass
class Server:
    """How it answers, and what it was asked."""

    models: tuple[str, ...] = ("tiny",)
    least: int = 0  # fewer tokens than this it does not generate
    begins: bool = False  # as vLLM: a token begins every text, and offsets count its letters
    sentencepiece: bool = False  # tokens without the space before them
    echoes: bool = True
    with_logprobs: bool = True
    key: str | None = None
    failing: list[int] = field(default_factory=list)  # statuses of the next replies
    headers: dict[str, str] = field(default_factory=dict)
    dropping: int = 0  # so many connections are lost
    raw: bytes | None = None  # sent in place of any reply
    bodies: list[dict[str, Any]] = field(default_factory=list)
    at_once: int = 0  # requests that were answered at the same time
    gate: threading.Barrier | None = None  # opens for as many requests as have to be there at the same time
    chances: dict[str, float] = field(default_factory=dict)  # word → what it adds to the chance of ``says``
    says: str = "It is Paris."
    otherwise: str | None = "I do not know."
    several: bool = True  # as many answers as "n" names
    refuses: tuple[str, ...] = ()  # fields of a chat's request
    finish: str = "stop"
    usage: bool = True
    answered: dict[str, int] = field(default_factory=dict)  # prompt of a chat → answers so far
    url: str = ""

    @property
    def texts(self) -> list[str]:
        return [body["prompt"] for body in self.bodies]

    def chance(self, prompt: str) -> float:
        return sum(chance for word, chance in self.chances.items() if word in prompt)

    def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Answers whose share is the chance, as exactly as their number allows, whatever the order of requests."""
        prompt, choices = body["messages"][-1]["content"], []
        for number in range(body.get("n", 1) if self.several else 1):
            before = self.answered.get(prompt, 0)
            right = int((before + 1) * self.chance(prompt) + 1e-9) > int(before * self.chance(prompt) + 1e-9)
            self.answered[prompt] = before + 1
            message = {"role": "assistant", "content": self.says if right else self.otherwise}
            choices.append({"index": number, "message": message, "finish_reason": self.finish, "logprobs": None})
        counted = {"usage": {"prompt_tokens": 7, "completion_tokens": 3 * len(choices)}} if self.usage else {}
        return {"choices": choices, **counted}

    def completion(self, body: dict[str, Any]) -> dict[str, Any]:
        sent = tokens_of(body["prompt"])
        generated = [ANSWER, *["."] * 20][: max(body["max_tokens"], 0)]
        tokens = (sent if self.echoes and body.get("echo") else []) + generated
        context = len(tokens) - len(generated)
        numbers = [log_probability(t, (sent + generated)[:i] if context else sent) for i, t in enumerate(tokens)]
        text = "".join(tokens)
        if self.begins and context:
            tokens, numbers = [BEGIN, *tokens], [None, *numbers]  # type: ignore[list-item]
        elif context:
            numbers = [None, *numbers[1:]]  # type: ignore[list-item]
        if self.sentencepiece:
            tokens = [token.strip() or token for token in tokens]
        offsets = [sum(map(len, tokens[:i])) for i in range(len(tokens))]
        facts = {"tokens": tokens, "token_logprobs": numbers, "text_offset": offsets}
        asked = self.with_logprobs and body.get("logprobs") is not None
        return {"choices": [{"index": 0, "text": text, "logprobs": facts if asked else None}]}


@contextmanager
def serving(server: Server) -> Iterator[Server]:
    """The server on a port of its own, for as long as it is needed."""
    lock, busy = threading.Lock(), 0

    class Handler(BaseHTTPRequestHandler):
        def reply(self, status: int, content: Any) -> None:
            data = server.raw if server.raw is not None and status == 200 else json.dumps(content).encode()
            self.send_response(status)
            for name, value in {"Content-Length": str(len(data)), **server.headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(data)

        def do_GET(self) -> None:
            if self.path == "/v1/models" and server.models:
                self.reply(200, {"data": [{"id": name} for name in server.models]})
            else:
                self.reply(404, {"error": "not found"})

        def do_POST(self) -> None:
            nonlocal busy
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                busy += 1
                server.at_once = max(server.at_once, busy)
                drops, server.dropping = server.dropping > 0, server.dropping - 1
                status = server.failing.pop(0) if server.failing else 200
                server.bodies += [body] * (status == 200 and not drops)
            try:
                if server.gate is not None:
                    server.gate.wait(120)
            finally:  # before the reply: the client may send its next request as soon as it has one
                with lock:
                    busy -= 1
            if drops:
                self.close_connection = True
            elif server.key is not None and self.headers.get("Authorization") != f"Bearer {server.key}":
                self.reply(401, {"error": "no such key"})
            elif status != 200:
                asked = self.headers.get("Authorization")  # some servers repeat what they were sent
                self.reply(status, {"error": f"status {status} for {asked} at {self.headers['Host']}"})
            elif refused := [name for name in server.refuses if name in body]:
                self.reply(400, {"error": f"Unsupported parameter: '{refused[0]}' is not supported with this model."})
            elif self.path == "/v1/chat/completions":
                with lock:
                    content = server.chat(body)
                self.reply(200, content)
            elif body["max_tokens"] < server.least:
                self.reply(400, {"error": f"max_tokens must be at least {server.least}"})
            else:
                self.reply(200, server.completion(body))

        def log_message(self, *args: object) -> None: ...

    class Listening(ThreadingHTTPServer):
        request_queue_size = 64  # with fewer, connections at the same time wait a second

    with Listening(("127.0.0.1", 0), Handler) as http:
        server.url = f"http://127.0.0.1:{http.server_address[1]}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()
