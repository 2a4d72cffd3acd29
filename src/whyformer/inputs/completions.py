"""A client of completions servers (vLLM and others with OpenAI's /v1/completions) that returns log-probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Annotated, Any

from whyformer.errors import ModelFailed, NotOffered, WhyformerError, shown
from whyformer.inputs.connection import Connection, Refused
from whyformer.parameters import Count, Limits, NotEmpty, checked

NEEDED = (
    "Explaining needs the log-probabilities of the tokens of the prompt, in the reply to POST /v1/completions with "
    '"echo": true and "logprobs": 1. vLLM returns them; if a server does not, explain sampled answers, '
    "wf.ChatServer(url), or the model locally."
)


class CompletionServer(Connection):
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
        super().__init__(url, model, key, timeout, parallel, retries)
        self.start = start
        self._least = 0  # tokens to generate: none, or one where a server wants that

    def __call__(self, prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
        """Return the log-probability of each answer after its prompt."""
        return self._each(lambda pair: self.log_probability(*pair), list(zip(prompts, answers, strict=True)))

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
        except Refused as refusal:
            if refusal.status in {400, 422} and "max_tokens" in str(refusal) and not body["max_tokens"]:
                self._least = 1  # the generated token is ignored
                return self._completion(question)
            raise self._explained(refusal) from None
        choices = reply.get("choices") if isinstance(reply, dict) else None
        if not isinstance(choices, list) or not choices or not isinstance(choices[0], dict):
            raise ModelFailed(f"{self.url} replied without choices: it does not support OpenAI's /v1/completions.")
        return choices[0]

    def _explained(self, refusal: Refused) -> WhyformerError:
        if refusal.status not in {401, 403, 404} and any(word in str(refusal) for word in ("echo", "logprobs")):
            return NotOffered(f"{self.url} refused the request ({self._words(refusal)}). {NEEDED}")
        return super()._explained(refusal)


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
