"""whyformer heads: which attention heads matter, and what they do."""

from __future__ import annotations

import json as json_text
from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.cli._input import DATA, PICTURES, check_out, inputs_from
from whyformer.cli._options import AnyOut, BatchSize, File, Inputs, Json, Model, Seed, Target, Trusted
from whyformer.cli._output import print_json, say_written
from whyformer.files.paths import writing

WHAT = ("importance", "roles", "layers", "induction", "circuits")


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
      whyformer heads --model my-gpt2/ --what induction
    """
    from whyformer.errors import one_of

    one_of("--what", what, WHAT)
    check_out(out, (*PICTURES, *DATA), f" with --what {what}")
    from whyformer.cli._model import load_any, load_text

    loaded, processor, modality = (*load_text(None), "text") if model is None else load_any(model, trust_remote_code)
    needs_inputs = what in {"importance", "roles", "layers"}
    raw = inputs_from(inputs or [], file, modality, "heads") if needs_inputs else None
    options: dict[str, Any] = {"kind": kind, "per": per, "target": target, "normalize": normalize, "seed": seed}
    result = _result(what, loaded, processor, raw, options, batch_size)
    if json:
        print_json(_plain(what, result))
    else:
        result.show()
    if out is not None:
        _write(what, result, out)
        say_written([out])


def _result(
    what: str, model: Any, processor: Any, inputs: list[Any] | None, options: dict[str, Any], batch_size: int | None
) -> Any:
    from whyformer import heads
    from whyformer.cli._input import target_from

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
    if what == "importance":
        return result.to_dict()
    if what == "roles":
        return result.rows()
    if what == "layers":
        return result.rows()
    names = ("previous_token", "duplicate_token", "induction") if what == "induction" else ("copying", "matching")
    return {name: getattr(result, name).tolist() for name in names}


def _write(what: str, result: Any, out: Path) -> None:
    if out.suffix == ".json" and what != "importance":  # the table alone, without the weights behind it
        with writing(out):
            out.write_text(json_text.dumps(_plain(what, result), ensure_ascii=False), encoding="utf-8")
    else:
        result.save(out)
