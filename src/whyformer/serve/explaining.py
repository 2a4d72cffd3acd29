"""Jobs of a served model: explain, compare, edit and heads. Each method is one unit of work."""

from __future__ import annotations

import json
import logging
import math
from base64 import b64encode
from collections import defaultdict
from collections.abc import Generator, Sequence
from copy import copy
from difflib import SequenceMatcher
from typing import Any

import numpy as np

from whyformer.errors import BadInput, NotOffered, WhyformerError
from whyformer.evaluate.candidate import Annotations, Candidate, evaluated, run_variants, wanted
from whyformer.evaluate.compare import chosen_metrics, comparison_of
from whyformer.evaluate.games import Games
from whyformer.evidence import too_few
from whyformer.options import Writing, names_of
from whyformer.registry import list_methods
from whyformer.results.types import Choice, Explanation, Generation, Target
from whyformer.serve.drawn import aim_of, numbers_of, require_same_answer, results_of, stored, subject_of
from whyformer.serve.messages import Compare, Explain, Input, Predict
from whyformer.serve.models import MANY_UNITS, ServedModel, erasable, first_of, is_dear
from whyformer.serve.store import Entry, Store
from whyformer.views.image_marks import frames_of, shrunk

# What an edit changed: probabilities of classes and scores of units, before and after.


def difference(before: Sequence[Explanation], after: Sequence[Explanation]) -> dict[str, Any]:
    """Compare two explanations of the same question, before and after an edit; else the first of each."""
    one, two = next(((b, a) for b in before for a in after if _asked(b) == _asked(a)), (before[0], after[0]))
    said: list[dict[str, float | None]] = [
        {str(choice): choice.probability for choice in _choices(e.prediction)} for e in (one, two)
    ]
    names = list(dict.fromkeys([*said[1], *said[0]]))
    classes = [{"label": name, "before": said[0].get(name), "after": said[1].get(name)} for name in names]
    return {
        "prediction": [str(one.prediction), str(two.prediction)],
        "value": [float(one.value), float(two.value)],
        "scalar": two.scalar,
        "same": _asked(one) == _asked(two),
        "explained": [f"{e.method}, {e.target}" for e in (one, two)],
        "classes": classes,
        "units": _units(one, two),
    }


def _asked(explanation: Explanation) -> tuple[Any, ...]:
    return explanation.method, explanation.target, explanation.scalar, explanation.options


def _choices(prediction: Target) -> list[Target | Choice]:
    return [prediction, *(prediction.next or ())]


def _units(before: Explanation, after: Explanation) -> list[dict[str, Any]]:
    """Return the words in the order of the text; a replacement follows the word that it replaces."""
    old, new = before.units, after.units
    told = []
    for _, i, j, k, m in SequenceMatcher(None, old.labels, new.labels, autojunk=False).get_opcodes():
        if old.labels[i:j] == new.labels[k:m]:
            pairs: list[tuple[int | None, int | None]] = list(zip(range(i, j), range(k, m), strict=True))
        else:
            pairs = [(a, None) for a in range(i, j)] + [(None, b) for b in range(k, m)]
        for a, b in pairs:
            label = new.labels[b] if b is not None else old.labels[a or 0]
            sides = ((before, a), (after, b))
            scores = [None if unit is None else round(float(e.scores[unit]), 6) for e, unit in sides]
            # What stood in a column.
            values = [None if unit is None or e.units.values is None else e.units.values[unit] for e, unit in sides]
            told.append({"label": label, "values": values, "before": scores[0], "after": scores[1]})
    return told


Working = Generator[None, None, Any]

LONGEST_TITLE = 200
TAKEN = ("method", "inputs", *(name for name in names_of(Writing) if name != "passes"))  # names of ``explain`` itself
MOST_ITEMS = 20  # objects of a detector, or written tokens, that are drawn one by one
log = logging.getLogger("whyformer.serve")


def predicted(served: ServedModel, asked: Predict, store: Store) -> dict[str, Any]:
    """Return the prediction and the units of the input: one forward pass."""
    if asked.target is not None and served.kind != "detector":
        raise BadInput("a probability as target is supported for detectors only.")
    result = served.explainer.explain(served.opened(asked.input, store), method="random", target=asked.target)
    first = first_of(result)
    said, *others = [
        {"label": str(choice), "index": choice.index, "probability": choice.probability}
        for choice in _choices(first.prediction)
    ]
    told: dict[str, Any] = {"prediction": said | {"next": others}, "units": list(first.units.labels)}
    told |= {"scalar": first.scalar, "value": float(first.value), "erasable": erasable(first.units)}
    if isinstance(result, list):  # objects of a detector with their boxes, or written tokens
        frames = [frames_of(each) for each in result]
        told["items"] = [
            {
                "label": str(each.target),
                "query": each.target.position if framed else None,
                "box": list(framed[0].box) if framed else None,
            }
            for each, framed in zip(result, frames, strict=True)
        ]
        told["note"] = next((note for note in first.warnings if note.startswith("no detection")), None)
    return told


