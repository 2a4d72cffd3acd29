"""A client of completions servers (vLLM and others with OpenAI's /v1/completions) that returns log-probabilities."""

from __future__ import annotations

import hashlib
import logging
import math
import re
import unicodedata
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Annotated, Any

from whyformer.errors import BadInput, ModelFailed, NotOffered, WhyformerError, shown
from whyformer.inputs.connection import Connection, Refused
from whyformer.inputs.decoding import without_thoughts
from whyformer.inputs.units import sentences
from whyformer.parameters import Count, Limits, NotEmpty, OneOf, checked

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


# A client of chat servers without log-probabilities: the value of an answer is its share among sampled answers.


log = logging.getLogger("whyformer.inputs.completions")

Match = Callable[[str, str], float]  # given answer, sampled answer → from 0 (another answer) to 1 (the same)
NEVER = -100.0  # the log-probability of an answer that was not sampled
CHARACTERS = 4  # per token, in the estimate of a budget
ARTICLES = {"a", "an", "the"}


def words_of(text: str) -> list[str]:
    """Return the words of an answer in lower case, without punctuation and English articles."""
    plain = unicodedata.normalize("NFKC", text).lower()
    return [word for word in re.findall(r"[^\W_]+", plain) if word not in ARTICLES]


def exact(said: str, sampled: str) -> float:
    """Return 1 if both answers have the same words in the same order."""
    return float(words_of(said) == words_of(sampled))


def f1(said: str, sampled: str) -> float:
    """Return the F1 score of the words that two answers share (as for SQuAD)."""
    first, second = Counter(words_of(said)), Counter(words_of(sampled))
    if not first or not second:
        return float(first == second)
    return 2 * (first & second).total() / (first.total() + second.total())


MATCHES: dict[str, Match] = {"exact": exact, "f1": f1}


