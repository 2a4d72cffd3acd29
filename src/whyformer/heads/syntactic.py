"""Syntactic heads: how often the most attended word of a head matches a given dependency arc.

Clark et al. 2019 (arXiv:1906.04341) and Voita et al. 2019 (arXiv:1905.09418): per relation and direction, compared with
the best fixed offset, which is a strong baseline for many relations.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from whyformer.errors import BadInput, MissingProcessor
from whyformer.files import is_file, path_of
from whyformer.heads.importance_kinds import table
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.text import TextInput
from whyformer.parameters import BatchSize, OneOf, checked
from whyformer.results.codec import Float32
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.run import Run
from whyformer.run.session import LoadedModel, loaded_as, passing_through
from whyformer.views.head_views import syntactic_view
from whyformer.views.view import view_of

# Read CoNLL-U: sentences with a dependency tree over their words (universaldependencies.org/format.html).


COLUMNS = 10


@dataclass(frozen=True)
class Sentence:
    """Words, and for each the index of its head (-1 for the root) and the relation to it."""

    words: tuple[str, ...]
    heads: tuple[int, ...]
    relations: tuple[str, ...]


@checked
def read_conllu(source: str | Path) -> list[Sentence]:
    """Return the sentences of a CoNLL-U file, or of a text in CoNLL-U format.

    Multiword tokens (``3-4``) and empty nodes (``5.1``) are left out; the words inside and around them are kept.
    """
    if isinstance(source, str) and "\t" in source:
        text = source
    elif not is_file(path := path_of(source, "conllu")):
        raise BadInput(f"no CoNLL-U file at {str(path)!r}, and the text itself has no tab-separated columns.")
    else:
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"{str(path)!r} cannot be read as a text file in UTF-8 ({error}).") from error
    sentences: list[Sentence] = []
    rows: list[list[str]] = []
    for number, line in enumerate([*text.splitlines(), ""], start=1):
        if line.startswith("#"):
            continue
        if line.strip():
            row = line.split("\t")
            if len(row) != COLUMNS:
                raise BadInput(
                    f"line {number} of the CoNLL-U text has {len(row)} columns, not {COLUMNS}: {line[:60]!r}"
                )
            rows.append(row)
        elif rows:
            sentences.append(_sentence(rows, number))
            rows = []
    if not sentences:
        raise BadInput("the CoNLL-U text has no sentences.")
    return sentences


def _sentence(rows: list[list[str]], number: int) -> Sentence:
    words = [row for row in rows if row[0].isdigit()]
    place = {row[0]: i for i, row in enumerate(words)} | {"0": -1}
    try:
        heads = tuple(place[row[6]] for row in words)
    except KeyError as error:
        raise BadInput(
            f"before line {number} of the CoNLL-U text, a word has the head {error}, which does not exist."
        ) from None
    return Sentence(tuple(row[1] for row in words), heads, tuple(row[7] for row in words))


DIRECTIONS = ("to head", "to dependent")
PIECES = ("max", "first", "sum")
Arcs = list[tuple[str, str, int, int]]  # relation, direction, from word, to word


@dataclass(frozen=True, eq=False)
class SyntacticHeads(Result):
    """Hit rates per relation and direction: compare ``share[relation, direction]``, (L, H), with ``baseline``."""

    what: ClassVar[str] = "syntactic heads"

    share: dict[tuple[str, str], Float32]
    baseline: dict[tuple[str, str], float]  # hits of the best fixed offset
    offset: dict[tuple[str, str], int]  # that offset, in words
    arcs: dict[tuple[str, str], int]  # how many arcs there were
    sentences: int
    warnings: tuple[str, ...] = ()

    def best(self) -> list[tuple[str, str, int, int, float, float, int]]:
        """Return (relation, direction, layer, head, share, baseline, arcs) of each best head, largest gain first."""
        rows = []
        for key, share in self.share.items():
            layer, head = divmod(int(np.nanargmax(share)), share.shape[1])
            rows.append((*key, layer, head, float(share[layer, head]), self.baseline[key], self.arcs[key]))
        return sorted(rows, key=lambda f: f[5] - f[4])

    def to_frame(self) -> DataFrame:
        """Return one row per relation and direction: its best head."""
        names = ["relation", "direction", "layer", "head", "share", "baseline", "arcs"]
        return dataframe(self.best(), columns=names)


view_of.register(SyntacticHeads, syntactic_view)


@checked
def syntactic(
    model: Any,
    conllu: str | Path,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    pieces: Annotated[str, OneOf(*PIECES)] = "max",
    relations: Iterable[str] | None = None,
    subtypes: bool = False,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    progress: bool | None = None,
) -> SyntacticHeads:
    """Return the share of dependency arcs that match the most attended word of each head.

    The word itself and special tokens are left out. processor: the (fast) tokenizer. conllu: a file, or its text.
    pieces: how word pieces become words: "max" over them, the "first" one, or "sum" over the keys and mean over the
    queries (Clark et al.). relations: names of relations (default: all but punct and root). subtypes: distinguish
    ``nsubj:pass`` from ``nsubj``.

    Misleads when: there are few arcs, or many heads: the best head is chosen on the same sentences. A causal model
    cannot attend to later tokens, so it misses every arc that points to the right.
    """
    loaded = loaded_as(LoadedModel, model, processor, attention_at)
    if loaded.processor is None:
        raise MissingProcessor("syntactic heads need the model's tokenizer: pass processor=….")
    sentences = read_conllu(conllu)
    wanted = None if relations is None else set(relations)
    arcs = [_arcs(s, wanted, subtypes) for s in sentences]
    encoded = _encoded(loaded, sentences)
    usable = [i for i, e in enumerate(encoded) if e is not None and arcs[i]]
    if not usable:
        raise BadInput("no sentence has an arc of these relations and fits the model.")
    dropped = sum(e is None for e in encoded)
    tensors, words = _batch([encoded[i] for i in usable], loaded.processor)
    usable_arcs = [arcs[i] for i in usable]
    hits: dict[tuple[str, str], list[Tensor]] = {}
    with passing_through(loaded, tensors, batch_size=batch_size, progress=progress) as session:

        def measure(run: Run, rows: list[int]) -> None:
            for index, row in enumerate(rows):
                _count(run, index, words[row], usable_arcs[row], pieces, hits)

        session.each(measure, label="syntax")
    baseline, offset = _best_offset(usable_arcs)
    return SyntacticHeads(
        share={key: torch.stack(parts).mean(0).cpu().numpy() for key, parts in sorted(hits.items())},
        baseline=baseline,
        offset=offset,
        arcs={key: len(parts) for key, parts in hits.items()},
        sentences=len(usable),
        warnings=(f"{dropped} sentences are longer than the model takes and were left out.",) if dropped else (),
    )


def _arcs(sentence: Sentence, wanted: set[str] | None, subtypes: bool) -> Arcs:
    arcs: Arcs = []
    for word, (head, relation) in enumerate(zip(sentence.heads, sentence.relations, strict=True)):
        name = relation if subtypes else relation.split(":")[0]
        if head < 0 or (name == "punct" if wanted is None else name not in wanted):
            continue
        arcs += [(name, DIRECTIONS[0], word, head), (name, DIRECTIONS[1], head, word)]
    return arcs


def _encoded(loaded: LoadedModel, sentences: list[Sentence]) -> list[Any]:
    """Encodings that know which word each piece belongs to; None for sentences that are too long."""
    limit, tokenizer = TextInput(loaded.model, loaded.processor).max_length(), loaded.processor
    encodings: list[Any] = []
    for sentence in sentences:
        encoding = processed(tokenizer, list(sentence.words), is_split_into_words=True, truncation=False, verbose=False)
        try:
            encoding.word_ids()
        except ValueError:
            raise BadInput("the tokenizer cannot map word pieces to words: load the fast tokenizer.") from None
        encodings.append(encoding if limit is None or len(encoding["input_ids"]) <= limit else None)
    return encodings


def _batch(encodings: list[Any], tokenizer: Any) -> tuple[dict[str, Tensor], list[list[int | None]]]:
    """Padded on the right: tensors, and the word of each position."""
    rows = [torch.tensor(e["input_ids"]) for e in encodings]
    pad = tokenizer.pad_token_id or 0  # hidden by the mask, so any id will do
    ids = pad_sequence(rows, batch_first=True, padding_value=pad)
    mask = pad_sequence([torch.ones_like(row) for row in rows], batch_first=True)
    return {"input_ids": ids, "attention_mask": mask}, [list(e.word_ids()) for e in encodings]


def over_words(attention_HQK: Tensor, words: list[int | None], pieces: str) -> Tensor:
    """(H, W, W) attention between words, from attention between their pieces; special tokens are nobody's."""
    members: dict[int, list[int]] = defaultdict(list)
    for position, word in enumerate(words):
        if word is not None:
            members[word].append(position)
    groups = [members[word][:1] if pieces == "first" else members[word] for word in sorted(members)]
    over_keys, over_queries = (torch.sum, torch.mean) if pieces == "sum" else (torch.amax, torch.amax)
    columns = torch.stack([over_keys(attention_HQK[..., g], -1) for g in groups], -1)
    return torch.stack([over_queries(columns[:, g], 1) for g in groups], 1)


