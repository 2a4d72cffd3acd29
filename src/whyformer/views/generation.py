"""Language models: what was read, by voices and with long quiet parts folded; answers by token; citations."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

import numpy as np

from whyformer.files import pixels_of_uri
from whyformer.parameters import Count, checked
from whyformer.results.types import Cost, Explanation, Generation, Units, scalar_name
from whyformer.shapes import Array
from whyformer.views import marks, scales
from whyformer.views.header import cost_of, doubts, facts_about_method, likelihood, named, percent
from whyformer.views.marks import Dialogue, Matrix, Passage, Piece, Reading, Scale, Utterance
from whyformer.views.text_marks import By, scale_for
from whyformer.views.view import Fact, Page, Panel, View, view_of

ANSWER = "answer"  # the role of what was said
IMAGE = "[image]"  # in place of the tokens of an image, where the text has no mark of it
HEADINGS = {ANSWER: "answer so far", "": "prompt"}
LONG = 160  # pieces of a part that are shown in full
# Of a longer one: at both ends, around each of the strongest, and how many those are.
ENDS, AROUND, STRONGEST = 24, 6, 12
FEWEST = 16  # that are worth folding
LONGEST_TITLE = 74  # so that it stands on one line
LONG_PIECE = 30  # letters, on average: pieces are sentences, and a fifth as many are shown


@dataclass(frozen=True)
class Group:
    """Units that are drawn as one piece, and their text."""

    members: tuple[int, ...]
    text: str
    before: str  # between it and the group before


def is_long(explanation: Explanation) -> bool:
    """Return whether a language model's text is too long for one run, or has several roles."""
    roles = set(explanation.units.role or ())
    return scales.FIRST_TOKEN in explanation.checks and (len(explanation.units) > LONG or len(roles) > 1)


def reading_of(explanation: Explanation, by: str = "word") -> Reading:
    """The text of one explanation, by voices."""
    by = "word" if len(explanation.units) > LONG else by
    scale, groups = scale_for(explanation, by), groups_of(explanation.units, by)
    scores = summed(explanation.scores, groups)
    aside = np.array([scales.first_token(explanation) in group.members for group in groups])
    return Reading(parts_of(explanation.units, groups, scores, aside, np.abs(scores)), scale)


def summed(scores: Array, groups: Sequence[Group]) -> Array:
    """(…, U) → (…, G)"""
    return np.stack([scores[..., list(group.members)].sum(-1) for group in groups], -1)


def groups_of(units: Units, by: str) -> list[Group]:
    """Words with their pieces, or single units; no word goes on from one voice to the next."""
    members: list[list[int]] = []
    groups: list[Group] = []
    for i in range(len(units)):
        spans = units.spans
        inside = (
            i and spans is not None and units.stream[i] != "image" and spans[i][0] < spans[i - 1][1] <= spans[i][1]
        )  # of one character
        if i and (inside or _same_word(units, i, by)):
            members[-1].append(i)
        else:
            members.append([i])
    if units.text is None or units.spans is None:
        marked = any(label.startswith(("Ġ", "▁")) for label in units.labels)
        for m in members:  # what stands before a unit of an unknown text, from how its label is written
            label = units.labels[m[0]]
            glued = not label.startswith(("Ġ", "▁")) if marked else label.startswith("##")
            text = IMAGE if units.stream[m[0]] == "image" else units.text_of(m)
            groups.append(Group(tuple(m), text, "" if glued or not m[0] else " "))
        return groups
    at = 0
    for m in members:
        start, end = units.spans[m[0]][0], max(units.spans[i][1] for i in m)
        text = units.text[start:end]
        space = len(text) - len(text.lstrip()) if text.strip() else 0
        nameless = IMAGE if units.stream[m[0]] == "image" else units.labels[m[0]]
        shown = (text.strip() or text) if end > start else nameless
        groups.append(Group(tuple(m), shown, units.text[at : start + space] if at <= start else ""))
        at = max(at, start + space + len(shown)) if end > start else at
    return groups


