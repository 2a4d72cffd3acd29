"""whyformer attention: the attention maps themselves, as matrices or in the colours of their heads."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.cli._input import PICTURES, check_out, inputs_from, number_or_word
from whyformer.cli._options import File, Inputs, Json, Trusted

WHAT = ("map", "grid", "colours", "streams")
SCALES = ("shared", "free", "full")


def attention(
    inputs: Inputs = None,
    file: File = None,
    model: Annotated[
        str | None,
        typer.Option(
            "--model",
            metavar="NAME",
            help="Folder or hub name.",
            show_default="the shipped sentiment model; for colours, that of cats and dogs",
        ),
    ] = None,
    trust_remote_code: Trusted = False,
    what: Annotated[
        str | None,
        typer.Option(
            "--what",
            metavar="WHAT",
            help="map (one matrix), grid (every head), colours (heads over an image) or streams (each kind).",
            show_default="grid; with --layer or --head, map",
        ),
    ] = None,
    layer: Annotated[
        int | None,
        typer.Option("--layer", "-l", metavar="N", help="Attention call by number; -1 is the last.", show_default="-1"),
    ] = None,
    head: Annotated[
        str | None, typer.Option("--head", metavar="HEAD", help="A number, mean or max.", show_default="mean")
    ] = None,
    query: Annotated[int, typer.Option("--query", metavar="N", help="With colours: the position that looks.")] = 0,
    values: Annotated[bool, typer.Option("--values", help="Write the weights into the cells (up to 400).")] = False,
    scale: Annotated[
        str | None,
        typer.Option(
            "--scale",
            metavar="SCALE",
            help="shared by all maps, free (each its own), full (0 to 1), or LOW,HIGH.",
            show_default="shared",
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", dir_okay=False, metavar="FILE", help="Write .html, .png, .svg, .pdf or .json."),
    ] = None,
    json: Json = False,
) -> None:
    """Show attention maps: matrices, or heads in colours.

    Without inputs: the first sentence of the demo, or its drawn cat.

    \b
    Examples:
      whyformer attention
      whyformer attention "I like the movie" --layer 2 --head 1 --values
      whyformer attention --scale free --out heads.html
      whyformer attention --what colours --out colours.png
      whyformer attention cat.jpg --model my-vit/ --what colours --layer 8
      whyformer attention "Hello" --model my-marian/ --what streams
    """
    from whyformer.errors import BadInput, one_of

    check_out(out, (*PICTURES, ".json"))
    chosen = what or ("grid" if layer is None and head is None else "map")
    one_of("--what", chosen, WHAT)
    how: dict[str, Any] = {"values": values, **({} if scale is None else {"scale": _scale(scale)})}
    from whyformer.cli._model import load_any, load_image, load_text
    from whyformer.explainer import Explainer

    shown = _index_or_word(head)
    if model is not None:
        loaded, processor, kind = load_any(model, trust_remote_code)
    elif chosen == "colours":
        loaded, processor, kind = *load_image(None), "image"
    else:
        loaded, processor, kind = *load_text(None), "text"
    if kind not in ("text", "image"):
        raise BadInput(f"{model!r} takes neither texts alone nor images alone. In Python: Explainer(model).record(…).")
    if chosen == "colours" and kind != "image":
        raise BadInput("--what colours lays heads over an image: give a model of images, or leave --model out.")
    explainer = Explainer(loaded, processor)
    maps = [_Maps(explainer, raw, name) for name, raw in _inputs(inputs or [], file, kind, model is None).items()]
    views = [one.view(chosen, layer, shown, query, how) for one in maps]
    plain = [one.plain(layer, shown) for one in maps] if json or (out is not None and out.suffix == ".json") else []
    _deliver(views, plain, out, json)


def _index_or_word(head: str | None) -> Any:
    return "mean" if head is None else number_or_word(head)


def _scale(text: str) -> Any:
    low, comma, high = text.partition(",")
    try:
        return (float(low), float(high)) if comma else text
    except ValueError:
        raise typer.BadParameter(
            f"{text!r}: {', '.join(SCALES)}, or two numbers as 0,0.5", param_hint="--scale"
        ) from None


def _inputs(arguments: list[str], file: Path | None, kind: str, shipped: bool) -> dict[str, Any]:
    """Title → input."""
    from whyformer.cli._input import drawn_faces

    if kind == "image" and shipped and not arguments:
        return {"a drawn cat": drawn_faces()["a drawn cat"]}
    raw = inputs_from(arguments, file, kind, "attention")
    if kind == "image":
        return {Path(name).name: image for name, image in zip(arguments, raw, strict=True)}
    return {text: text for text in (raw if arguments or file is not None else raw[:1])}


class _Maps:
    """The attention of one input, with the names of its positions."""

    def __init__(self, explainer: Any, raw: Any, title: str) -> None:
        from whyformer.inputs.arguments import signature_of

        self.explainer, self.raw, self.title = explainer, raw, title
        with explainer.session([raw]) as session:
            run = session.run([session.size - 1])  # of a model that writes: at its last token, which sees all others
            self.units, written = run.units[0], bool(session.batch.groups)
        taken = signature_of(explainer.model)  # tokenizers may make more than the model takes
        tensors = {name: tensor for name, tensor in run.batch.tensors.items() if name in taken}
        self.record = explainer.record(tensors if written else [raw])

    def view(self, what: str, layer: int | None, head: Any, query: int, how: dict[str, Any]) -> Any:
        from dataclasses import replace

        from whyformer import views
        from whyformer.cli._explaining import seen_by

        at = -1 if layer is None else layer
        if what == "map":
            view = views.attention_map(self.record, at, head, self._labels(at), **how)
        elif what == "grid":
            sites = None if layer is None else [layer]
            labels = self._labels(at) if how["values"] else None
            view = views.heads_grid(self.record, sites=sites, labels=labels, **how)
        elif what == "streams":
            view = views.attention_streams(self.record, self._by_stream(), layer=at, head=head, **how)
        else:
            (seen,) = seen_by(self.explainer, [self.raw])
            view = views.heads_over_image(self.record, self.units, seen, site=at, query=query)
        return replace(view, title=f"{view.title}: {self.title}")

    def _labels(self, site: int) -> Any:
        """Of rows and columns, where they are the units of the input."""
        sites = self.record.sites
        keys = sites[site].attention_BHQK.shape[3] if -len(sites) <= site < len(sites) else 0
        return self.units if keys == len(self.units) else None

    def _by_stream(self) -> dict[str, list[str]]:
        units = self.units
        return {
            stream: [label for label, s in zip(units.labels, units.stream, strict=True) if s == stream]
            for stream in dict.fromkeys(units.stream)
        }

    def plain(self, layer: int | None, head: Any) -> dict[str, Any]:
        """Labels and matrices: all of them, or those that were asked for."""
        from whyformer.views.attention import attention_map

        numbers = range(len(self.record.sites)) if layer is None else [layer]
        sites = []
        for number in numbers:
            (panel,) = attention_map(self.record, number, head).panels
            site = self.record.sites[number]
            matrix: Any = panel.marks[0]
            sites.append({"site": number, "path": site.path, "kind": site.kind, "attention": matrix.values.tolist()})
        return {"input": self.title, "labels": list(self.units.labels), "head": head, "sites": sites}


def _deliver(views: list[Any], plain: list[dict[str, Any]], out: Path | None, json: bool) -> None:
    import json as json_text

    from whyformer.cli._output import print_json, say_written, write
    from whyformer.files.paths import writing

    if json:
        print_json(plain)
    else:
        for view in views:
            view.show()
    if out is None:
        return
    if out.suffix != ".json":
        say_written(write([], views, out, "Attention"))
        return
    with writing(out):
        out.write_text(json_text.dumps(plain, ensure_ascii=False), encoding="utf-8")
    say_written([out])
