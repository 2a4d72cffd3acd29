"""What of a language model's text is explained: how its answer is made, stretches of tokens, thoughts, tool calls."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import TYPE_CHECKING, Any, TypeVar

from whyformer.errors import BadInput, NotOffered, shown

if TYPE_CHECKING:
    from torch import Tensor

Watching = TypeVar("Watching")


@dataclass(frozen=True)
class Decoding:
    """How a language model's answer is made and explained; the parameters of the same names of ``explain``."""

    generate: int | Mapping[str, Any] | None = None
    span: bool | str | tuple[int, int] | Stretch = False
    choices: tuple[str, ...] = ()
    one_pass: bool = False
    seed: int = field(default=0, compare=False)

    def __bool__(self) -> bool:
        return self.generate is not None or bool(self.span) or bool(self.choices) or self.one_pass


PLAIN = Decoding()


@dataclass(frozen=True)
class InputOptions:
    """What is asked of inputs besides the target."""

    decoding: Decoding = PLAIN
    segments: Any = "token"  # what is scored as one: tokens, words, sentences, or ranges of characters
    first_token: bool = True  # the first token of a language model's input has a score


PLAIN_OPTIONS = InputOptions()


@dataclass(eq=False)
class KeptPass:
    """One forward over a text, kept with its graph while several stretches of that text are explained."""

    length: int = 0  # tokens of the text that are run
    places: tuple[int, ...] = ()  # positions whose logits are computed
    left: int = 0  # stretches that are still to be explained
    seen_by: Any = None  # what watched the pass: an interceptor, or a trace
    logits_BPV: Tensor | None = None
    in_use: bool = False  # the model's next pass is this one

    @property
    def more(self) -> bool:
        """Whether another stretch follows, for which the graph has to stay."""
        return self.left > 0

    def seen(self, kind: type[Watching]) -> Watching | None:
        """Return what watched the pass, if it was kept by one of this kind."""
        return self.seen_by if isinstance(self.seen_by, kind) else None

    @contextmanager
    def used_by(self, watching: Any) -> Iterator[None]:
        """Around the pass: it is run and kept, or not run again where it was kept."""
        self.seen_by, self.in_use = watching, True
        try:
            yield
        except BaseException:
            self.forget()
            raise
        finally:
            self.in_use = False
            if not self.more:
                self.forget()

    def forget(self) -> None:
        """Free the graph."""
        self.seen_by = self.logits_BPV = None


@dataclass(frozen=True)
class Stretch:
    """Consecutive tokens of a prompt and its answer (an ``Exchange``), wherever they are, to explain as a whole."""

    exchange: Any
    first: int
    stop: int  # the token after the last
    weights: tuple[float, ...] = ()
    text_pass: KeptPass | None = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class Continuation:
    """Consecutive tokens that a language model predicts, from a position of its text on."""

    tokens: tuple[int, ...]
    start: int  # the position, among the real ones, at which the first of them is predicted
    text: str = ""
    weights: tuple[float, ...] = ()  # of the log-odds of the tokens; (): the sum of their log-probabilities
    text_pass: KeptPass | None = field(default=None, compare=False, repr=False)

    def moved(self, by: int) -> Continuation:
        """Return the same tokens, ``by`` positions later."""
        return replace(self, start=self.start + by)


Span = tuple[int, int]  # first character, and the one after the last
Part = tuple[int, int, str]  # the same, and the role

THOUGHTS = "thoughts"  # through="thoughts": whatever this module finds
THOUGHT, TOOL_CALL = "thought", "tool call"  # roles of what messages hold besides their content
FIELDS = {"reasoning_content": THOUGHT, "reasoning": THOUGHT, "thinking": THOUGHT, "tool_calls": TOOL_CALL}
ROLES = {THOUGHT, TOOL_CALL, "tool", "ipython", "function", "observation"}  # what chat templates call tool results
QUOTING = {"system", "developer", "user"}  # marks inside their messages are instructions, not thoughts
# How models mark thoughts, tool calls and tool results: first and last words.
MARKS = (
    *((f"<{name}>", f"</{name}>") for name in ("think", "thinking", "thought", "reasoning")),
    *((f"<{name}>", f"</{name}>") for name in ("tool_call", "tool_response", "tool_result")),
    ("[THINK]", "[/THINK]"),
    ("<|channel|>analysis<|message|>", "<|end|>"),
    ("<|START_THINKING|>", "<|END_THINKING|>"),
)
IMPLIED = MARKS[:4]  # a prompt may end with the first mark or leave it out: the answer then begins inside the thought


# In chats


def with_thoughts(
    text: str, parts: list[Part], messages: Sequence[Mapping[str, Any]], write: Callable[..., str]
) -> list[Part]:
    """Add reasoning and tool calls to the parts of a chat: what the template leaves out when a message has none.

    parts: the contents of the messages. write: the template.
    """
    spans = list(parts)
    for number, message in enumerate(messages):
        for name in FIELDS.keys() & {name for name, value in message.items() if value}:
            bare = {key: value for key, value in message.items() if key != name}
            try:
                without = write([*messages[:number], bare, *messages[number + 1 :]])
            except Exception:  # a template may refuse a message without it: then its place is not known
                continue
            start, end = _added(text, without)
            if start < end and all(b <= start or end <= a for a, b, _ in spans):
                spans.append((start, end, FIELDS[name]))
    return sorted(spans)