def _same_word(units: Units, i: int, by: str) -> bool:
    if units.stream[i] == units.stream[i - 1] == "image":  # beside each other: one image in a text
        return units.spans is None or units.spans[i] == units.spans[i - 1]
    if by == "token" or units.word is None or units.word[i] < 0 or scales.in_template(units, i):
        return False
    if units.word[i] != units.word[i - 1] or _role(units, i) != _role(units, i - 1):
        return False
    if units.text is None or units.spans is None or not units.text[slice(*units.spans[i])].strip():
        return True
    start = units.spans[i][0]  # some tokenizers number what follows a line break as the word before it
    return not units.text[max(0, start - 1) : start + 1][:1].isspace() and not units.text[start].isspace()


def _role(units: Units, i: int) -> str:
    return "" if units.role is None else units.role[i]


def parts_of(
    units: Units, groups: Sequence[Group], scores: Array, aside: Array, strength: Array
) -> tuple[Utterance, ...]:
    """Voice by voice. ``strength``: which pieces are worth seeing, where not all are shown."""
    parts = []
    for role, numbers in groupby(range(len(groups)), key=lambda g: _role(units, groups[g].members[0])):
        chosen, quiet = list(numbers), role == scales.TEMPLATE
        pieces = [_piece(units, groups[g], float(scores[g]), bool(aside[g]), g > chosen[0], quiet) for g in chosen]
        passages = [_plain(pieces)] if quiet else folded_passages(pieces, [float(strength[g]) for g in chosen])
        parts.append(Utterance(HEADINGS.get(role, role), tuple(passages), quiet))
    return tuple(parts)


def _piece(units: Units, group: Group, score: float, aside: bool, follows: bool, quiet: bool) -> tuple[Piece, ...]:
    special = all(units.special[i] or scales.in_template(units, i) for i in group.members)
    text = group.text.replace("\n", "⏎") if quiet else group.text
    piece = Piece(text or " ", score, special, aside)
    between = group.before.replace("\n", "⏎") if quiet else group.before
    return (Piece(between), piece) if follows and between else (piece,)


def _plain(pieces: Sequence[tuple[Piece, ...]]) -> Passage:
    return Passage(tuple(p for piece in pieces for p in piece))


