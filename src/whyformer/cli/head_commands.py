"""whyformer heads: which attention heads matter, and what they do."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.cli._explaining import print_json, say_written
from whyformer.cli._input import DATA, PICTURES, check_out, inputs_from, target_from
from whyformer.cli._options import AnyOut, BatchSize, File, Inputs, Json, Model, Seed, Target, Trusted
from whyformer.files.paths import writing

WHAT = ("importance", "roles", "layers", "pruning", "gates", "induction", "circuits")
ORDERS = ("importance", "gates", "random")


def heads(
    inputs: Inputs = None,
    file: File = None,
    model: Model = None,
    trust_remote_code: Trusted = False,
    what: Annotated[str, typer.Option("--what", metavar="WHAT", help=f"One of: {', '.join(WHAT)}.")] = "importance",
    kind: Annotated[
        str, typer.Option("--kind", metavar="KIND", help="Importance by gradient, confidence, relevance or ablation.")
    ] = "gradient",
    per: Annotated[
        str, typer.Option("--per", metavar="PER", help="Gradients per example, token or batch.")
    ] = "example",
    target: Target = None,
    normalize: Annotated[
        str | None, typer.Option("--normalize", metavar="HOW", help="l2, minmax, l2_minmax or share.")
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            "--labels",
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="Right classes, one per line: for gates, and the accuracy of pruning.",
        ),
    ] = None,
    order: Annotated[
        str, typer.Option("--order", metavar="ORDER", help="Pruning: importance (by --kind), gates or random.")
    ] = "importance",
    points: Annotated[
        int | None,
        typer.Option("--points", min=2, metavar="N", help="Pruning: numbers of heads tried.", show_default="all, 21"),
    ] = None,
    penalty: Annotated[float, typer.Option("--penalty", metavar="COST", help="Gates: what an open head costs.")] = 0.02,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Gates: steps of training.")] = 200,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    out: AnyOut = None,
    json: Json = False,
) -> None:
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
    from whyformer.errors import one_of

    one_of("--what", what, WHAT)
    one_of("--order", order, ORDERS)
    check_out(out, (*PICTURES, *DATA), f" with --what {what}")
    from whyformer.cli._options import load_any, load_text

    loaded, processor, modality = (*load_text(None), "text") if model is None else load_any(model, trust_remote_code)
    needs_inputs = what not in {"induction", "circuits"}
    raw = inputs_from(inputs or [], file, modality, "heads") if needs_inputs else None
    options: dict[str, Any] = {"kind": kind, "per": per, "target": target, "normalize": normalize, "seed": seed}
    beside: dict[str, Any] = {}
    if raw is not None and what in ("pruning", "gates"):
        right = _labels(labels, raw, demo=modality == "text" and not inputs and file is None, what=what, order=order)
        training = {"penalty": penalty, "steps": steps, "batch_size": batch_size, "seed": seed, "processor": processor}
        if what == "gates":
            result = _gates(loaded, raw, right, training)
        else:
            result, beside = _pruning(loaded, raw, right, order, points, options, training)
    else:
        result = _result(what, loaded, processor, raw, options, batch_size)
    if json:
        print_json(_plain(what, result))
    else:
        result.show(**beside)
    if out is not None:
        _write(what, result, out, beside)
        say_written([out])


def _labels(file: Path | None, inputs: list[Any], demo: bool, what: str, order: str) -> list[str] | None:
    """One per input. Pruning does without them: it then asks how often the model still says the same."""
    from whyformer.cli._input import texts_from
    from whyformer.demo import SENTENCE_LABELS
    from whyformer.errors import BadInput

    if file is None:
        if demo:
            return list(SENTENCE_LABELS)
        if what == "gates" or order == "gates":
            raise BadInput("gates are trained on the right answers: give --labels FILE, one class per line.")
        return None
    classes = [line.strip() for line in texts_from([], file)]
    if len(classes) != len(inputs):
        raise BadInput(f"{str(file)!r} has {len(classes)} labels, and there are {len(inputs)} inputs: one each.")
    return classes


def _gates(model: Any, inputs: list[Any], labels: list[str] | None, training: dict[str, Any]) -> Any:
    from whyformer import heads

    return heads.learn_gates(model, inputs, [target_from(label, None) for label in labels or []], **training)


def _pruning(
    model: Any,
    inputs: list[Any],
    labels: list[str] | None,
    order: str,
    points: int | None,
    options: dict[str, Any],
    training: dict[str, Any],
) -> tuple[Any, dict[str, Any]]:
    """The curve, and a random one to draw beside it. What is tested is not what the order was found on."""
    from whyformer import heads
    from whyformer.errors import BadInput

    if len(inputs) < 2:
        raise BadInput("pruning needs two inputs at least: one half finds the order, the other tests it.")
    common = {"processor": training["processor"], "batch_size": training["batch_size"]}
    classes = None if labels is None else [target_from(label, None) for label in labels]
    found_on, tested_on, truth = inputs[::2], inputs[1::2], classes and classes[1::2]
    ranked: Any = "random"
    if order == "gates":
        ranked = _gates(model, found_on, labels and labels[::2], training)
    elif order == "importance":
        ranked = heads.head_importance(
            model, found_on, **common, **{**options, "target": target_from(options["target"], None)}
        )
    settings: dict[str, Any] = {"points": points, "metric": "agreement" if classes is None else "accuracy", **common}
    settings["seed"] = options["seed"]
    if order == "random":  # found on nothing
        return heads.pruning_curve(model, inputs, classes, order="random", **settings), {}
    curve = heads.pruning_curve(model, tested_on, truth, order=ranked, **settings)
    typer.echo(
        f"the order of heads comes from {len(found_on)} inputs, the curve from {len(tested_on)} others.", err=True
    )
    return curve, {"beside": [heads.pruning_curve(model, tested_on, truth, order="random", **settings)]}


def _result(
    what: str, model: Any, processor: Any, inputs: list[Any] | None, options: dict[str, Any], batch_size: int | None
) -> Any:
    from whyformer import heads

    common = {"processor": processor, "batch_size": batch_size}
    target = target_from(options["target"], None)
    if what == "roles":
        return heads.roles(model, inputs, **common)
    if what == "layers":
        return heads.layer_profile(model, inputs, target=target, **common)
    if what == "induction":
        return heads.induction(model, seed=options["seed"], **common)
    if what == "circuits":
        return heads.circuits(model, processor=processor, seed=options["seed"])
    return heads.head_importance(model, inputs, **common, **{**options, "target": target})


def _plain(what: str, result: Any) -> Any:
    if what in ("importance", "pruning", "gates"):
        return result.to_dict()
    if what == "roles":
        return result.rows()
    if what == "layers":
        return result.rows()
    names = ("previous_token", "duplicate_token", "induction") if what == "induction" else ("copying", "matching")
    return {name: getattr(result, name).tolist() for name in names}


def _write(what: str, result: Any, out: Path, beside: dict[str, Any]) -> None:
    if out.suffix == ".json" and what in (
        "roles",
        "layers",
        "induction",
        "circuits",
    ):  # the table alone, without the weights behind it
        with writing(out):
            out.write_text(json_text.dumps(_plain(what, result), ensure_ascii=False), encoding="utf-8")
    else:
        result.save(out, **(beside if out.suffix in PICTURES else {}))
