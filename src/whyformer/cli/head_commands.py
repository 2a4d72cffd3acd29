"""whyformer heads: which attention heads matter, and what they do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from whyformer.cli._input import inputs_from, number_or_word, texts_from
from whyformer.cli._options import HEAD_RESULTS, CommandArguments, takes
from whyformer.cli._results import deliver
from whyformer.errors import BadInput, one_of

UNASKED = ("induction", "circuits")  # these need no inputs
ORDERS = ("importance", "gates", "random")


@takes(
    "inputs file model trust_remote_code what/heads kind per target normalize labels order points penalty steps/gates "
    "batch_size seed out json"
)
def heads(asked: CommandArguments) -> None:
    """Show which attention heads matter, and what they do.

    Without texts: the five sentences of the demo.

    \b
    Examples:
      whyformer heads
      whyformer heads "I like the movie" --kind ablation
      whyformer heads --file reviews.txt --out heads.png
      whyformer heads --what roles --file reviews.txt
      whyformer heads --what layers --out layers.png
      whyformer heads --what pruning --file reviews.txt --labels labels.txt
      whyformer heads --what gates --penalty 0.05 --out gates.html
      whyformer heads --model my-gpt2/ --what induction
    """
    one_of("--what", asked.what, HEAD_RESULTS)
    one_of("--order", asked.order, ORDERS)
    from whyformer import heads as library

    model, processor, modality = asked.load_any()
    common: dict[str, Any] = {"processor": processor, "batch_size": asked.batch_size}
    seeded, target = {"seed": asked.seed}, {"target": asked.settings["target"]}
    importance = {"kind": asked.kind, "per": asked.per, "normalize": asked.normalize, **target, **seeded, **common}
    beside: dict[str, Any] = {}
    raw = inputs_from(asked.inputs or [], asked.file, modality, "heads") if asked.what not in UNASKED else []
    result: Any
    if asked.what == "induction":
        result = library.induction(model, **common, **seeded)
    elif asked.what == "circuits":
        result = library.circuits(model, processor=processor, **seeded)
    elif asked.what == "importance":
        result = library.head_importance(model, raw, **importance)
    elif asked.what == "roles":
        result = library.roles(model, raw, **common)
    elif asked.what == "layers":
        result = library.layer_profile(model, raw, **target, **common)
    else:
        demo = modality == "text" and not asked.inputs and asked.file is None
        classes = _classes(asked.labels, raw, demo, needed="gates" in (asked.what, asked.order))
        training = {"penalty": asked.penalty, "steps": asked.steps, **seeded, **common}
        if asked.what == "gates":
            result = library.learn_gates(model, raw, classes or [], **training)
        else:
            settings = {"points": asked.points, **seeded, **common}
            result, beside = _pruning(model, raw, classes, asked.order, importance, training, settings)
    deliver(result, asked, plain=result.rows() if asked.what in ("roles", "layers") else None, **beside)


def _classes(file: Path | None, inputs: list[Any], demo: bool, needed: bool) -> list[int | str] | None:
    """Return a class per input. Pruning without classes measures agreement with the whole model."""
    from whyformer.demo import SENTENCE_LABELS

    if file is None:
        if needed and not demo:
            raise BadInput("gates are trained on the right answers: give --labels FILE, one class per line.")
        return list(SENTENCE_LABELS) if demo else None
    classes = [number_or_word(line.strip()) for line in texts_from([], file)]
    if len(classes) != len(inputs):
        raise BadInput(f"{str(file)!r} has {len(classes)} labels, and there are {len(inputs)} inputs: one each.")
    return classes


def _pruning(
    model: Any,
    inputs: list[Any],
    classes: list[int | str] | None,
    order: str,
    importance: dict[str, Any],
    training: dict[str, Any],
    settings: dict[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """Return the curve, and a random one to draw beside it. The order is found on inputs that are not tested."""
    from whyformer import heads

    if len(inputs) < 2:
        raise BadInput("pruning needs two inputs at least: one half finds the order, the other tests it.")
    settings["metric"] = "agreement" if classes is None else "accuracy"
    if order == "random":  # found on nothing
        return heads.pruning_curve(model, inputs, classes, order="random", **settings), {}
    found_on, tested_on, truth = inputs[::2], inputs[1::2], classes and classes[1::2]
    ranked: Any
    if order == "gates":
        ranked = heads.learn_gates(model, found_on, (classes or [])[::2], **training)
    else:
        ranked = heads.head_importance(model, found_on, **importance)
    curve, chance = (heads.pruning_curve(model, tested_on, truth, order=o, **settings) for o in (ranked, "random"))
    typer.echo(
        f"the order of heads comes from {len(found_on)} inputs, the curve from {len(tested_on)} others.", err=True
    )
    return curve, {"beside": [chance]}