class ChatServer(Connection):
    """A chat model that returns text only: ``samples`` answers are sampled per prompt and compared with the given one.

    The value of an answer is the mean match of the sampled answers, a probability if every match is 0 or 1. match:
    "f1" (shared words), "exact" (same words), or a function (given, sampled) that returns 0 to 1; a sampled answer of
    several sentences counts by its best one. budget: the most answers of one explanation; more raise an error before
    any is sampled. system: a system message. max_tokens: of one answer. Others: as for CompletionServer. ``usage``:
    requests and tokens so far. Sampled answers are stored in this object: a call that failed or was interrupted goes
    on where it was.

    >>> server = wf.ChatServer("http://localhost:8000", samples=20)  # any server with OpenAI's /v1/chat/completions
    >>> documents = ["The capital of France is Paris.", "A cat sat on the mat."]
    >>> wf.cite(server, "What is the capital of France?", documents).show()
    """

    @checked
    def __init__(
        self,
        url: Annotated[str, NotEmpty()],
        model: str | None = None,
        *,
        samples: Annotated[int, Limits(2, 10_000)] = 10,
        match: Annotated[str, OneOf("f1", "exact")] | Callable[..., Any] = "f1",
        budget: Count = 1000,
        temperature: Annotated[float, Limits(0, 2, open_low=True)] = 1.0,
        max_tokens: Count = 256,
        system: str | None = None,
        key: str | None = None,
        timeout: Annotated[float, Limits(0, open_low=True)] = 60.0,
        parallel: Annotated[int, Limits(1, 1024)] = 8,
        retries: Annotated[int, Limits(0, 100)] = 4,
    ) -> None:
        super().__init__(url, model, key, timeout, parallel, retries)
        self.samples, self.match, self.budget = samples, match, budget
        self.temperature, self.max_tokens, self.system = temperature, max_tokens, system
        self.sampled: dict[bytes, list[str]] = {}  # answers, by a digest of their prompt
        self.cut_off = 0  # answers that were longer than max_tokens
        self._absent: set[str] = set()  # fields of a request that this server does not support
        self._identity = uuid.uuid4().hex

    @property
    def identity(self) -> str:
        """The key of its values in a cache, which are those of this object's samples."""
        return f"{super().identity} {self._identity}"

    def __call__(self, prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
        """Return the logarithm of the share of each answer among those that are sampled after its prompt."""
        self._sample(list(dict.fromkeys(prompts)))
        shares = [self.share(prompt, answer) for prompt, answer in zip(prompts, answers, strict=True)]
        return [math.log(share) if share > 0 else NEVER for share in shares]

    def share(self, prompt: str, answer: str) -> float:
        """Return the mean match of an answer with those that are sampled after a prompt."""
        self._sample([prompt])
        matches = [self._matched(answer, sampled) for sampled in self.sampled[_digest(prompt)][: self.samples]]
        return math.fsum(matches) / len(matches)

    @checked
    def generate(self, prompt: str, max_tokens: Count = 256) -> str:
        """Return one answer, at temperature 0 if the server supports that."""
        return self._answers(prompt, {"temperature": 0.0, "max_tokens": max_tokens})[0]

    def announce(self, contexts: float, characters: int) -> None:
        """Raise if an explanation needs more answers than ``budget``; log the number otherwise.

        contexts: the prompts that are sampled for, at most. characters: of the longest one.
        """
        answers = math.ceil(contexts) * self.samples
        read = answers * max(1, (characters + len(self.system or "")) // CHARACTERS)
        words = (
            f"up to {math.ceil(contexts):,} contexts × {self.samples} answers = {answers:,} answers (about {read:,} "
            f"prompt tokens, fewer if the server returns several answers per request; at most "
            f"{answers * self.max_tokens:,} generated tokens)"
        )
        if answers > self.budget:
            raise BadInput(
                f"this explanation needs {words}, and budget={self.budget:,}. Raise budget= of ChatServer, lower "
                "samples=, or use fewer, larger units (units='sentence')."
            )
        log.info("%s: %s", self.url, words)

    def summary(self) -> str:
        """Return what values are, and what they took so far, in a sentence."""
        name = self.match if isinstance(self.match, str) else getattr(self.match, "__name__", "a function")
        answers = [answer for several in self.sampled.values() for answer in several]
        faults = [(answers.count(""), "empty"), (self.cut_off, f"cut off at max_tokens={self.max_tokens}")]
        told = "".join(f", {count:,} of them {fault}" for count, fault in faults if count)
        return (
            f"each value is the mean match ({name}) of {self.samples} sampled answers with the given one. Sampled by "
            f"this ChatServer so far: {len(answers):,} answers{told}; {self.usage}."
        )

    def _matched(self, said: str, sampled: str) -> float:
        compare: Callable[..., Any] = MATCHES[self.match] if isinstance(self.match, str) else self.match
        spans = sentences(sampled)
        parts = [sampled, *(sampled[start:end] for start, end in spans if len(spans) > 1)]
        best = max(float(compare(said, part)) for part in parts)
        if not 0 <= best <= 1:
            raise BadInput(f"match returned {best:g} for {shown(said)} and {shown(sampled)}: return 0 to 1.")
        return best

    # Requests

    def _sample(self, prompts: list[str]) -> None:
        """Sample what is missing of the answers to these prompts."""
        while missing := [(p, self.samples - len(self.sampled.get(_digest(p), ()))) for p in prompts]:
            missing = [(prompt, count) for prompt, count in missing if count > 0]
            if not missing:
                return
            if "n" in self._absent:  # one answer per request
                missing = [(prompt, 1) for prompt, count in missing for _ in range(count)]
            self._each(lambda task: self._sample_one(*task), missing)

    def _sample_one(self, prompt: str, count: int) -> None:
        """Store the answers of one request."""
        answers = self._answers(prompt, {"temperature": self.temperature, "max_tokens": self.max_tokens, "n": count})
        with self._lock:
            if len(answers) < count:
                self._absent.add("n")  # the server ignores it
            self.sampled.setdefault(_digest(prompt), []).extend(answers)

    def _answers(self, prompt: str, settings: dict[str, Any]) -> list[str]:
        """Return the texts of one reply."""
        messages = [{"role": "system", "content": self.system}] if self.system else []
        body: dict[str, Any] = {"messages": [*messages, {"role": "user", "content": prompt}]}
        body |= {} if self.model is None else {"model": self.model}
        more = {name: value for name, value in settings.items() if name not in self._absent}
        if "max_tokens" in settings and "max_tokens" not in more:
            more["max_completion_tokens"] = settings["max_tokens"]
        try:
            reply = self._reply("/v1/chat/completions", body | more)
        except Refused as refusal:
            # Servers refuse fields that they do not know, or values of them, and name the field.
            refused = {name for name in ("n", "max_tokens", "temperature") if re.search(rf"\b{name}\b", str(refusal))}
            refused &= more.keys() - ({"temperature"} if self.temperature != 1 else set())  # a wish of the user
            if refusal.status in {400, 422} and refused:
                with self._lock:
                    self._absent.update(refused)
                return self._answers(prompt, settings)
            raise self._explained(refusal) from None
        choices = reply.get("choices") if isinstance(reply, dict) else None
        if not isinstance(choices, list) or not choices or not all(isinstance(choice, dict) for choice in choices):
            raise ModelFailed(f"{self.url} replied without choices: it does not support OpenAI's /v1/chat/completions.")
        with self._lock:
            self.cut_off += sum(choice.get("finish_reason") == "length" for choice in choices)
        return [_text(choice) for choice in choices]


def _digest(prompt: str) -> bytes:
    return hashlib.blake2b(prompt.encode("utf-8", "surrogatepass"), digest_size=16).digest()


def _text(choice: dict[str, Any]) -> str:
    """Return the text of a choice without thoughts; "" if it is empty, a refusal or a tool call."""
    message = choice.get("message")
    content = message.get("content") if isinstance(message, dict) else None
    if isinstance(content, list):  # parts
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return without_thoughts(content).strip() if isinstance(content, str) else ""
