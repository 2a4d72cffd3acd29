"""Citations: the documents and sentences that support each sentence of a language model's answer."""

from __future__ import annotations

import math
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Annotated, Any, ClassVar

import numpy as np

from whyformer.choices import default_method
from whyformer.errors import BadInput, NotOffered, reading
from whyformer.evidence import difference_interval
from whyformer.explainer import CoreExplainer
from whyformer.inputs.connection import Usage
from whyformer.inputs.decoding import Decoding
from whyformer.inputs.exchanges import written_answer
from whyformer.inputs.prompt import AskedModel, named
from whyformer.inputs.scenes import is_image
from whyformer.inputs.tokens import is_causal
from whyformer.inputs.units import PromptText, Span, prompt_of, sentences
from whyformer.inputs.vision_language import reads_media
from whyformer.parameters import BatchSize, Count, NotEmpty, Seed, checked
from whyformer.registry import get_method
from whyformer.results.codec import Float64
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Cost
from whyformer.run.session import loaded_as, tracker
from whyformer.shapes import Array
from whyformer.views.generation import citations_page
from whyformer.views.view import view_of

METHOD = default_method("language")  # docs/reports/needle.md: how often it finds the right sentence
REMOTE_METHOD = default_method("prompt")  # of a model behind a server, which has no gradients
PICTURE = "[image]"  # the text of a document that is an image
LEAD = "Answer the question with the help of these documents."
UNSUPPORTED = (
    "no document influenced {!r}: leaving out any one of them hardly makes it less likely. Possible reasons: the "
    "model knows it without documents, several documents state it, or it is made up."
)
UNMATCHED = (
    "no sampled answer matches {!r}, so its sources cannot be found. Give another answer=, or match= of ChatServer."
)
TEXTS = ("text", "content", "contents", "page_content")  # of a document, by usual names
SUPPORT = math.log(1.5)  # a sentence rests on a document without which it is less likely by this factor, in logarithms
LEAST_SHARE = 0.5  # of the sentence's largest drop: other sources are not cited; chosen in docs/reports/citations.md


@dataclass(frozen=True)
class SourceSentence:
    """A sentence of a document."""

    document: int
    text: str
    span: tuple[int, int]  # characters of the document


@dataclass(frozen=True)
class Citation:
    """A source of a sentence. ``drop``: the fall of the sentence's log-probability without it.

    ``cited``: the drop is large enough (``Citations.supports``); others were measured, too. Sampled answers: the fall
    of the share of answers with the sentence, and its 95 % confidence interval (low, high).
    """

    document: str
    text: str
    score: float
    drop: float
    low: float | None = None
    high: float | None = None
    cited: bool = False


@dataclass(frozen=True)
class CitedSentence:
    """A sentence of the answer with its sources, the best first. ``influenced``: by at least one document.

    share: of sampled answers that have the sentence; its log-probability is then NaN.
    """

    text: str
    log_probability: float
    citations: tuple[Citation, ...]
    influenced: bool  # it is less likely without some document, which does not show that it has a source
    share: float | None = None


@dataclass(frozen=True)
class DocumentScore:
    """A document, its score over the whole answer, and the fall of the answer's log-probability without it."""

    name: str
    text: str
    score: float
    drop: float


