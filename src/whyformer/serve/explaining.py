"""What jobs of a model do: predict and explain; one method is one unit of work, and one that fails is told."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Sequence
from typing import Any

from whyformer.errors import BadInput, NotOffered, WhyformerError
from whyformer.serve.difference import difference
from whyformer.serve.drawn import results_of
from whyformer.serve.models import ServedModel, erasable, first_of
from whyformer.serve.question import Explain, Input, Predict
from whyformer.serve.store import Entry, Store
from whyformer.types import Explanation, Generation, Target
from whyformer.views.image import frames_of

Working = Generator[None, None, Any]

LONGEST_TITLE = 200
MOST_ITEMS = 20  # objects of a detector, or written tokens, that are drawn one by one
log = logging.getLogger("whyformer.serve")


def predicted(served: ServedModel, asked: Predict, store: Store) -> dict[str, Any]:
    """What the model says, and of which units its input is made: one forward pass."""
    if asked.target is not None and served.kind != "detector":
        raise BadInput("a probability as target is for detectors.")
    result = served.explainer.explain(served.opened(asked.input, store), method="random", target=asked.target)
    first = first_of(result)
    told: dict[str, Any] = {"prediction": said_by(first.prediction), "units": list(first.units.labels)}
    told |= {"scalar": first.scalar, "value": float(first.value), "erasable": erasable(first.units)}
    if isinstance(result, list):
        told["items"] = [_item(each) for each in result]
        told["note"] = next((note for note in first.warnings if note.startswith("no detection")), None)
    return told


def _item(explanation: Explanation) -> dict[str, Any]:
    """One object of a detector with its box, or one written token."""
    frames = frames_of(explanation)
    return {
        "label": str(explanation.target),
        "query": explanation.target.position if frames else None,
        "box": list(frames[0].box) if frames else None,
    }


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
    before = None if question.edited_from is None else explanations_of(store, question.edited_from, served)
    raw = served.opened(question.input, store)
    results: list[Any] = []
    failures: dict[str, str] = {}
    count = 0
    for method in dict.fromkeys(question.methods):
        try:
            made = listed(served.explainer.explain(raw, method=method, **how_of(question)))
            results += made[:MOST_ITEMS]
            count = max(count, len(made))
        except WhyformerError as reason:
            failures[method or served.default] = str(reason)
        except Exception as error:  # of a model's own code, or a bug: the other methods are explained all the same
            log.exception("%s on %s failed", method, served.name)
            failures[method or served.default] = f"failed: {type(error).__name__}: {error}"
        yield
    if not results:
        raise NotOffered(" ".join(failures.values()))
    beside: dict[str, Any] = {"count": count} if count > 1 else {}
    after = [result for result in results if isinstance(result, Explanation)]
    if before and after:
        beside["difference"] = difference(before, after)
    return store.add(entry_of(served, question, results, failures, beside))


def how_of(question: Explain) -> dict[str, Any]:
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


def listed(result: Any) -> list[Any]:
    """One explanation or answer, or one per object or written token."""
    if isinstance(result, list) and not isinstance(result, Generation):
        if not result:
            raise NotOffered("the model says nothing about this input.")
        return list(result)
    return [result]


def entry_of(
    served: ServedModel, question: Explain, results: Sequence[Any], failures: dict[str, str], beside: dict[str, Any]
) -> Entry:
    methods = list(dict.fromkeys(result.method for result in results))
    return Entry(
        model=served.name,
        kind="explanation",
        method=", ".join(methods),
        title=title_of(question.input, served),
        said=said_in(results),
        question=question.model_dump(exclude_defaults=True, exclude={"wait"}),
        results=[plain_of(result) for result in results],
        failures=failures,
        beside=beside,
        picture=question.input.image or question.input.sound,
    )


def plain_of(result: Any) -> dict[str, Any]:
    """As a file would hold it: JSON has no tuples, and half a character is an escape."""
    plain: dict[str, Any] = json.loads(json.dumps(result.to_dict()))
    return plain


def said_in(results: Sequence[Any]) -> str:
    """The prediction in one line; of a detector all objects, of a model that writes its words."""
    first = results[0]
    if isinstance(first, Generation):
        return str(first.text)
    of_one_method = [each for each in results if each.method == first.method]
    labels = [str(each.prediction if len(of_one_method) == 1 else each.target) for each in of_one_method]
    return " ".join(label.replace("▁", " ").replace("Ġ", " ").strip() for label in labels)[:LONGEST_TITLE]


def title_of(asked: Input, served: ServedModel) -> str:
    texts = [words for words in (asked.text, asked.prompt, asked.second) if words is not None]
    sample = None if asked.sample is None else served.samples[asked.sample]
    if not texts:
        texts = [part for part in (sample if isinstance(sample, tuple) else (sample,)) if isinstance(part, str)]
    if texts:
        return " · ".join(" ".join(words.split()) for words in texts)[:LONGEST_TITLE]
    if asked.row is not None:
        return ", ".join(f"{name} = {value}" for name, value in asked.row.items())[:LONGEST_TITLE]
    count = len(asked.erased)
    erased = f", {count} patch{'es' * (count != 1)} erased" if count else ""
    if sample is None:
        return f"picture {asked.image[:8]}{erased}" if asked.image else f"sound {str(asked.sound)[:8]}"
    return f"sample {asked.sample} of {served.name}{erased}"


def explanations_of(store: Store, identity: str, served: ServedModel) -> list[Explanation]:
    """What a stored answer of this model holds; of a language model's answer, nothing."""
    entry = store.get(identity)
    if entry is None:
        raise BadInput(f"there is no result {identity!r}.")
    if entry.kind != "explanation":
        raise BadInput(f"{identity!r} is no explanation but {entry.kind}.")
    if entry.model != served.name:
        raise BadInput(f"{identity!r} is of the model {entry.model!r}: an edit is asked of the same one.")
    return [result for result in results_of(entry) if isinstance(result, Explanation)]