def explained(served: ServedModel, question: Explain, store: Store) -> Working:
    """One result per method; those that refuse are listed with their reason."""
    before = None if question.edited_from is None else explanations_of(store, question.edited_from, served)
    raw, settings = served.opened(question.input, store), _settings(question)
    results: list[Any] = []
    failures: dict[str, str] = {}
    count = 0
    for method in dict.fromkeys(question.methods):
        try:
            asked = None if method == served.default else method  # within the passes of the default
            made = listed(served.explainer.explain(raw, method=asked, **settings))
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
    methods = ", ".join(dict.fromkeys(result.method for result in results))
    fields: dict[str, Any] = {"kind": "explanation", "method": methods, "said": said_in(results), "beside": beside}
    return stored_results(store, served, question, question.input, results, failures=failures, **fields)


def _settings(question: Explain) -> dict[str, Any]:
    """Return the question by the names that ``explain`` has."""
    settings: dict[str, Any] = {"target": question.aim, "scalar": question.scalar, "seed": question.seed}
    if question.units != "token":
        settings["units"] = question.units
    if question.generate is not None:
        settings["generate"] = question.generate
    clash = question.options.keys() & set(TAKEN)
    if clash:
        raise BadInput(f"{sorted(clash)[0]!r} is not an option of a method.")
    return settings | {name: tuple(v) if isinstance(v, list) else v for name, v in question.options.items()}


def listed(result: Any) -> list[Any]:
    """One explanation or answer, or one per object or written token."""
    if isinstance(result, list) and not isinstance(result, Generation):
        if not result:
            raise NotOffered("the model has no prediction for this input.")
        return list(result)
    return [result]


def stored_results(
    store: Store,
    served: ServedModel,
    question: Explain | Compare,
    shown: Input,
    results: Sequence[Any],
    prefix: str = "",
    **fields: Any,
) -> str:
    """Store results with their question, and return the id. ``shown``: the input that names them."""
    return store.add(
        Entry(
            model=served.name,
            title=prefix + title_of(shown, served),
            question=question.model_dump(exclude_defaults=True, exclude={"wait"}),
            results=[json.loads(json.dumps(result.to_dict())) for result in results],  # as a file: lists, no tuples
            picture=shown.image or shown.sound,
            **fields,
        )
    )


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
    """Return the explanations in a stored answer of this model; none for an answer of a language model."""
    entry = store.get(identity)
    if entry is None:
        raise BadInput(f"unknown result {identity!r}.")
    if entry.kind != "explanation":
        raise BadInput(f"{identity!r} is not an explanation but {entry.kind}.")
    if entry.model != served.name:
        raise BadInput(
            f"the result {identity!r} was made with the model {entry.model!r}: choose that model to edit its input."
        )
    return [result for result in results_of(entry) if isinstance(result, Explanation)]


# Methods measured against each other on some inputs; and results that are there already, side by side.

MOST_PASSES = 12  # of a method that is run beside others


def compared(served: ServedModel, question: Compare, store: Store) -> Working:
    """Explain by each method and run its variants, one unit of work each; then evaluate all of them together."""
    raw = [served.opened(each, store) for each in question.inputs]
    explainer = copy(served.explainer)
    explainer.advises = False
    judged = chosen_metrics(None, rationales=False, masks=False)
    # Other jobs run between two units of work, so the model is borrowed within each.
    with explainer.borrowed():
        games = Games(explainer, raw, scalar="centred", seed=question.seed)
    candidates: list[Candidate] = []
    for candidate in wanted(methods_compared(served, question)):
        with explainer.borrowed():
            candidates.append(evaluated(candidate, games, games.scalar))
            run_variants(games, candidates[-1], judged)
        yield
    with explainer.borrowed():
        result = comparison_of(games, candidates, judged, Annotations(), games.scalar)
    prefix = f"{len(raw)} inputs: " if len(raw) > 1 else ""
    fields: dict[str, Any] = {
        "kind": "comparison",
        "failures": result.failures,
        "said": too_few(result.inputs) or f"first: {result.rows[0].name}",
    }
    fields["method"] = f"{len(result.agreeing)} methods"
    return stored_results(store, served, question, question.inputs[0], [result], prefix, **fields)


