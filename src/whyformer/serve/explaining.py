"""What jobs of a model do: predict, explain, compare; one method is one unit of work, and one that fails is told."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Sequence
from difflib import SequenceMatcher
from tempfile import TemporaryDirectory
from typing import Any

from whyformer.errors import BadInput, NotOffered, WhyformerError
from whyformer.registry import list_methods
from whyformer.serve.drawn import results_of
from whyformer.serve.models import MANY_UNITS, ServedModel, is_dear
from whyformer.serve.question import Compare, Explain, Input
from whyformer.serve.store import Entry, Store
from whyformer.types import Explanation, Generation, Target

Working = Generator[None, None, Any]

LONGEST_TITLE = 200
MOST_PASSES = 12  # of a method that is run beside others
MOST_OBJECTS = 12  # of a detector, drawn one below the other
log = logging.getLogger("whyformer.serve")


def predicted(served: ServedModel, asked: Input, store: Store) -> dict[str, Any]:
    """What the model says, and of which units its input is made: one forward pass."""
    explanation = _first(served.explainer.explain(served.opened(asked, store), method="random"))
    return {"prediction": said_by(explanation.prediction), "units": list(explanation.units.labels)}


def _first(result: Any) -> Explanation:
    while not isinstance(result, Explanation):
        if not result:
            raise NotOffered("the model says nothing about this input.")
        result = result[0]
    return result


def said_by(prediction: Target) -> dict[str, Any]:
    others = [{"label": str(c), "index": c.index, "probability": c.probability} for c in prediction.next or ()]
    return {
        "label": str(prediction),
        "index": prediction.index,
        "probability": prediction.probability,
        "next": others,
    }


def explained(served: ServedModel, question: Explain, store: Store) -> Working:
    """One result per method; those that refuse are listed with their reason."""
    before = None if question.edited_from is None else explanation_of(store, question.edited_from)
    raw = served.opened(question.input, store)
    results: list[Any] = []
    failures: dict[str, str] = {}
    for method in question.methods:
        try:
            results += _listed(served.explainer.explain(raw, method=method, **how_of(served, question)))
        except WhyformerError as reason:
            failures[method or served.default] = str(reason)
        except Exception as error:  # of a model's own code, or a bug: the other methods are explained all the same
            log.exception("%s on %s failed", method, served.name)
            failures[method or served.default] = f"failed: {type(error).__name__}: {error}"
        yield
    if not results:
        raise NotOffered(" ".join(failures.values()))
    beside = {} if before is None else {"difference": difference(before, _first(results[0]))}
    return store.add(entry_of(served, question, results, failures, beside))


def how_of(served: ServedModel, question: Explain) -> dict[str, Any]:
    """The question by the names that ``explain`` has."""
    how: dict[str, Any] = {"target": question.aim, "scalar": question.scalar, "seed": question.seed}
    if question.units != "token":
        how["units"] = question.units
    if question.generate is not None:
        how["generate"] = question.generate
    clash = question.options.keys() & {
        *how,
        "method",
        "inputs",
        "batch_size",
        "memory",
        "progress",
        "generate",
        "units",
    }
    if clash:
        raise BadInput(f"{sorted(clash)[0]!r} is no option of a method.")
    return how | {name: tuple(v) if isinstance(v, list) else v for name, v in question.options.items()}


def _listed(result: Any) -> list[Any]:
    if isinstance(result, list) and not isinstance(result, Generation):
        if not result:
            raise NotOffered("the model says nothing about this input.")
        return list(result)[:MOST_OBJECTS]
    return [result]


def entry_of(
    served: ServedModel, question: Explain, results: Sequence[Any], failures: dict[str, str], beside: dict[str, Any]
) -> Entry:
    first = _first(results[0])
    methods = list(dict.fromkeys(result.method for result in results))
    return Entry(
        model=served.name,
        kind="explanation",
        method=", ".join(methods),
        title=title_of(question.input, served),
        said=results[0].text if isinstance(results[0], Generation) else str(first.prediction),
        question=question.model_dump(exclude_defaults=True, exclude={"wait"}),
        results=[plain_of(result) for result in results],
        failures=failures,
        beside=beside,
        picture=question.input.image,
    )


def plain_of(result: Any) -> dict[str, Any]:
    """As a file would hold it: JSON has no tuples, and half a character is an escape."""
    plain: dict[str, Any] = json.loads(json.dumps(result.to_dict()))
    return plain


def title_of(asked: Input, served: ServedModel) -> str:
    words = asked.text or asked.prompt
    if words is not None:
        return " ".join(words.split())[:LONGEST_TITLE]
    if asked.row is not None:
        return ", ".join(f"{name} = {value}" for name, value in asked.row.items())[:LONGEST_TITLE]
    erased = f", {len(asked.erased)} patches erased" if asked.erased else ""
    if asked.sample is None:
        return f"picture {str(asked.image)[:8]}{erased}"
    sample = served.samples[asked.sample]
    return sample if isinstance(sample, str) else f"sample {asked.sample} of {served.name}{erased}"


def explanation_of(store: Store, identity: str) -> Explanation:
    """The first explanation of a stored answer."""
    entry = store.get(identity)
    if entry is None:
        raise BadInput(f"there is no result {identity!r}.")
    if entry.kind != "explanation":
        raise BadInput(f"{identity!r} is no explanation but {entry.kind}.")
    return _first(results_of(entry)[0])


# What an edit changed


def difference(before: Explanation, after: Explanation) -> dict[str, Any]:
    """Probabilities of classes and scores of units, before and after; units that are there once only have one."""
    said = [_probabilities(e.prediction) for e in (before, after)]
    names = list(dict.fromkeys([*said[1], *said[0]]))
    classes = [{"label": name, "before": said[0].get(name), "after": said[1].get(name)} for name in names]
    return {
        "prediction": [str(before.prediction), str(after.prediction)],
        "value": [float(before.value), float(after.value)],
        "same": (before.method, str(before.target), before.scalar) == (after.method, str(after.target), after.scalar),
        "explained": [f"{e.method}, {e.target}" for e in (before, after)],
        "classes": classes,
        "units": _units(before, after),
    }


def _probabilities(prediction: Target) -> dict[str, float | None]:
    listed: dict[str, float | None] = {str(prediction): prediction.probability}
    return listed | {str(choice): choice.probability for choice in prediction.next or ()}


def _units(before: Explanation, after: Explanation) -> list[dict[str, Any]]:
    """In the order of the text; what was put in place of something else stands behind it."""
    old, new = before.units, after.units
    told = []
    for _, i, j, k, m in SequenceMatcher(None, old.labels, new.labels, autojunk=False).get_opcodes():
        if old.labels[i:j] == new.labels[k:m]:
            pairs: list[tuple[int | None, int | None]] = list(zip(range(i, j), range(k, m), strict=True))
        else:
            pairs = [(a, None) for a in range(i, j)] + [(None, b) for b in range(k, m)]
        for a, b in pairs:
            label = new.labels[b] if b is not None else old.labels[a or 0]
            told.append({"label": label, "before": _score(before, a), "after": _score(after, b)})
    return told


def _score(explanation: Explanation, unit: int | None) -> float | None:
    return None if unit is None else round(float(explanation.scores[unit]), 6)


# Methods measured against each other


def compared(served: ServedModel, question: Compare, store: Store) -> Working:
    """Each method is measured by itself and its variants are remembered on disk; then all of them together."""
    raw = [served.opened(each, store) for each in question.inputs]
    with TemporaryDirectory() as folder:
        how = {"cache": folder, "seed": question.seed}
        running: list[str] = []
        failures: dict[str, str] = {}
        for method in methods_compared(served, question):
            try:
                served.explainer.compare(raw, methods=[method], **how)
                running.append(method)
            except WhyformerError as reason:
                failures[method] = str(reason)
            yield
        if not running:
            raise NotOffered(" ".join(failures.values()))
        result = served.explainer.compare(raw, methods=running, **how)
    several = f"{len(raw)} inputs: " if len(raw) > 1 else ""
    return store.add(
        Entry(
            model=served.name,
            kind="comparison",
            method=f"{len(running)} methods",
            title=several + title_of(question.inputs[0], served),
            said=f"best: {result.rows[0].name}",
            question=question.model_dump(exclude_defaults=True, exclude={"wait"}),
            results=[plain_of(result)],
            failures=failures | result.failures,
        )
    )


def methods_compared(served: ServedModel, question: Compare) -> list[str]:
    """Those that were named, else all that explain this model and take few passes."""
    if question.methods is not None:
        return list(dict.fromkeys(question.methods))
    return cheap_methods(served)


def cheap_methods(served: ServedModel, units: int = MANY_UNITS) -> list[str]:
    """Methods of a few passes that are not known to refuse this model."""
    refusing = {name for name, trouble in (served.troubles or {}).items() if trouble}
    chosen = []
    for name, method in list_methods().items():
        forwards, backwards = method.cost(units, **method.defaults)
        few = forwards + 2 * backwards <= MOST_PASSES and not is_dear(name, units)
        if few and name != "random" and name not in refusing:
            chosen.append(name)
    return chosen


def side_by_side_of(question: Compare, store: Store) -> str:
    """Results that are there already, as one answer."""
    entries = []
    for identity in question.results:
        entry = store.get(identity)
        if entry is None or entry.kind != "explanation":
            raise BadInput(f"there is no explanation {identity!r}.")
        entries.append(entry)
    results = [result for entry in entries for result in results_of(entry)]
    if not all(isinstance(result, Explanation) for result in results):
        raise BadInput("answers of language models are looked at one by one.")
    if len({result.units.labels for result in results}) > 1:
        raise BadInput("these results are of inputs that differ: choose results of one input.")
    first = entries[0]
    return store.add(
        Entry(
            model=first.model,
            kind="explanation",
            method=", ".join(dict.fromkeys(result.method for result in results)),
            title=first.title,
            said=first.said,
            question=first.question,
            results=[plain for entry in entries for plain in entry.results],
            picture=first.picture,
        )
    )