@dataclass(frozen=True, eq=False)
class Citations(Result):
    """The sources of an answer. Drops are NaN where they were not measured.

    Of a ChatServer, ``shares`` of sampled answers replace log-probabilities, and drops are falls of shares.

    Axes: A sentences of the answer, S sentences of the documents, D documents.

    >>> documents = ["the capital of france is paris.", "a cat sat on the mat."]
    >>> citations = wf.cite("language-model", "what is the capital of france?", documents, generate=4)
    >>> citations.show()
    """

    what: ClassVar[str] = "citations"
    axes: ClassVar[Mapping[str, str]] = {
        "scores": "AS", "drops": "AS", "document_scores": "AD", "document_drops": "AD", "log_probabilities": "A",
        "spans": "A", "sources": "S", "names": "D", "texts": "D", "shares": "A",
    }  # fmt: skip
    last: ClassVar[tuple[str, ...]] = ("scores", "drops")
    later: ClassVar[tuple[str, ...]] = ("shares", "samples", "usage")
    support: ClassVar[float] = SUPPORT  # a source with a smaller drop is not cited
    least_share: ClassVar[float] = LEAST_SHARE  # nor one with a smaller share of the sentence's largest drop

    question: str
    answer: str
    spans: tuple[tuple[int, int], ...]  # characters of the answer
    names: tuple[str, ...]
    texts: tuple[str, ...]
    sources: tuple[SourceSentence, ...]
    log_probabilities: Float64
    scores: Float64
    drops: Float64
    document_scores: Float64
    document_drops: Float64
    method: str
    model: str = ""
    top: int = 3
    cost: Cost = field(default_factory=Cost)
    warnings: tuple[str, ...] = ()
    shares: Float64 | None = None  # of sampled answers that have the sentence; None: log-probabilities were read
    samples: int | None = None  # answers per context
    usage: dict[str, int] | None = None  # requests and tokens of the server, as it reports them

    def intervals(self, drops: Float64) -> tuple[Float64, Float64]:
        """Return the 95 % confidence intervals of drops, one row per sentence; NaN if answers were not sampled."""
        if self.shares is None or self.samples is None:
            return np.full_like(drops, np.nan), np.full_like(drops, np.nan)
        whole = np.broadcast_to(self.shares[:, None], drops.shape)
        return difference_interval(whole, np.clip(whole - drops, 0.0, 1.0), self.samples)

    def supports(self, drops: Float64) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Return which drops are a support, one row per sentence.

        They are above ``support`` and at least ``least_share`` of the row's largest drop: drops grow with the length of
        the sentence, those of sentences that hardly matter as well. Of sampled answers: significantly above 0.
        """
        if self.shares is not None:
            return np.nan_to_num(self.intervals(drops)[0]) > 0.0
        known = np.nan_to_num(drops, nan=-np.inf)
        return (known > self.support) & (known >= self.least_share * known.max(1, keepdims=True))

    @property
    def sentences(self) -> tuple[CitedSentence, ...]:
        """The answer, sentence by sentence, each with its sources by descending drop."""
        cited = []
        (low, high), supports = self.intervals(self.drops), self.supports(self.drops)
        for number, (start, end) in enumerate(self.spans):
            drops, citations = self.drops[number], []
            tested = np.flatnonzero(~np.isnan(drops))
            for i in tested[np.argsort(-drops[tested], kind="stable")]:
                source, score = self.sources[i], float(self.scores[number, i])
                limits = (None, None) if self.shares is None else (float(low[number, i]), float(high[number, i]))
                facts = (score, float(drops[i]), *limits, bool(supports[number, i]))
                citations.append(Citation(self.names[source.document], source.text, *facts))
            likely = float(self.log_probabilities[number])
            share = None if self.shares is None else float(self.shares[number])
            cited.append(
                CitedSentence(self.answer[start:end], likely, tuple(citations), self.influenced[number], share)
            )
        return tuple(cited)

    @property
    def influenced(self) -> tuple[bool, ...]:
        """Whether a sentence of the answer is less likely without some document (see ``supports``), per sentence."""
        return tuple(bool(row.any()) for row in self.supports(self.document_drops))

    @property
    def documents(self) -> tuple[DocumentScore, ...]:
        """The documents with their scores and drops, summed over the sentences of the answer."""
        score, drop = self.document_scores.sum(0), self.document_drops.sum(0)
        return tuple(
            DocumentScore(name, text, float(s), float(d))
            for name, text, s, d in zip(self.names, self.texts, score, drop, strict=True)
        )

    @property
    def table(self) -> list[dict[str, Any]]:
        """Return one row per sentence of the answer and sentence of the documents."""
        low, high = self.intervals(self.drops)
        return [
            {
                "answer": self.answer[start:end],
                "document": self.names[source.document],
                "sentence": source.text,
                "score": float(self.scores[number, index]),
                "drop": float(self.drops[number, index]),
            }
            | ({} if self.shares is None else {"low": float(low[number, index]), "high": float(high[number, index])})
            for number, (start, end) in enumerate(self.spans)
            for index, source in enumerate(self.sources)
        ]

    def to_frame(self) -> DataFrame:
        """Return the table as a pandas DataFrame."""
        return dataframe(self.table)


@checked
def cite(
    model: Any,
    question: Annotated[str, NotEmpty()],
    documents: Mapping[str, Any] | Sequence[Any],
    *,
    processor: Any = None,
    tokenizer: Any = None,
    answer: str | None = None,
    method: str | None = None,
    generate: Count = 128,
    top: Count = 3,
    batch_size: BatchSize | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
    **options: Any,
) -> Citations:
    """Find the documents, and the sentences in them, that support each sentence of the answer.

    documents: texts, or texts by name; images, too, for a vision-language model; documents of LangChain and nodes of
    LlamaIndex, as objects or dicts. answer: the text to support; None: the model's own answer of at most ``generate``
    tokens. method (and its options): ranks the sentences, in one explanation per sentence of the answer. The ``top`` of
    them, and every document, are then left out in turn: drops are the falls of the log-probability. A
    wf.CompletionServer and a wf.ChatServer are models, too; the latter samples answers to the prompt with each sentence
    and document left out, and drops are falls of the share that match.

    >>> documents = {"atlas": "the capital of france is paris.", "note": "a cat sat on the mat."}
    >>> wf.cite("language-model", "what is the capital of france?", documents, answer="it is paris.").show()
    """
    names, texts, pictures = _documents(documents)
    explainer = loaded_as(CoreExplainer, model, processor)
    remote: Any = explainer.model.says if isinstance(explainer.model, AskedModel) else None
    samples = int(getattr(remote, "samples", 0))
    method = (METHOD if remote is None else REMOTE_METHOD) if method is None else method
    get_method(method).checked(options)
    prompt, positions = prompt_with(explainer, question, names, _marked(explainer, texts, pictures))
    asked: Any = {"text": prompt, "images": list(pictures.values())} if pictures else prompt
    before = getattr(remote, "usage", Usage())
    answer = _written(explainer, remote, asked, generate) if answer is None else answer
    if not (spans := sentences(answer)):
        raise BadInput("the answer is empty: give at least one sentence.")
    sources, ranges = _sources(texts, positions, pictures)
    if hasattr(remote, "announce"):  # raises if it is more than the server's budget
        left_out = 0 if method == REMOTE_METHOD else min(top, len(sources))
        passes = get_method(method).cost(len(sources), **get_method(method).checked(options))[0]
        remote.announce(passes + left_out + len(texts), len(prompt))
    measured, values = _measured(
        partial(explainer.explain, [(asked, answer)], batch_size=batch_size, seed=seed, progress=False),
        tracker(progress)(spans, "citing"),
        ranges,
        np.array([source.document for source in sources]),
        [span for span, _ in positions],
        top,
        {"method": method, **options},
        {} if pictures else {"replace": "delete"},  # pixels cannot be deleted: beside images, words are replaced, too
    )
    cited = Citations(
        question=question,
        answer=answer,
        spans=tuple(spans),
        names=tuple(names),
        texts=tuple(texts),
        sources=tuple(sources),
        log_probabilities=np.full_like(values, np.nan) if samples else values,
        **measured,
        method=method,
        model=type(explainer.model).__name__,
        top=top,
        shares=values if samples else None,
        samples=samples or None,
        usage=asdict(remote.usage - before) if hasattr(remote, "usage") else None,
    )
    return replace(cited, warnings=(*_notes(cited), *([remote.summary()] if hasattr(remote, "summary") else ())))


def _sources(
    texts: Sequence[str], positions: Sequence[tuple[Span, int]], pictures: Container[int]
) -> tuple[list[SourceSentence], list[Span]]:
    """Return the sentences of all documents, and the characters of each in the prompt."""
    sources = [SourceSentence(d, text[a:b], (a, b)) for d, text in enumerate(texts) for a, b in sentences(text)]
    ranges = [
        (positions[s.document][1], positions[s.document][0][1])  # an image is one source, whatever marks its place
        if s.document in pictures
        else (positions[s.document][1] + s.span[0], positions[s.document][1] + s.span[1])
        for s in sources
    ]
    return sources, ranges


def _notes(cited: Citations) -> list[str]:
    """Return warnings about sentences that no sampled answer has, and about those that no document influenced."""
    texts = [cited.answer[start:end] for start, end in cited.spans]
    rare = [] if cited.shares is None else [text for text, share in zip(texts, cited.shares, strict=True) if not share]
    free = [text for text, influenced in zip(texts, cited.influenced, strict=True) if not influenced]
    return [UNMATCHED.format(text) for text in rare] + [UNSUPPORTED.format(text) for text in free if text not in rare]


def _measured(
    explain: Callable[..., Any],
    spans: Iterable[Span],
    passages: list[Span],
    owners: Array,
    documents: list[Span],
    top: int,
    ranking: Mapping[str, Any],
    removal: Mapping[str, Any],
) -> tuple[dict[str, Any], Array]:
    """Return scores and drops of sentences and of documents, a row per span, and the cost; and the explained values."""
    rows, costs = [], []
    for span in spans:
        (why,) = explain(span=span, units=passages, **ranking)
        best, drops = np.argsort(-why.scores.astype(float), kind="stable")[:top], np.full(len(passages), np.nan)
        (without,) = explain(method="occlusion", span=span, units=[passages[i] for i in best], **removal)
        (whole,) = explain(method="occlusion", span=span, units=documents, **removal)
        drops[best] = without.scores
        rows.append((why.scores.astype(float), drops, whole.scores.astype(float), why.value))
        costs += [why.cost, without.cost, whole.cost]
    scores, drops_AS, document_drops, values = (np.array(column) for column in zip(*rows, strict=True))
    document_scores = np.stack([scores[:, owners == d].sum(1) for d in range(len(documents))], 1)
    measured = {"scores": scores, "drops": drops_AS, "document_scores": document_scores}
    return measured | {"document_drops": document_drops, "cost": Cost.of_all(costs)}, values


def documents_by_name(documents: Any) -> dict[str, Any]:
    """Return texts and images by name; of LangChain and LlamaIndex, documents as objects or as dicts."""
    if isinstance(documents, Mapping):
        return {str(name): _read(document)[1] for name, document in documents.items()}
    with reading("documents cannot be read", "Give a list of texts, or texts by name."):
        read = [_read(document) for document in documents]
    known: dict[str, Any] = {}
    for number, (title, text) in enumerate(read, 1):  # two documents of one title are two documents
        name = title or f"document {number}"
        while name in known:
            name = f"{name} ({number})"
        known[name] = text
    return known


def _read(document: Any) -> tuple[str, Any]:
    """Return the name of a document ("" for none) and its text; an image, or what is neither, unchanged."""
    if isinstance(document, str) or is_image(document):
        return "", document
    node = _field(document, "node") or document  # a NodeWithScore
    content = getattr(node, "get_content", None)
    texts = (_field(node, key) for key in TEXTS)
    text = content() if callable(content) else next((text for text in texts if text is not None), document)
    metadata = _field(node, "metadata")
    titles = [_field(node, "title"), _field(node, "name"), _field(metadata, "source")]
    titles += [_field(node, key) for key in ("node_id", "id_", "id")]
    return next((str(title) for title in titles if title), ""), text


def _field(holder: Any, key: str) -> Any:
    return holder.get(key) if isinstance(holder, Mapping) else getattr(holder, key, None)


def _documents(documents: Any) -> tuple[list[str], list[str], dict[int, Any]]:
    """Return names, texts, and the documents that are images, by number."""
    by_name = documents_by_name(documents)
    if not by_name:
        raise BadInput("documents is empty: give at least one text, or use explain(model, question, generate=…).")
    pictures = {number: document for number, document in enumerate(by_name.values()) if is_image(document)}
    texts = [PICTURE if number in pictures else text for number, text in enumerate(by_name.values())]
    for name, text in zip(by_name, texts, strict=True):
        if not isinstance(text, str) or not sentences(text):
            raise BadInput(f"documents: {name} is not a text with at least one sentence ({type(text).__name__}).")
    return list(by_name), texts, pictures


def _marked(explainer: CoreExplainer, texts: Sequence[str], pictures: Mapping[int, Any]) -> list[str]:
    """Return the documents as they stand in the prompt: images as the processor's mark of one."""
    mark = getattr(explainer.processor, "image_token", None)
    if pictures and not (isinstance(mark, str) and reads_media(explainer.model)):
        raise BadInput(
            f"documents has an image, and {type(explainer.model).__name__} with this processor takes none: give texts, "
            "or a vision-language model with its AutoProcessor."
        )
    return [str(mark) if number in pictures else text for number, text in enumerate(texts)]


