"""Hops: relevance of an answer on its thoughts and tool messages, handed on to what produced them.

An answer is explained as a whole: scores R over all tokens before its last. Then, hop by hop, every span in between
(through=), the latest first, hands on what it received:

    S   = Σ_{t in span} R_t
    e   = explanation of Σ_{t in span} w_t log p(t | tokens before t),  w_t = R_t · |span| / Σ_{t in span} |R_t|
    n_i = max(0, sign(S) e_i) / Σ_j max(0, sign(S) e_j)
    R_t = 0 in the span, then R_i += S n_i

e is by the same method, over all tokens before the span's last. Each token is explained as much as it mattered for the
answer; if all mattered equally, e is the explanation of the span by ``span=``. n sums to 1, so the sum of R stays. Of
methods with a sign, only tokens that speak for the span receive a part: with others, shares of a sum near zero would be
arbitrarily large. Relevance that a span hands to an earlier one is handed on in the same hop; what a token receives
from a later one of its own span waits for the next hop.

FlashTrace (Pan et al. 2026, arXiv:2602.01914) does this for one attention-based method without a sign.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered, shown
from whyformer.explanations import by_segments
from whyformer.inputs.batch import Decoding, Stretch
from whyformer.inputs.exchanges import ANSWER, Exchange, continuation_of, exchanges_of
from whyformer.inputs.language import require_next_token
from whyformer.inputs.modalities import Source
from whyformer.inputs.thoughts import THOUGHT, found_in
from whyformer.inputs.units import Span, members, pick
from whyformer.parameters import Named
from whyformer.registry import AUTO, PASSES, answers, get_method
from whyformer.results.types import ByMethod, Cost, Explanation, Explanations, Hop
from whyformer.shapes import Array

WISHES = "through= and hops= are"
EXCLUDED = {"target": None, "choices": None, "one_pass": False}  # that explain something else than a whole answer
FIRST = "first_token_share"


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

    @property
    def tokens(self) -> list[Span]:
        """The characters of each token."""
        assert self.exchange.spans is not None
        return [(span.start, span.end) for span in self.exchange.spans]

    def text(self, stretch: Stretch) -> str:
        start, end = self.chars(stretch)
        assert self.exchange.text is not None
        return self.exchange.text[start:end].strip()


def explained_through(
    explain: Callable[..., Any],
    source: Source,
    through: Any,
    hops: int,
    method: str | Sequence[str | Named] | None,
    asked: dict[str, Any],
    options: dict[str, Any],
) -> Any:
    """Explain answers through the spans before them, input by input; shaped as ``explain`` shapes results.

    explain: ``CoreExplainer.explain`` without checks of its arguments. asked: its parameters; options: the method's.
    """
    if through is None:
        raise BadInput(f"hops={hops} is for through=: name the spans that the answer's relevance passes through.")
    for other, nothing in EXCLUDED.items():
        if asked.pop(other) != nothing:
            raise BadInput(f"through= explains a whole answer: omit {other}=.")
    names: list[str | None] = (
        [method] if method is None or isinstance(method, str) else [get_method(m).name for m in method]
    )
    owned = {name: get_method(name or AUTO).options.keys() & options.keys() for name in names}
    if len(names) > 1 and (unknown := options.keys() - set().union(*owned.values())):
        get_method(names[0] or AUTO).checked({name: options[name] for name in unknown})  # raises
    of_methods: dict[Any, list[Explanation]] = {name: [] for name in names}
    span, generate = asked.pop("span"), asked.pop("generate")
    for row in range(source.size):
        one = replace(source, size=1, single=True)
        one = replace(one, raw=source.raw[row : row + 1]) if source.raw else one
        one = replace(one, whole=source.whole.select([row])) if source.whole is not None else one
        route = _route(one, through, hops, span, Decoding(generate, seed=asked["seed"]))
        for name in names:
            own = options if len(names) == 1 else {option: options[option] for option in owned[name]}
            of_methods[name].append(_passed_on(Explaining(explain, one, route, name, asked), hops, name, own))
    shaped = {name: each[0] if source.single else Explanations(each) for name, each in of_methods.items()}
    return shaped[method] if method is None or isinstance(method, str) else ByMethod(shaped)


def _route(source: Source, through: Any, hops: int, span: Any, decoding: Decoding) -> Route:
    """Find the answer and the spans before it."""
    modality = source.modality
    if modality.opaque:
        raise NotOffered(f"{WISHES} for models that run here: a server's tokens cannot be explained one by one.")
    batch = source.batch()
    require_next_token(modality, batch, WISHES)
    modality.ask(decoding, "token")
    if decoding.generate is None and not any(isinstance(raw, tuple) for raw in batch.raw):
        raise BadInput(
            "through= explains an answer: give (prompt, answer), a chat that ends with the assistant's "
            "message, or generate= to generate it."
        )
    exchange = exchanges_of(modality, batch)[0]
    if exchange.text is None or exchange.spans is None:
        raise NotOffered(
            "through= names parts of a text, and the positions of its tokens are not known: give a text (not tensors) "
            "with a fast tokenizer."
        )
    text, begin = exchange.text, exchange.begin
    tokens, roles = [(one.start, one.end) for one in exchange.spans], exchange.role or []
    found = found_in(text, begin, roles, tokens, through)
    if span is False:  # what follows the last of them, or the whole answer
        behind = max((end for _, end in found if end > begin), default=begin)
        rest = text[behind:]
        if not rest.strip():
            raise BadInput(f"{shown(text[-40:])}: there is no answer after the last of the spans that through= names.")
        start = behind + len(rest) - len(rest.lstrip())
        span = True if behind == begin else (start - begin, start - begin + len(rest.strip()))
    said = continuation_of(modality, exchange, span)
    answer = Stretch(exchange, said.start + 1, said.start + 1 + len(said.tokens))
    spans = []
    for start, end in found:
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
    if hops:  # shown by voices of their own
        roles = [
            THOUGHT if role == ANSWER and any(s.first <= i < s.stop for s in spans) else role
            for i, role in enumerate(roles)
        ]
        exchange = replace(exchange, role=roles or None)
        spans = [replace(stretch, exchange=exchange) for stretch in spans]
    return Route(exchange, replace(answer, exchange=exchange), tuple(spans))


class Explaining:
    """One method on one input: explains stretches of its text, over units that are numbered as those of the answer."""

    def __init__(
        self, explain: Callable[..., Any], source: Source, route: Route, method: str | None, asked: dict[str, Any]
    ) -> None:
        self.explain, self.source, self.route, self.asked, self.units = explain, source, route, asked, asked["units"]
        name = method or AUTO
        if name == AUTO:
            name = answers(source.modality.kind, 1, asked["passes"] or PASSES)[0][0]
        # Methods that mask, mask units as a whole. Others score tokens, which are added up at the end.
        self.grouped = self.units != "token" and get_method(name).needs <= {"perturbation"}
        self.ranges: list[Span] | None = None
        if self.grouped and not isinstance(self.units, str):  # the spans are scored, too
            apart = [s for s in map(route.chars, route.spans) if all(s[1] <= a or b <= s[0] for a, b in self.units)]
            self.ranges = [*self.units, *apart]

    def explained(self, stretch: Stretch, **others: Any) -> tuple[list[int], Explanation]:
        """Return an explanation of a stretch, and the numbers of its units."""
        chosen: Any = self.units if self.grouped else "token"
        numbers: list[int] = []
        if self.ranges is not None:  # those that begin before the stretch ends
            read = self.route.tokens[: stretch.stop - 1]
            numbers = [i for i, group in enumerate(members(read, self.ranges)) if group]
            last = max(end for _, end in read)
            chosen = [(self.ranges[i][0], min(self.ranges[i][1], last)) for i in numbers]
        found = self.explain(self.source, span=stretch, **self.asked | others | {"units": chosen})
        return numbers or list(range(len(found.scores))), found

    def divided(self, result: Explanation) -> Explanation:
        """Return the result over the units that were asked for."""
        if self.units == "token" or (self.grouped and self.ranges is None):
            return result
        if self.grouped:
            groups: Any = [[i] for i in range(len(self.units))]
            kept = pick(result.units, list(range(len(self.units))))
        else:
            modality = self.source.modality
            modality.ask(modality.decoding, self.units)
            divided = modality.divided(result.units, {"whole": self.route.exchange.text})
            assert divided is not None
            groups, kept = divided
        hops = []
        for hop in result.hops or ():
            scores = np.array([hop.scores[list(group)].sum() for group in groups], dtype=np.float32)
            hops.append(replace(hop, scores=scores))
        return by_segments(result, groups, kept).replace(hops=tuple(hops))


def _passed_on(explaining: Explaining, hops: int, method: str | None, options: dict[str, Any]) -> Explanation:
    """Explain the answer, and hand on what the spans received."""
    route = explaining.route
    all_numbers, direct = explaining.explained(route.answer, method=method, **options)
    place_of = {number: place for place, number in enumerate(all_numbers)}
    own = {"method": direct.method, "scalar": "logit", "keep_layers": False, "passes": None}
    own |= {} if method in (None, AUTO) else options
    tokens_of = [[i] for i in range(len(direct.scores))]
    if explaining.grouped:
        tokens_of = members(route.tokens[: route.answer.stop - 1], direct.units.spans or ())
    relevance_U, costs, warnings = direct.scores.astype(np.float64), [direct.cost], list(direct.warnings)
    made = [Hop(0, route.chars(route.answer), route.text(route.answer), float(relevance_U.sum()), direct.scores)]
    for hop, stretch in product(range(1, hops + 1), reversed(route.spans)):
        weights_T, holding = _weights(stretch, relevance_U, tokens_of)
        handed, text = float(relevance_U[holding].sum()), route.text(stretch)
        if not handed:
            continue
        numbers, found = explaining.explained(replace(stretch, weights=tuple(weights_T.tolist())), **own)
        costs.append(found.cost)
        speaking = np.maximum(found.scores.astype(np.float64) * np.sign(handed), 0)
        if not speaking.any():
            warnings.append(f"no token speaks for {shown(text)}: its relevance stays there.")
            continue
        received_U = np.zeros_like(relevance_U)
        received_U[[place_of[number] for number in numbers]] = handed * speaking / speaking.sum()
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


def _weights(stretch: Stretch, relevance_U: Array, tokens_of: Sequence[Sequence[int]]) -> tuple[Array, list[int]]:
    """(T,) weights of a span's tokens, of mean size 1, and the units in the span that hold relevance.

    A unit belongs to the span if most of its tokens do; its relevance is divided evenly among them.
    """
    weights_T = np.zeros(stretch.stop - stretch.first)
    holding = []
    for unit, tokens in enumerate(tokens_of):
        inside = [i - stretch.first for i in tokens if stretch.first <= i < stretch.stop]
        if 2 * len(inside) > len(tokens):
            weights_T[inside] += relevance_U[unit] / len(inside)
            holding.append(unit)
    size = np.abs(weights_T).sum()
    return weights_T * len(weights_T) / size if size else weights_T, holding