def _count(
    run: Run, index: int, words: list[int | None], arcs: Arcs, pieces: str, hits: dict[tuple[str, str], list[Tensor]]
) -> None:
    present = sorted({w for w in words if w is not None})
    place = {word: i for i, word in enumerate(present)}  # a word of spaces has no pieces
    strongest = []
    for site in run.record().sites:
        between_words = over_words(site.attention_BHQK[index].float(), words, pieces)
        between_words.diagonal(dim1=1, dim2=2).fill_(-1)  # another word than itself
        strongest.append(between_words.argmax(-1))
    for relation, direction, start, end in arcs:
        if start in place and end in place:
            hit = table([(s[None, :, place[start]] == place[end]).float() for s in strongest])[0]
            hits.setdefault((relation, direction), []).append(hit)


def _best_offset(arcs: list[Arcs]) -> tuple[dict[tuple[str, str], float], dict[tuple[str, str], int]]:
    """The share of arcs at the most frequent distance, and that distance; ties go to the nearest."""
    distances: dict[tuple[str, str], list[int]] = defaultdict(list)
    for sentence in arcs:
        for relation, direction, start, end in sentence:
            distances[relation, direction].append(end - start)
    share, offset = {}, {}
    for key, values in distances.items():
        best = max(sorted(set(values), key=lambda d: (abs(d), d)), key=values.count)
        share[key], offset[key] = values.count(best) / len(values), best
    return share, offset
