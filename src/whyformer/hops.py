"""Hops: relevance of an answer on its thoughts and tool messages, handed on to what produced them.

An answer is explained as a whole: scores R over all tokens before its last. Then every span in between (through=), the
latest first, hands on what it received:

    S   = Σ_{t in span} R_t,   r_t = R_t sign(S) / Σ_{t in span} |R_t|
    w_t = EVEN / |span| + (1 - EVEN) v_t / Σ_{t in span} |v_t|,   v = r
    e_i = max(0, explanation of |span| Σ_{t in span} w_t log(p_t / (1 - p_t))),  p_t = p(t | tokens before t)
    R_t = 0 in the span, then R_i += S e_i / Σ_{j before the span} e_j for i before it

e is by the same method. Tokens of a thought rest on each other: a token that mattered for the answer may be copied from
an earlier one of the span. That is why a span is explained as a whole, with an even share of the weight on all of its
tokens, and why what it hands to itself is divided like the rest: the sum of R stays, and the span keeps nothing.
Log-odds rather than log-probabilities: gradients of log p are (1 - p) times those of log-odds, so that words the model
hesitated about would outweigh facts it copied. Of methods with a sign, only tokens that speak for the span receive a
part: with others, shares of a sum near zero would be arbitrarily large.

A further hop begins again with the scores of the answer, and v = r + e / Σ_j e_j, with e of the hop before: tokens of
the span that produced others get more weight. The last hop is the result. EVEN was chosen by bench/hops.py (commit
9ab9d411), on other seeds than those that it reports.

FlashTrace (Pan et al. 2026, arXiv:2602.01914) also explains a span in one pass, for one attention-based method.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np

from whyformer.choices import answers
from whyformer.errors import BadInput, NotOffered, shown
from whyformer.inputs.decoding import THOUGHT, Decoding, KeptPass, Stretch, found_in
from whyformer.inputs.exchanges import ANSWER, Exchange, continuation_of, exchanges_of
from whyformer.inputs.modalities import Source
from whyformer.inputs.tokens import require_next_token
from whyformer.inputs.units import Span, by_segments, members, pick
from whyformer.options import Request
from whyformer.registry import AUTO, get_method
from whyformer.results.types import Cost, Explanation, Explanations, Hop
from whyformer.shapes import Array

WISHES = "through= and hops= are"
EXCLUDED = {"target": None, "choices": None, "one_pass": False}  # that explain something else than a whole answer
FIRST = "first_token_share"
EVEN = 0.8  # the share of a span's weight that its tokens receive alike


@dataclass(frozen=True)
class Route:
    """An answer and the spans before it, the earliest first, as stretches of tokens."""

    exchange: Exchange
    answer: Stretch
    spans: tuple[Stretch, ...]

    def chars(self, stretch: Stretch) -> Span:
        """Return the characters of a stretch."""
        tokens = self.tokens[stretch.first : stretch.stop]
        return min(start for start, _ in tokens), max(end for _, end in tokens)

    @cached_property
    def tokens(self) -> list[Span]:
        """The characters of each token."""
        assert self.exchange.spans is not None
        return [(span.start, span.end) for span in self.exchange.spans]

    def text(self, stretch: Stretch) -> str:
        start, end = self.chars(stretch)
        assert self.exchange.text is not None
        return self.exchange.text[start:end].strip()


def explained_through(explain: Callable[[Any, Request], Any], source: Source, request: Request) -> dict[Any, Any]:
    """Explain answers through the spans before them, by method; explain: ``CoreExplainer.answer``."""
    if request.through is None:
        raise BadInput(
            f"hops={request.hops} is for through=: name the spans that the answer's relevance passes through."
        )
    for other, nothing in EXCLUDED.items():
        if getattr(request, other) != nothing:
            raise BadInput(f"through= explains a whole answer: omit {other}=.")
    if source.modality.read.opaque:
        raise NotOffered(f"{WISHES} for models that run here: a server's tokens cannot be explained one by one.")
    names = [get_method(name).name if request.by_method and name else name for name in request.methods]
    options_of = dict.fromkeys(names, request.rest)
    if len(names) > 1:
        known = {name: get_method(name or AUTO) for name in names}
        if unknown := request.rest.keys() - {option for m in known.values() for option in m.options}:
            get_method(names[0] or AUTO).checked({name: request.rest[name] for name in unknown})  # raises
        options_of = {name: {k: v for k, v in request.rest.items() if k in m.options} for name, m in known.items()}
    of_methods: dict[str | None, list[Explanation]] = {name: [] for name in names}
    for row in range(source.size):
        one = replace(source, size=1, single=True)
        one = replace(one, raw=source.raw[row : row + 1]) if source.raw else one
        one = replace(one, whole=one.batch() if source.whole is None else source.whole.select([row]))  # encoded once
        route = _route(one, request)
        for name in names:
            asked = replace(request.by(name, options_of[name]), through=None, hops=1, generate=None)
            of_methods[name].append(
                _passed_on(StretchExplainer(explain, one, route, asked, request.hops), request.hops)
            )
    return {name: each[0] if source.single else Explanations(each) for name, each in of_methods.items()}


def _route(source: Source, request: Request) -> Route:
    """Find the answer and the spans before it."""
    modality, through, span = source.modality, request.through, request.span
    decoding = Decoding(request.generate, seed=request.seed)
    batch = source.batch()
    require_next_token(modality.mean, batch, WISHES)
    batch = replace(batch, asked=source.asking(decoding=decoding).asked)
    if decoding.generate is None and not any(isinstance(raw, tuple) for raw in batch.raw):
        raise BadInput(
            "through= explains an answer: give (prompt, answer), a chat that ends with the assistant's "
            "message, or generate= to generate it."
        )
    exchange = exchanges_of(modality.read, batch)[0]
    if exchange.text is None or exchange.spans is None:
        raise NotOffered(
            "through= names parts of a text, and the positions of its tokens are not known: give a text (not tensors) "
            "with a fast tokenizer."
        )
    text, begin = exchange.text, exchange.begin
    tokens, roles = [(one.start, one.end) for one in exchange.spans], exchange.role or []
    reached = found_in(text, begin, roles, tokens, through)
    if span is False:  # what follows the last of them, or the whole answer
        behind = max((end for _, end in reached if end > begin), default=begin)
        rest = text[behind:]
        if not rest.strip():
            raise BadInput(f"{shown(text[-40:])}: there is no answer after the last of the spans that through= names.")
        start = behind + len(rest) - len(rest.lstrip())
        span = True if behind == begin else (start - begin, start - begin + len(rest.strip()))
    said = continuation_of(modality.read, exchange, span)
    answer = Stretch(exchange, said.start + 1, said.start + 1 + len(said.tokens))
    spans = []
    for start, end in reached:
        inside = [
            i for i, (a, b) in enumerate(tokens) if a < end and b > start and i
        ]  # the first token follows nothing
        if not inside:
            raise BadInput(f"through: there is no token in characters {start} to {end}, {shown(text[start:end])}.")
        stretch = Stretch(exchange, inside[0], inside[-1] + 1)
        if stretch.stop < answer.stop:
            spans.append(stretch)
        elif through != "thoughts":
            raise BadInput(
                f"through: {shown(text[start:end])} (characters {start} to {end}) is not before the explained answer "
                f"{shown(said.text)}."
            )
    if not spans:
        raise BadInput(f"through={shown(through)}: every thought is part of the explained answer or after it.")
    if request.hops:  # shown by voices of their own
        roles = [
            THOUGHT if role == ANSWER and any(s.first <= i < s.stop for s in spans) else role
            for i, role in enumerate(roles)
        ]
        exchange = replace(exchange, role=roles or None)
        spans = [replace(stretch, exchange=exchange) for stretch in spans]
    return Route(exchange, replace(answer, exchange=exchange), tuple(spans))


class StretchExplainer:
    """One method on one input: explains stretches of its text, over units that are numbered as those of the answer."""

    def __init__(
        self, explain: Callable[[Any, Request], Any], source: Source, route: Route, asked: Request, hops: int
    ) -> None:
        self.explain, self.source, self.route, self.asked, self.units = explain, source, route, asked, asked.units
        name = asked.methods[0] or AUTO
        if name == AUTO:
            name = answers(source.modality.kind, 1, asked.passes)[0][0]
        # Methods that mask, mask units as a whole. Others score tokens, which are added up at the end.
        self.grouped = self.units != "token" and get_method(name).needs <= {"perturbation"}
        self.ranges: list[Span] | None = None
        if (
            self.grouped and isinstance(self.units, Sequence) and not isinstance(self.units, str)
        ):  # the spans are scored, too
            apart = [s for s in map(route.chars, route.spans) if all(s[1] <= a or b <= s[0] for a, b in self.units)]
            self.ranges = [*self.units, *apart]
        self.text_pass: KeptPass | None = None  # one forward for all stretches, if a method takes one and a backward
        if hops and not self.grouped and get_method(name).cost(1) == (1, 1):
            stretches = (*route.spans, route.answer)
            places = {i - 1 for stretch in stretches for i in range(stretch.first, stretch.stop)}
            self.text_pass = KeptPass(route.answer.stop - 1, tuple(sorted(places)), left=1 + hops * len(route.spans))

    def explained(self, stretch: Stretch, request: Request) -> tuple[list[int], Explanation]:
        """Return an explanation of a stretch, and the numbers of its units."""
        if self.text_pass is not None:
            self.text_pass.left -= 1
            stretch = replace(stretch, text_pass=self.text_pass)
        chosen: Any = self.units if self.grouped else "token"
        numbers: list[int] = []
        if self.ranges is not None:  # those that begin before the stretch ends
            read = self.route.tokens[: stretch.stop - 1]
            numbers = [i for i, group in enumerate(members(read, self.ranges)) if group]
            last = max(end for _, end in read)
            chosen = [(self.ranges[i][0], min(self.ranges[i][1], last)) for i in numbers]
        explanation = self.explain(self.source, replace(request, span=stretch, units=chosen))
        return numbers or list(range(len(explanation.scores))), explanation

    def divided(self, result: Explanation) -> Explanation:
        """Return the result over the units that were asked for."""
        if self.units == "token" or (self.grouped and self.ranges is None):
            return result
        if self.grouped:
            groups: Any = [[i] for i in range(len(self.units))]
            chosen = pick(result.units, list(range(len(self.units))))
        else:
            by = self.source.asking(segments=self.units).asked.segments
            divided = self.source.modality.place.divided(result.units, by, {"whole": self.route.exchange.text})
            assert divided is not None
            groups, chosen = divided
        hops = []
        for hop in result.hops or ():
            scores = np.array([hop.scores[list(group)].sum() for group in groups], dtype=np.float32)
            hops.append(replace(hop, scores=scores))
        return by_segments(result, groups, chosen).replace(hops=tuple(hops))


def _passed_on(explaining: StretchExplainer, hops: int) -> Explanation:
    """Explain the answer, and hand on what the spans received."""
    route, asked = explaining.route, explaining.asked
    all_numbers, direct = explaining.explained(route.answer, asked)
    place_of = {number: place for place, number in enumerate(all_numbers)}
    options = {} if asked.methods[0] in (None, AUTO) else asked.rest
    same = replace(asked.by(direct.method, options), scalar="logit", keep_layers=False, passes=None)
    tokens_of = [[i] for i in range(len(direct.scores))]
    if explaining.grouped:
        tokens_of = members(route.tokens[: route.answer.stop - 1], direct.units.spans or ())
    direct_U, costs, warnings = direct.scores.astype(np.float64), [direct.cost], list(direct.warnings)
    made = [Hop(0, route.chars(route.answer), route.text(route.answer), float(direct_U.sum()), direct.scores)]
    relevance_U, returned = direct_U, [np.zeros_like(direct_U) for _ in route.spans]
    for hop in range(1, hops + 1):
        relevance_U = direct_U.copy()
        for index, stretch in reversed(list(enumerate(route.spans))):
            inside = _inside(stretch, tokens_of)
            holding = list(inside)
            handed, text = float(relevance_U[holding].sum()), route.text(stretch)
            if not handed:
                continue
            length = stretch.stop - stretch.first
            weights_T = _weights(relevance_U * np.sign(handed), inside, length, returned[index])
            numbers, result = explaining.explained(replace(stretch, weights=tuple(weights_T.tolist())), same)
            costs.append(result.cost)
            speaking_U = np.zeros_like(direct_U)
            speaking_U[[place_of[number] for number in numbers]] = np.maximum(result.scores, 0)
            before_U = speaking_U.copy()
            before_U[holding] = 0
            if not before_U.any():
                warnings.append(f"no token before {shown(text)} speaks for it: its relevance stays there.")
                continue
            returned[index] = speaking_U / speaking_U.sum()
            received_U = handed * before_U / before_U.sum()
            relevance_U[holding] = 0
            relevance_U += received_U
            made.append(Hop(hop, route.chars(stretch), text, handed, received_U.astype(np.float32)))
    checks, changed = dict(direct.checks), dict[str, Any]()
    if len(made) > 1:  # what belongs to the scores of the answer alone
        changed = dict.fromkeys(("matrix", "layers", "detail", "errors", "interactions", "base"))
        changed["scores"] = relevance_U.astype(np.float32)
        if FIRST in checks and relevance_U[0]:
            checks[FIRST] = float(abs(relevance_U[0]) / np.abs(relevance_U).sum())
    changed |= {"hops": tuple(made), "checks": checks, "cost": Cost.of_all(costs)}
    return explaining.divided(direct.replace(**changed, warnings=tuple(dict.fromkeys(warnings))))


def _inside(stretch: Stretch, tokens_of: Sequence[Sequence[int]]) -> dict[int, list[int]]:
    """Return the units of a span, by number, each with the span's tokens in it. Most of a unit's tokens are in it."""
    units, span = {}, range(stretch.first, stretch.stop)
    for unit, tokens in enumerate(tokens_of):
        inside = [i - stretch.first for i in tokens if i in span]
        if 2 * len(inside) > len(tokens):
            units[unit] = inside
    return units


def _weights(relevance_U: Array, inside: dict[int, list[int]], length: int, returned_U: Array) -> Array:
    """(T,) weights of a span's tokens; a unit's relevance is divided evenly among them. returned: e of the last hop."""
    value_U = relevance_U / np.abs(relevance_U[list(inside)]).sum() + returned_U
    value_T = np.zeros(length)
    for unit, tokens in inside.items():
        value_T[tokens] += value_U[unit] / len(tokens)
    weights_T: Array = EVEN + (1 - EVEN) * length * value_T / np.abs(value_T).sum()
    return weights_T
