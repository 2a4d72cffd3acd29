"""Methods measured against each other on some inputs; and results that are there already, side by side."""

from __future__ import annotations

from tempfile import TemporaryDirectory

from whyformer.errors import BadInput, NotOffered, WhyformerError
from whyformer.registry import list_methods
from whyformer.serve.drawn import results_of
from whyformer.serve.explaining import Working, plain_of, title_of
from whyformer.serve.models import MANY_UNITS, ServedModel, is_dear
from whyformer.serve.question import Compare
from whyformer.serve.store import Entry, Store
from whyformer.types import Explanation

MOST_PASSES = 12  # of a method that is run beside others


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
            picture=question.inputs[0].image or question.inputs[0].sound,
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
        if entry.beside.get("count"):
            raise BadInput("results of several objects or written tokens are looked at one by one.")
        entries.append(entry)
    if len({entry.model for entry in entries}) > 1:  # maps are named by their methods: whose they are would be lost
        raise BadInput("these results are of different models: choose results of one model.")
    results = [result for entry in entries for result in results_of(entry)]
    if not all(isinstance(result, Explanation) for result in results):
        raise BadInput("answers of language models are looked at one by one.")
    # Patches and columns have the same names in every input: what they hold has to be the same, too.
    inputs = {(r.units.labels, r.units.text, r.units.values, r.units.wave, r.picture) for r in results}
    if len(inputs) > 1:
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
