"""whyformer maximize: an input made to drive one unit of a model as high as it goes."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from whyformer.cli._input import check_out, options_from
from whyformer.cli._options import AnyOut, Json, Seed, Trusted
from whyformer.cli._output import deliver_result

SHIPPED = "zebra-like"


def maximize(
    unit: Annotated[
        str | None,
        typer.Argument(metavar="CLASS", help="Class, by name or index.", show_default=f"shipped model: {SHIPPED}"),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Folder or hub name.", show_default="the shipped texture model"),
    ] = None,
    trust_remote_code: Trusted = False,
    layer: Annotated[
        str | None,
        typer.Option("--layer", "-l", metavar="LAYER", help="Attention block by number, or module name; its mean."),
    ] = None,
    neuron: Annotated[
        int | None, typer.Option("--neuron", "-n", min=0, metavar="N", help="One neuron of the layer.")
    ] = None,
    position: Annotated[
        int | None, typer.Option("--position", min=0, metavar="N", help="The neuron at this token only.")
    ] = None,
    steps: Annotated[int, typer.Option("--steps", min=1, metavar="N", help="Steps uphill.")] = 256,
    l2: Annotated[float, typer.Option("--l2", metavar="LAMBDA", help="Pictures: penalty LAMBDA·‖x‖².")] = 1e-4,
    tv: Annotated[float, typer.Option("--tv", metavar="LAMBDA", help="Pictures: penalty LAMBDA·TV(x).")] = 1e-4,
    length: Annotated[int, typer.Option("--length", min=1, metavar="N", help="Texts: how many tokens.")] = 8,
    option: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            "-o",
            metavar="KEY=VALUE",
            help="An option of activation_maximization, e.g. jitter=8; repeatable.",
        ),
    ] = None,
    seed: Seed = 0,
    out: AnyOut = None,
    json: Json = False,
) -> None:
    """Make an input that drives one unit as high as it goes.

    Penalties are sums over pixels and colours, in units of the activation:
    raise them by tens until the picture clears up.

    \b
    Examples:
      whyformer maximize
      whyformer maximize zebra-like --l2 0.01 --tv 0.03 --out zebra.png
      whyformer maximize --layer 2 --neuron 5
      whyformer maximize cat --model my-vit/ --option jitter=8
      whyformer maximize positive --model my-bert/ --length 5
    """
    check_out(out)
    sought = _unit(unit, layer, neuron, position, model)
    settings: dict[str, Any] = {"steps": steps, "l2": l2, "tv": tv, "length": length, "seed": seed}
    settings |= options_from(option or [])
    from whyformer.cli._model import load_any, load_textures
    from whyformer.concepts.activation_maximization import activation_maximization
    from whyformer.errors import BadInput

    loaded, processor, kind = (*load_textures(), "image") if model is None else load_any(model, trust_remote_code)
    if kind not in ("image", "text"):
        raise BadInput(f"{model!r} is no model of images alone or texts alone: neither can be made for it.")
    deliver_result(activation_maximization(loaded, sought, processor=processor, **settings), out, json)


def _unit(unit: str | None, layer: str | None, neuron: int | None, position: int | None, model: str | None) -> Any:
    """As ``activation_maximization`` takes it."""
    from whyformer.cli._input import layer_from, target_from

    if layer is None:
        if neuron is not None or position is not None:
            raise typer.BadParameter("a neuron is one of a layer: give --layer, too", param_hint="--neuron")
        if unit is None and model is not None:
            raise typer.BadParameter("your own model needs a class, or --layer", param_hint="CLASS")
        return target_from(unit or SHIPPED, None)
    if unit is not None:
        raise typer.BadParameter("give a class or --layer, not both", param_hint="--layer")
    place = layer_from(layer)
    if neuron is None:
        if position is not None:
            raise typer.BadParameter("give --neuron, too: which one at that token", param_hint="--position")
        return ("layer", place)
    return ("neuron", place, neuron) if position is None else ("token", place, position, neuron)