def folded_passages(pieces: list[tuple[Piece, ...]], strength: list[float]) -> list[Passage]:
    """Show both ends and the surroundings of the strongest pieces; fold the rest."""
    letters = sum(len(p.text) for piece in pieces for p in piece)
    fewer = 5 if letters > LONG_PIECE * len(pieces) else 1
    if len(pieces) * fewer <= LONG:
        return [_plain(pieces)]
    ends, around = max(1, ENDS // fewer), AROUND // fewer
    shown = np.zeros(len(pieces), bool)
    shown[:ends] = shown[-ends:] = True
    for place in np.argsort(-np.asarray(strength), kind="stable")[: max(3, STRONGEST // fewer)]:
        shown[max(0, place - around) : place + around + 1] = True
    runs = [(seen, list(numbers)) for seen, numbers in groupby(range(len(pieces)), key=lambda i: bool(shown[i]))]
    passages: list[Passage] = []
    for seen, numbers in runs:
        passage = _plain([pieces[i] for i in numbers])
        if seen or len(numbers) * fewer < FEWEST:
            # What is too short to be folded goes on from what is before it.
            before = passages.pop() if passages and not passages[-1].folded else Passage(())
            passages.append(Passage((*before.pieces, *passage.pieces)))
        else:
            passages.append(Passage(passage.pieces, f"… {len(numbers)} {'words' if fewer == 1 else 'sentences'}"))
    return passages


def in_full_colour(explanation: Explanation) -> Explanation:
    """The same, as if its first token had taken nothing: it is drawn like any other."""
    return explanation.replace(checks=explanation.checks | {scales.FIRST_TOKEN: 0.0})


def shortened_question(explanation: Explanation) -> str:
    """The end of what a user (or the prompt) asked last: its last sentences, as many as fit."""
    units = explanation.units
    asked = [i for i in scales.plain_units(units) if _role(units, i) != ANSWER]
    groups = [g for g in groups_of(units, "token") if g.members[0] in asked]
    last = [list(parts) for _, parts in groupby(groups, key=lambda g: _role(units, g.members[0]))][-1:]
    question = " ".join("".join(g.before + g.text for g in part) for part in last)
    sentences = re.split(r"(?<=[.?!])\s+", " ".join(question.split()))
    fitting = [i for i in range(len(sentences)) if len(" ".join(sentences[i:])) <= LONGEST_TITLE]
    words = " ".join(sentences[fitting[0] :]) if fitting else sentences[-1][: LONGEST_TITLE - 1] + "…"
    return words if fitting[:1] in ([], [0]) else f"… {words}"


def apart_words(steps: Sequence[Explanation]) -> str:
    """Return the shares of the first token and of the chat template, which are not on the scale of the words."""
    shares = []
    for e in steps:
        inside = [i for i in range(1, len(e.units)) if scales.in_template(e.units, i)]  # the first token aside
        total = float(np.abs(e.scores).sum())
        shares.append(float(np.abs(e.scores[inside]).sum()) / total if total else 0.0)
    template = float(np.mean(shares))
    words = (
        f" The chat template received {percent(template)} of the total |score| and is not coloured." if template else ""
    )
    return first_token_words(steps) + words


def first_token_words(steps: Sequence[Explanation], coloured: bool = False) -> str:
    """Return the share of the first token, which is not on the scale; by method if there are several."""
    apart = [e for e in steps if scales.first_token(e) is not None]
    if not apart:
        return ""
    shares: dict[str, list[float]] = {}
    for e in apart:
        shares.setdefault(e.method, []).append(e.checks[scales.FIRST_TOKEN])
    means = {name: percent(float(np.mean(values))) for name, values in shares.items()}
    took = next(iter(means.values())) if len(means) == 1 else ", ".join(f"{v} ({k})" for k, v in means.items())
    words = "." if coloured else " and is hatched, not coloured: language models often put attention there."
    return f" The first token received {took} of the total |score|{words}"


MOST_COLUMNS = 40  # of the heat map: labels stay readable
MOST_ROWS = 48
FEWEST_COLUMNS = 12
LONGEST_LABEL = 28
SHARES = " Percentages: share of the total |score| that words received for a token of the answer."
READ_AT = " Hatched words are output positions; most of such a score is the relevance of a position to itself."


@view_of.register(Generation)
@checked
def generation_view(
    generation: Generation,
    by: By = "word",
    *,
    colour_first_token: bool = False,
    most: Count = MOST_COLUMNS,
    title: str = "",
) -> View:
    """The answer over its prompt, and which units (``most`` of them) each of its tokens came from.

    ``colour_first_token``: colour the first token, too.
    """
    steps = [in_full_colour(e) for e in generation.tokens] if colour_first_token else generation.tokens
    dialogue, texts = dialogue_of(generation, steps, by)
    heat = _heat(dialogue, texts, most)
    caption = f"{scales.SIGNED if any(e.signed for e in steps) else scales.UNSIGNED}.{SHARES}{apart_words(steps)}"
    caption += READ_AT if any(scales.aside_of(e) - {scales.first_token(e)} for e in steps) else ""
    caption += first_token_words(generation.tokens, coloured=True) if colour_first_token else ""
    named = f"Sources of each token of the answer: {_columns(dialogue, heat)}"
    seen = image_panels(generation, steps)
    panels = (Panel((dialogue,), "Answer", wide=True), *seen, Panel((heat,), named, wide=True))
    title, told = title or shortened_question(steps[-1]), _certainty(generation)
    columns = min(4, len(seen)) if len(seen) > 1 else 2
    return View(title, panels, told, doubts(*steps), caption, columns=columns, legend=heat.scale, details=_facts(steps))


MOST_IMAGES = 12


def image_panels(generation: Generation, steps: Sequence[Explanation]) -> list[Panel]:
    """The image under each token of the answer, on one scale; of a longer answer, under each sentence of it."""
    seen, said = answer_image(steps), texts_of(generation)
    if seen is None:
        return []
    parts = [(i, i + 1) for i in range(len(steps))]
    if len(parts) > MOST_IMAGES:
        parts = list(generation.sentences or [(0, len(steps))])[:MOST_IMAGES]
    maps = [seen.shares_TRC[a:b].mean(0) for a, b in parts]
    scale = scales.scale_of(maps, any(s.signed for s in steps), from_zero=True, meaning="share")
    panels = []
    for (first, end), values in zip(parts, maps, strict=True):
        text = " ".join("".join(said[first:end]).split())
        shown = marks.shortened(text, LONGEST_LABEL) if text else repr("".join(said[first:end]))
        heat = marks.Heat(values, scale, seen.image, size=seen.size, tokens=(first, end))
        panels.append(Panel((heat,), f"image: {shown}"))
    return panels


def answer_image(steps: Sequence[Explanation]) -> marks.AnswerImage | None:
    """Shares of the patches of the image, where they form one grid."""
    units, picture = steps[0].units, steps[0].picture
    if units.grid is None or "image" not in units.stream:
        return None
    labels = tuple(label for label, stream in zip(units.labels, units.stream, strict=True) if stream == "image")
    pixels = None if picture is None else pixels_of_uri(picture)
    shares = np.stack([step.heatmap() * scales.share(step) for step in steps])
    return marks.AnswerImage(shares, labels, pixels, units.image_size)


def dialogue_of(generation: Generation, steps: Sequence[Explanation], by: str = "word") -> tuple[Dialogue, list[str]]:
    """Shares of the pieces of all that was read, per token of the answer; and the text of each piece."""
    units = steps[-1].units
    groups = groups_of(units, by)
    apart = np.zeros((len(steps), len(units)), bool)
    shares = np.full(apart.shape, np.nan)
    for row, step in enumerate(steps):
        shares[row, : len(step.scores)] = step.scores * scales.share(step)
        apart[row, list(scales.aside_of(step))] = True
    plain = set(scales.plain_units(units))
    ordinary = np.array([bool(plain & set(group.members)) for group in groups])
    # A word is apart where one of its pieces is, and there once its first piece is.
    aside = np.stack([apart[:, list(group.members)].any(1) for group in groups], 1)
    known = summed(np.nan_to_num(shares), groups)
    known[np.stack([np.isnan(shares[:, group.members[0]]) for group in groups], 1)] = np.nan
    said, signed = texts_of(generation), any(e.signed for e in steps)
    bare = Dialogue(
        said, generation.sentences or ((0, len(said)),), Reading((), scales.scale_of([])), known, aside, ordinary
    )
    mean, nowhere = bare.over(0, len(said))
    strength = np.nanmax(np.where(aside, 0.0, np.abs(known)), 0, initial=0.0)
    parts = parts_of(units, groups, mean, nowhere, np.where(ordinary, strength, 0.0))
    reach = float(np.abs(mean[ordinary & ~nowhere]).max(initial=0.0))  # of what is coloured
    scale = Scale(-reach if signed else 0.0, reach, signed, "share")
    return replace(bare, reading=Reading(parts, scale), image=answer_image(steps)), [group.text for group in groups]


def texts_of(generation: Generation) -> tuple[str, ...]:
    """The answer cut into its tokens; some tokenizers drop the space before a token that is read alone."""
    texts, at = [], 0
    for step in generation.tokens:
        label = step.target.label
        place = generation.text.find(label, at) if label else -1
        if place < 0 or generation.text[at:place].strip():  # half a character, or a token without a text
            texts.append(label)
            continue
        texts.append(generation.text[at : place + len(label)])
        at = place + len(label)
    return tuple(texts)


def _heat(dialogue: Dialogue, labels: Sequence[str], most: int) -> Matrix:
    """Rows are tokens of the answer; of many columns, those that count most for one of them."""
    shares = np.where(dialogue.aside, np.nan, dialogue.shares)
    highest = np.where(dialogue.ordinary, np.nanmax(np.abs(np.nan_to_num(shares)), 0, initial=0.0), -1.0)
    strong = max(FEWEST_COLUMNS, int((highest >= marks.LEAST).sum()))
    count = min(most, strong, int(dialogue.ordinary.sum())) or len(labels)
    chosen = sorted(np.argsort(-highest, kind="stable")[:count].tolist())
    values = shares[:MOST_ROWS, chosen]
    meaning = "share of a row (grey: not yet written, or off the scale)"
    scale = scales.scale_of([values], dialogue.reading.scale.signed, meaning=meaning)
    rows = tuple(text.strip() or repr(text) for text in dialogue.said[:MOST_ROWS])
    columns = tuple(marks.shortened(" ".join(labels[i].split()), LONGEST_LABEL) for i in chosen)
    return Matrix(values, scale, rows, columns, "token of the answer", "source")


def _columns(dialogue: Dialogue, heat: Matrix) -> str:
    shown, there = heat.values.shape[1], int(dialogue.ordinary.sum())
    noun = "sentences" if sum(map(len, heat.column_labels)) > shown * LONGEST_LABEL // 2 else "words"
    columns = f"all {noun}" if shown >= there else f"the {shown} of {there} {noun} with the highest scores"
    rows = "" if len(heat.values) == len(dialogue.said) else f" (the first {len(heat.values)} tokens)"
    return columns + rows


def _certainty(generation: Generation) -> tuple[Fact, ...]:
    """Return the probability of the answer's tokens, and the alternative to the least likely one."""
    each = [(likelihood(step.prediction, step.target.index), step) for step in generation.tokens]
    told = [(likely, step) for likely, step in each if likely is not None]
    if not told:
        return ()
    lowest, step = min(told, key=lambda each: each[0])
    said = step.prediction
    other = next((c for c in (said.next or ()) if c.index != step.target.index), None)
    if said.index != step.target.index:
        rest = f", where {named(said)} came first ({percent(said.probability or 0.0)})"
    else:
        rest = "" if other is None else f", next {named(other)} ({percent(other.probability)})"
    mean = percent(float(np.mean([likely for likely, _ in told])))
    words = f"{mean} per token on average; lowest for {named(step.target)} ({percent(lowest)}){rest}"
    return (Fact("probability", words),)


def _facts(steps: Sequence[Explanation]) -> tuple[Fact, ...]:
    first, spent = steps[0], Cost.of_all([e.cost for e in steps])
    spent = replace(spent, forwards=round(spent.forwards, 2), backwards=round(spent.backwards, 2))
    left_out = {"output position", "checked", "cost"}
    entries = [fact for fact in facts_about_method(first) if fact.name not in left_out]
    entries.append(Fact("cost", cost_of(spent)))
    scalar = scalar_name(first.scalar)
    entries.append(Fact("explained", f"{scalar} of each token of the answer, {len(steps)} in all"))
    return (*entries, Fact("model", first.model)) if first.model else tuple(entries)


@checked
def citations_page(citations: Any) -> Page:
    """The page of a Citations."""
    numbers, notes = _numbered(citations)
    scale = scales.scale_of([np.array([c.drop for s in citations.sentences for c in s.citations] or [0.0]).clip(min=0)])
    falling = _falling(citations)
    scale = Scale(0.0, scale.high, meaning=f"drop of {falling} without the source (darker: larger drop)")
    views = [_answer(citations, notes), _sources(citations, notes)]
    views += [_document(citations, d, scale, numbers) for d in range(len(citations.names))]
    return Page(f"Sources of the answer to “{citations.question}”", tuple(views))


def _falling(citations: Any) -> str:
    """Return what drops are drops of."""
    return "the log-probability" if citations.shares is None else "the share of sampled answers"


def _numbered(citations: Any) -> tuple[dict[int, int], list[tuple[int, int, int]]]:
    """Source → number, in the order of the answer; and (number, sentence, source) for each time one is cited."""
    numbers: dict[int, int] = {}
    notes, supports = [], citations.supports(citations.drops)
    for row in range(len(citations.spans)):
        drops = np.nan_to_num(citations.drops[row], nan=-np.inf)
        for source in np.argsort(-drops, kind="stable")[: citations.top].tolist():
            if supports[row, source]:
                notes.append((numbers.setdefault(source, len(numbers) + 1), row, source))
    return numbers, notes


def _answer(citations: Any, notes: list[tuple[int, int, int]]) -> View:
    pieces, end = [], 0
    plain = Scale(0.0, 1.0)
    for row, ((start, stop), influenced) in enumerate(zip(citations.spans, citations.influenced, strict=True)):
        pieces.append(Piece(citations.answer[end:start]))
        mark = "".join(f" [{n}]" for n, sentence, _ in notes if sentence == row) if influenced else " [no source]"
        pieces.append(Piece(citations.answer[start:stop] + mark))
        end = stop
    cost = citations.cost
    facts: tuple[Fact, ...] = (
        Fact("question", citations.question),
        Fact("ranked by", f"{citations.method}, {citations.model}"),
        Fact("cost", cost_of(replace(cost, forwards=round(cost.forwards), backwards=round(cost.backwards)))),
    )
    if citations.shares is not None:
        shares = ", ".join(f"{share:.0%}" for share in citations.shares)
        facts += (Fact("sampled", f"{citations.samples} answers per context; share that match, by sentence: {shares}"),)
    answer = Panel((marks.TokenRun(tuple(pieces), plain),), wide=True)
    return View("Answer", (answer,), facts, doubts=citations.warnings, words_first=True)


def _sources(citations: Any, notes: list[tuple[int, int, int]]) -> View:
    rows = []
    low, high = citations.intervals(citations.drops)
    for number, row, source in notes:
        sentence = citations.sources[source]
        drop = f"{citations.drops[row, source]:+.2f}"
        if citations.shares is not None:
            drop += f" ({low[row, source]:+.2f} to {high[row, source]:+.2f})"
        numbers = (f"[{number}]", drop, f"{citations.scores[row, source]:.3g}")
        rows.append((*numbers, str(row + 1), citations.names[sentence.document], sentence.text))
    if not rows:
        least = f"by more than {citations.support:.2g}" if citations.shares is None else "significantly"
        words = (
            f"No source supports the answer: leaving out any one of them lowers {_falling(citations)} of no sentence "
            f"{least}."
        )
        return View("Sources", (Panel((), wide=True, note=words),))
    table = marks.TableMark(("", "drop ↑", "score ↑", "answer sentence", "document", "source"), tuple(rows))
    caption = (
        "drop: how much the log-probability of the answer's sentence falls without the source (higher: stronger "
        "support); 1.1 is a factor of 3."
        if citations.shares is None
        else "drop: how much the share of sampled answers with the sentence falls without the source (higher: stronger "
        "support), with its 95 % confidence interval."
    )
    return View("Sources", (Panel((table,), wide=True),), caption=caption)


def _document(citations: Any, number: int, scale: Scale, numbers: dict[int, int]) -> View:
    text, pieces, end = citations.texts[number], [], 0
    for index, source in enumerate(citations.sources):
        if source.document != number:
            continue
        start, stop = source.span
        drops = citations.drops[:, index]
        known = float(np.nanmax(drops)) if not np.isnan(drops).all() else None
        mark = f" [{numbers[index]}]" if index in numbers else ""
        pieces += [Piece(text[end:start]), Piece(text[start:stop] + mark, None if known is None else max(known, 0.0))]
        end = stop
    pieces.append(Piece(text[end:]))
    drop = citations.documents[number].drop
    moves = "falls" if drop >= 0 else "rises"
    what = "the answer's log-probability" if citations.shares is None else "the share, summed over sentences,"
    facts = (Fact("without this document", f"{what} {moves} by {abs(drop):.2f}"),)
    legend = scale if any(piece.score is not None for piece in pieces) else None
    run = marks.TokenRun(tuple(pieces), scale)
    return View(citations.names[number], (Panel((run,), wide=True),), facts, legend=legend)