def _added(text: str, without: str) -> Span:
    """Return the characters of a text that another one lacks, without the space around them."""
    most = min(len(text), len(without))
    start = next((i for i in range(most) if text[i] != without[i]), most)
    same = next((i for i in range(most - start) if text[-1 - i] != without[-1 - i]), most - start)
    added = text[start : len(text) - same]
    return start + len(added) - len(added.lstrip()), start + len(added.rstrip())


def written_by(messages: Sequence[Mapping[str, Any]], said: str, prompt: str, write: Callable[..., str]) -> str:
    """Return what the last message adds to the prompt: its content, after its reasoning or before its tool calls."""
    last = messages[-1]
    held = [name for name in FIELDS if last.get(name)]
    if not held:
        return said
    try:
        whole = write(messages, add_generation_prompt=False)
    except Exception:  # a template that knows no such field
        whole = ""
    rest = whole.removeprefix(prompt) if whole.startswith(prompt) else ""
    reasons = [str(last[name]).strip() for name in held if FIELDS[name] == THOUGHT]
    calls = [str(call.get("function", call).get("name", "")) for call in last.get("tool_calls") or ()]
    if rest and all(part in rest for part in (*reasons, *calls, said.strip())):
        ends = not calls and bool(said.strip())
        return rest[: rest.rindex(said.strip()) + len(said.strip())] if ends else rest.rstrip()
    if "tool_calls" in held:
        raise NotOffered(
            "the tokenizer's chat template does not write the tool calls of the last message, so they cannot be "
            "explained. Give the prompt and the call as texts, (prompt, answer)."
        )
    return "".join(f"<think>\n{reason}\n</think>\n\n" for reason in reasons[:1]) + said


# In texts


def found_in(text: str, begin: int, roles: Sequence[str], tokens: Sequence[Span], through: Any) -> list[Span]:
    """Return the parts of a text that ``through`` names, in order. begin: where the answer begins.

    roles, tokens: the role and the characters of each token.
    """
    if through == THOUGHTS:
        quoted = _with_role(roles, tokens, QUOTING)
        marked = [s for s in _marked(text, begin) if not any(a <= s[0] and s[1] <= b for a, b in quoted)]
        spans = _apart([*_with_role(roles, tokens, ROLES), *marked])
        if not spans:
            raise BadInput(
                f'through="{THOUGHTS}": none was found. They are recognised between marks such as <think> and '
                "</think>, as reasoning_content or tool_calls of messages, and as messages of the role tool. Give "
                "their texts or character ranges, through=[…]."
            )
        return spans
    spans = []
    for number, one in enumerate([through] if isinstance(through, str) else through):
        if one == THOUGHTS:
            spans += found_in(text, begin, roles, tokens, THOUGHTS)
        elif isinstance(one, str):
            spans += _with_role(roles, tokens, {one}) if one in roles else [_place(text, begin, roles, one)]
        elif 0 <= one[0] < one[1] <= len(text):
            spans.append((int(one[0]), int(one[1])))
        else:
            raise BadInput(
                f"through[{number}] = {tuple(one)}: prompt and answer have {len(text)} characters, and a part of them "
                "is (start, end) with 0 <= start < end."
            )
    if len(_apart(spans)) < len(set(spans)):
        raise BadInput(f"through={shown(through)}: parts overlap. A character belongs to one part only.")
    return _apart(spans)


def without_thoughts(answer: str) -> str:
    """Return an answer without what is between marks of thoughts and tools."""
    for start, end in reversed(_apart(_marked(answer, 0))):
        answer = answer[:start] + answer[end:]
    return answer


def _apart(spans: Iterable[Span]) -> list[Span]:
    """Return spans in order, without those that overlap with one before them in the list."""
    shown: list[Span] = []
    for start, end in spans:
        if all(end <= a or b <= start for a, b in shown):
            shown.append((start, end))
    return sorted(shown)


def _with_role(roles: Sequence[str], tokens: Sequence[Span], wanted: set[str]) -> list[Span]:
    spans = []
    for role, places in groupby(range(len(tokens)), key=lambda i: roles[i] if i < len(roles) else ""):
        run = list(places)
        if role in wanted:
            spans.append((min(tokens[i][0] for i in run), max(tokens[i][1] for i in run)))
    return [span for span in spans if span[0] < span[1]]


def _marked(text: str, begin: int) -> list[Span]:
    """Return what is between marks, with the marks."""
    spans = []
    for first, last in MARKS:
        spans += [m.span() for m in re.finditer(f"{re.escape(first)}.*?{re.escape(last)}", text, re.DOTALL)]
        end = text.find(last, begin)
        if (first, last) in IMPLIED and end >= 0 and first not in text[:end]:
            spans.append((begin, end + len(last)))
    return spans


def _place(text: str, begin: int, roles: Sequence[str], part: str) -> Span:
    """Return the first place of a text in the answer, else its last place in the prompt."""
    start = text.find(part, begin)
    start = text.rfind(part) if start < 0 else start
    if start < 0:
        known = ", ".join(dict.fromkeys(roles)) or "none"
        raise BadInput(
            f"through={shown(part)}: neither prompt nor answer contain it, and it is not a role here ({known})."
        )
    return start, start + len(part)
