"""whyformer maximize: an input made to drive one unit of a model as high as it goes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.cli._explaining import deliver_result
from whyformer.cli._input import check_out, options_from
from whyformer.cli._options import AnyOut, BatchSize, Json, Seed, Trusted
from whyformer.extras import require

# whyformer tcav: does the model's answer depend on a concept?

PICTURES = (".png", ".jpg", ".jpeg", ".bmp", ".webp")
OUTPUTS = (".json", ".npz", ".html", ".png", ".svg", ".pdf")
SHIPPED_POOLING = "mean"  # what its textures are spread over; models of one's own have the default of wf.tcav


def tcav(
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Folder or hub name.", show_default="the shipped texture model"),
    ] = None,
    trust_remote_code: Trusted = False,
    concept: Annotated[
        list[str] | None,
        typer.Option("--concept", "-c", metavar="NAME=PATH", help="A concept: folder of images, or file of texts."),
    ] = None,
    random: Annotated[
        list[Path] | None,
        typer.Option(
            "--random",
            "-r",
            exists=True,
            metavar="PATH",
            help="A random set, or a folder of such sets; not needed with --relative.",
        ),
    ] = None,
    inputs: Annotated[
        Path | None,
        typer.Option("--inputs", "-i", exists=True, metavar="PATH", help="Inputs of the class that is asked about."),
    ] = None,
    target: Annotated[
        str | None, typer.Option("--target", "-t", metavar="CLASS", help="Class, by name or index.")
    ] = None,
    layer: Annotated[
        str | None,
        typer.Option("--layer", "-l", metavar="LAYER", help="Attention block by number, or module name."),
    ] = None,
    relative: Annotated[bool, typer.Option("--relative", help="Compare the concepts with each other.")] = False,
    pooling: Annotated[
        str | None,
        typer.Option(
            "--pooling", metavar="HOW", help="cls, mean or flat.", show_default=f"cls; shipped model: {SHIPPED_POOLING}"
        ),
    ] = None,
    classifier: Annotated[str, typer.Option("--classifier", metavar="NAME", help="logistic or sgd.")] = "logistic",
    batch_size: BatchSize = None,
    seed: Seed = 0,
    out: AnyOut = None,
    json: Json = False,
) -> None:
    """Test whether a model's answer depends on concepts.

    Without options: stripes, dots and bubbles in a small model of shapes and textures.

    \b
    Examples:
      whyformer tcav
      whyformer tcav --relative --out concepts.png
      whyformer tcav --model my-vit/ -c striped=stripes/ -c dotted=dots/ \\
          --random random/ --inputs zebras/ --target zebra --layer 8
      whyformer tcav --relative --model my-vit/ -c striped=stripes/ \\
          -c dotted=dots/ --inputs zebras/ --target zebra --layer 8
      whyformer tcav --model my-bert/ -c polite=polite.txt --random texts/ \\
          --inputs reviews.txt --target positive --layer 3
    """
    check_out(out, OUTPUTS)
    together = (model, concept, inputs)
    if any((*together, random)) and not all(together):
        raise typer.BadParameter("give --model, --concept, --random and --inputs together, or none of them")
    if model is not None and not random and not relative:
        raise typer.BadParameter("concepts are compared with --random sets; with --relative, with each other")
    if model is not None and (target is None or layer is None):
        raise typer.BadParameter("your own model needs --target and --layer")
    from whyformer.cli._input import layer_from, target_from
    from whyformer.concepts.concept_vectors import tcav as measure

    arguments = (
        shipped_concepts(seed)
        if model is None
        else _user_concepts(model, trust_remote_code, concept or [], random or [], inputs)
    )
    shipped_layer = arguments.pop("layer", None)
    place = shipped_layer if layer is None else layer_from(layer)
    aim = arguments.pop("target", None)
    aim = aim if target is None else target_from(target, None)
    loaded = arguments.pop("model")
    if model is None or pooling is not None:
        arguments["pooling"] = pooling or SHIPPED_POOLING
    result = measure(
        loaded,
        layer=place,
        target=aim,
        relative=relative,
        classifier=classifier,
        batch_size=batch_size,
        seed=seed,
        **arguments,
    )
    deliver_result(result, out, json)


def _user_concepts(
    model: str, trusted: bool, concepts: list[str], random: list[Path], inputs: Path | None
) -> dict[str, Any]:
    named = {}
    for option in concepts:
        name, sign, path = option.partition("=")
        if not sign or not name or not Path(path).exists():
            raise typer.BadParameter(f"{option!r} is not NAME=PATH of a folder or file", param_hint="--concept")
        named[name] = Path(path)
    from whyformer.cli._options import load_any

    loaded, processor, modality = load_any(model, trusted)
    assert inputs is not None
    return {
        "model": loaded,
        "processor": processor,
        "concepts": {name: _read(path, modality) for name, path in named.items()},
        "random_sets": [_read(path, modality) for each in random for path in _sets(each, modality)],
        "class_inputs": _read(inputs, modality),
    }


def _sets(path: Path, modality: str) -> list[Path]:
    """The sets inside a folder of sets, else the path itself."""
    if not path.is_dir():
        return [path]
    inside = sorted(
        p for p in path.iterdir() if (p.is_file() and p.suffix == ".txt" if modality == "text" else p.is_dir())
    )
    return inside or [path]


def _read(path: Path, modality: str) -> list[Any]:
    from whyformer.cli._input import texts_from
    from whyformer.errors import BadInput

    if modality == "text":
        if path.is_dir():
            raise BadInput(f"{str(path)!r} is a folder: texts are read from files, one per line.")
        return list(texts_from([], path))
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in PICTURES) if path.is_dir() else []
    if not files:
        raise BadInput(f"there are no images in {str(path)!r} ({', '.join(PICTURES)}).")
    return list(files)


def shipped_concepts(seed: int, sets: int = 20, size: int = 20) -> dict[str, Any]:
    """Generated pictures for the shipped model of textures."""
    import numpy as np

    from whyformer.cli._options import load_textures
    from whyformer.demo import pictures as drawn

    require("transformers", "PIL", "whyformer_models", "sklearn", why="tcav on the shipped model of textures")
    from PIL import Image

    model, processor = load_textures()
    rng = np.random.default_rng(seed)

    def mixed() -> Any:
        shape, texture = rng.choice(drawn.SHAPES), rng.choice(drawn.TEXTURES)
        return Image.fromarray(drawn.picture(str(shape), str(texture), int(rng.integers(2**31))))

    start = 1000 * seed
    return {
        "model": model,
        "processor": processor,
        "layer": 2,
        "target": "zebra-like",
        "concepts": {
            texture: [Image.fromarray(drawn.swatch(texture, start + i)) for i in range(sets * size)]
            for texture in ("striped", "dotted", "bubbly")
        },
        "random_sets": [[mixed() for _ in range(size)] for _ in range(sets)],
        "class_inputs": [Image.fromarray(drawn.picture("horse", "striped", start + i)) for i in range(40)],
    }


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
    from whyformer.cli._options import load_any, load_textures
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
