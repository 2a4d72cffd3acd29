"""Citations of answers, computed one at a time from a bounded queue and within a time limit."""

from __future__ import annotations

import math
import re
import time
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from urllib.parse import urlsplit

from whyformer.errors import BadInput
from whyformer.inputs.completions import CompletionServer
from whyformer.language.citations import Citations, cite
from whyformer.proxy.chat import ChatRequest, question_of
from whyformer.serve.jobs import Busy, Jobs
from whyformer.serve.safety import LONGEST_TEXT

QUEUE = "citations"


@dataclass(eq=False)
class Citing:
    """Computes the field of replies. A failure is a field with an error; nothing is raised.

    model, processor: a local model; None: the log-probabilities of the server. seconds: for one field, the time in the
    queue included. waiting: requests in the queue; more are not explained.
    """

    server: str
    model: Any = None
    processor: Any = None
    name: str = ""  # of the local model
    method: str | None = None
    seconds: float = 30.0
    waiting: int = 8
    longest: int = LONGEST_TEXT
    jobs: Jobs = field(init=False)

    def __post_init__(self) -> None:
        self.server = CompletionServer(self.server).url  # raises if it is not the address of a server
        self.jobs = Jobs(self.waiting)

    async def added(self, request: ChatRequest, answer: str, key: str | None) -> dict[str, Any]:
        """Return the field of a reply; ``key``: the bearer token of the server."""
        try:
            if not answer.strip():
                raise BadInput("the answer has no text.")
            question, documents = question_of(request)
            size = len(question) + len(answer) + sum(map(len, documents.values()))
            if size > self.longest:
                raise BadInput(f"question, documents and answer have {size} characters; the limit is {self.longest}.")
        except BadInput as error:
            return _error("unsupported", str(error))
        try:
            job = self.jobs.add(QUEUE, "cite", partial(self._cited, request, question, documents, answer, key))
        except Busy:
            return _error("busy", f"not explained: {self.waiting} answers are waiting for an explanation already.")
        try:
            if not await job.ended(self.seconds):
                return _error("time_limit", f"not explained within {self.seconds:g} seconds.")
        finally:
            self.jobs.cancel(job)
        if job.state == "done":
            return dict(job.answer)
        # Clients do not see the server's address, nor what it replied (``quoted`` below).
        words = job.error.replace(self.server, "the server")
        host = re.escape(urlsplit(self.server).hostname or "")
        return _error("failed", re.sub(rf"\b{host}\b(:\d+)?", "the server", words))

    def _cited(
        self, request: ChatRequest, question: str, documents: dict[str, str], answer: str, key: str | None
    ) -> dict[str, Any]:
        begun = time.monotonic()
        assert request.wanted is not None
        options: dict[str, Any] = {"top": request.wanted.top, "progress": False}
        if self.model is None:
            named = request.content.get("model")
            server = CompletionServer(self.server, named, key=key, timeout=self.seconds, retries=0)
            server.quoted = False
            # The prompt ends in "Answer:", and the first word of an answer has a space before it.
            found = cite(server, question, documents, answer=f" {answer}", method=self.method, **options)
            name, shift = server.model or "", 1
        else:
            found = cite(
                self.model,
                question,
                documents,
                processor=self.processor,
                answer=answer,
                method=self.method,
                **options,
            )
            name, shift = self.name, 0
        return plain(found, name, shift) | {"seconds": round(time.monotonic() - begun, 3)}


def plain(found: Citations, name: str, shift: int = 0) -> dict[str, Any]:
    """Return citations as the content of the field; ``shift``: characters before the answer."""
    sentences = [
        {
            "text": sentence.text,
            "start": start - shift,
            "end": end - shift,
            "log_probability": _number(sentence.log_probability),
            "influenced": sentence.influenced,
            "sources": [
                {
                    "document": c.document,
                    "text": c.text,
                    "score": _number(c.score),
                    "drop": _number(c.drop),
                    "cited": c.cited,
                }
                for c in sentence.citations
            ],
        }
        for sentence, (start, end) in zip(found.sentences, found.spans, strict=True)
    ]
    documents = [{"name": d.name, "score": _number(d.score), "drop": _number(d.drop)} for d in found.documents]
    facts = {"method": found.method, "model": name, "warnings": list(found.warnings)}
    return {"citations": sentences, "documents": documents, **facts}


def _number(value: float) -> float | None:
    return round(value, 6) if math.isfinite(value) else None


def _error(reason: str, words: str) -> dict[str, Any]:
    return {"error": words, "reason": reason}