def methods_compared(served: ServedModel, question: Compare) -> list[str]:
    """Return the requested methods, or all that explain this model in few passes."""
    return cheap_methods(served) if question.methods is None else list(dict.fromkeys(question.methods))


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
            raise BadInput(f"unknown explanation {identity!r}.")
        if entry.beside.get("count"):
            raise BadInput("results of several objects or generated tokens cannot be compared: open them one by one.")
        entries.append(entry)
    if len({entry.model for entry in entries}) > 1:  # maps are named by their methods: whose they are would be lost
        raise BadInput("the results are of different models: choose results of one model.")
    results = [result for entry in entries for result in results_of(entry)]
    if not all(isinstance(result, Explanation) for result in results):
        raise BadInput("answers of language models cannot be compared: open them one by one.")
    # Patches and columns have the same names in every input: what they hold has to be the same, too.
    inputs = {(r.units.labels, r.units.text, r.units.values, r.units.wave, r.picture) for r in results}
    if len(inputs) > 1:
        raise BadInput("the results are of different inputs: choose results of one input.")
    first = entries[0]
    methods = ", ".join(dict.fromkeys(result.method for result in results))
    plain = [each for entry in entries for each in entry.results]
    asked = (first.title, first.said, first.question)
    return store.add(Entry(first.model, "explanation", methods, *asked, plain, picture=first.picture))


# Layers × heads: who attends to whom in an input, and how much the explained score depends on each head.

MOST_CELLS = 600_000  # of all heads together
WIDEST = 96  # rows and columns of one head; of longer inputs, neighbours stand together


def heads(served: ServedModel, identity: str, store: Store, item: int = 0) -> Working:
    """The attention of every head over one stream, and its importance."""
    subject = subject_of(store, identity, item)
    raw, explanation = served.opened(subject.question.input, store), subject.first
    require_same_answer(served, raw, explanation, subject.question.units)
    if served.kind == "similarity":
        raise NotOffered("the two texts are run separately here, so heads have no common attention map.")
    record = served.explainer.record([raw])
    sites = [site for site in record.sites if site.kind == "self" and site.windows == 1]
    if not sites:
        raise NotOffered("attention runs within windows or between streams: heads have no map over the whole input.")
    side = min(WIDEST, int(math.sqrt(MOST_CELLS / max(1, sum(site.attention_BHQK.shape[1] for site in sites)))))
    mixed, units = len({site.streams for site in sites}) > 1, explanation.units
    names: list[list[str]] = []
    layers = []
    for site in sites:
        maps_HQK = site.attention_BHQK[0].float().cpu().numpy()
        cells = np.stack([shrunk(map_QK, side) for map_QK in maps_HQK])
        steps = np.rint(cells / (cells.max(axis=(1, 2), keepdims=True) + 1e-12) * 255).clip(0, 255).astype(np.uint8)
        entropy_H = -(maps_HQK * np.log(maps_HQK + 1e-12)).sum(-1).mean(-1)
        # A map is over all units of the input, or over those of its stream: whichever are as many as its columns.
        members = [label for label, at in zip(units.labels, units.stream, strict=True) if at == site.streams[1]]
        labels = next((list(each) for each in (units.labels, members) if len(each) == maps_HQK.shape[-1]), None)
        if labels is not None and labels not in names:
            names.append(labels)
        layers.append(
            {
                "path": site.path,
                "stream": site.streams[1] if mixed else None,
                "names": None if labels is None else names.index(labels),
                "heads": len(cells),
                "rows": cells.shape[1],
                "columns": cells.shape[2],
                "whole": cells.shape[1:] == maps_HQK.shape[1:],
                "highest": [round(float(m.max()), 5) for m in maps_HQK],
                "entropy": [round(float(e), 4) for e in entropy_H],
                "data": b64encode(steps.tobytes()).decode(),
            }
        )
    yield
    about = {"layers": layers, "names": names, "importance": _importance(served, raw, explanation, layers)}
    return stored(store, subject, "heads", about)


def _importance(
    served: ServedModel, raw: Any, explanation: Explanation, layers: list[dict[str, Any]]
) -> list[list[float | None]] | None:
    """A row per layer that is shown. Layers are known by their path: those that have no map are measured, too."""
    from whyformer.heads.importance import head_importance

    explainer = served.explainer
    try:
        aim = aim_of(served, explanation)
        importance = head_importance(explainer.model, [raw], processor=explainer.processor, target=aim)
    except WhyformerError:  # the maps are there without it
        return None
    rows: dict[str, list[list[float | None]]] = defaultdict(list)
    for path, scores in zip(importance.paths, importance.scores, strict=True):
        rows[path].append(numbers_of(scores))
    paths = [layer["path"] for layer in layers]
    if any(len(rows[path]) != paths.count(path) for path in paths):
        return None
    return [rows[path].pop(0) for path in paths]