def prompt_with(
    explainer: CoreExplainer, question: str, names: Sequence[str], texts: Sequence[str]
) -> tuple[PromptText, list[tuple[Span, int]]]:
    """Return the prompt and, per document, its characters there with the heading, and where its text begins."""
    content, marks = LEAD + "\n\n", []
    for number, (name, text) in enumerate(zip(names, texts, strict=True), 1):
        heading = f"Document {number}" + ("" if name == f"document {number}" else f" ({name})") + ": "
        marks.append((len(content), len(content) + len(heading), len(content) + len(heading) + len(text)))
        content += heading + text + "\n\n"
    asked = len(content)
    content += f"Question: {question.strip()}"  # many templates strip what they are given
    tokenizer = getattr(explainer.processor, "tokenizer", explainer.processor)
    if getattr(tokenizer, "chat_template", None):
        prompt = prompt_of([{"role": "user", "content": content}], tokenizer)
        assert isinstance(prompt, PromptText)
    else:
        prompt = PromptText(f"{content}\nAnswer:", [])
    offset = prompt.find(content)
    if offset < 0:
        raise NotOffered(
            "the tokenizer's chat template changes the text, so the documents were not found in the prompt. Explain "
            "(prompt, answer) with units=[…], the character ranges of the documents."
        )
    positions = [((offset + start, offset + end), offset + text) for start, text, end in marks]
    parts = [(*span, f"document {n}") for n, (span, _) in enumerate(positions, 1)]
    return PromptText(prompt, [*parts, (offset + asked, offset + len(content), "question")]), positions


def _written(explainer: CoreExplainer, remote: Any, prompt: Any, tokens: int) -> str:
    """Return the model's own answer; ``remote``: what asks a model behind a server."""
    if remote is not None:
        if not hasattr(remote, "generate"):
            raise NotOffered(f"{named(remote)} has no generate(prompt, tokens): give answer=.")
        return str(remote.generate(prompt, tokens)).rstrip()
    source = explainer.source([prompt])
    with explainer.borrowed():
        batch = source.batch()
        if not is_causal(source.modality.mean, batch):
            raise NotOffered(
                f"{type(explainer.model).__name__} does not predict the next token: give a language model, or answer=."
            )
        batch = replace(batch, asked=source.asking(decoding=Decoding(generate=tokens)).asked)
        return written_answer(source.modality.read, batch).strip()


view_of.register(Citations, citations_page)
