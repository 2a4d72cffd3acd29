"""whyformer capture: what was seen inside a model, and whether attention explanations can be trusted with it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whyformer.cli._options import Trusted
from whyformer.extras import require

if TYPE_CHECKING:
    from rich.table import Table

    from whyformer.study import Study

EXAMPLE = "The quick brown fox jumps over the lazy dog"


def capture(
    model: Annotated[
        str | None,
        typer.Option("--model", metavar="NAME", help="Folder or hub name.", show_default="the shipped sentiment model"),
    ] = None,
    trust_remote_code: Trusted = False,
    text: Annotated[str, typer.Option("--text", metavar="TEXT", help="Text to run the model on.")] = EXAMPLE,
    image: Annotated[
        Path | None,
        typer.Option(
            "--image",
            exists=True,
            dir_okay=False,
            metavar="FILE",
            help="Image to run the model on.",
            show_default="noise",
        ),
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Show what was seen inside a model, and whether all of it was.

    Prints where attention happens, which position feeds the head, and the leak audit.

    Ends with exit code 1 where attention methods cannot be used.

    \b
    Examples:
      whyformer capture
      whyformer capture --model my-bert/ --text "A sentence"
      whyformer capture --model my-vit/ --image cat.jpg
    """
    from whyformer.cli._model import load_any, load_text
    from whyformer.errors import CaptureError
    from whyformer.explainer import Explainer
    from whyformer.study import require_readable

    loaded, processor, kind = (*load_text(None), "text") if model is None else load_any(model, trust_remote_code)
    explainer = Explainer(loaded, processor)
    study = explainer.study(_example(loaded, kind, text, image))
    trouble = None
    try:
        require_readable(study, multi_stream=True)
    except CaptureError as error:
        trouble = str(error)
    if not study.sites:
        trouble = "no attention was seen: the model has none, or makes it outside torch's functions."
    elif study.unclaimed:
        trouble = "a softmax looks like attention but was not used as such (see above): the maps may be incomplete."
    if json:
        _print_json(study, trouble)
    else:
        _print(type(loaded).__name__, study, trouble)
    if trouble:
        raise typer.Exit(1)


def _example(model: Any, kind: str, text: str, image: Path | None) -> Any:
    """An input of the kind that the model takes; what the user did not give is noise."""
    if kind == "text":
        return text
    if kind == "image":
        return _picture(image)
    if kind == "pair":
        return _picture(image), text
    import numpy as np

    noise = np.random.default_rng(0)
    if kind == "sound":
        return noise.normal(size=16000).astype(np.float32)
    boxes = {"visual_feats": ("visual_feat_dim", "visual_pos"), "visual_embeds": ("visual_embedding_dim", "")}
    from whyformer.inputs.arguments import signature_of

    name = next(n for n in boxes if n in signature_of(model))
    size, corners = boxes[name]
    regions = {name: noise.normal(size=(6, getattr(model.config, size))).astype(np.float32)}
    return regions | ({corners: noise.random((6, 4)).astype(np.float32)} if corners else {}), text


def _picture(path: Path | None) -> Any:
    from whyformer.files.image_file import open_image

    if path is not None:
        return open_image(path)
    require("PIL", why="a picture to try the model on")
    import numpy as np
    from PIL import Image

    return Image.fromarray(np.random.default_rng(0).integers(0, 256, (224, 224, 3), np.uint8))


def _print(name: str, study: Study, trouble: str | None) -> None:
    from rich.console import Group, RenderableType
    from rich.text import Text

    from whyformer.views.terminal.page import put

    count = len(study.unclaimed)
    lines: list[RenderableType] = [
        Text(f"{name}: {len(study.sites)} attention site{'' if len(study.sites) == 1 else 's'}", style="bold"),
        "",
    ]
    if study.sites:
        lines += [_sites(study), ""]
    lines.append(Text(f"read from   {_readout(study)}"))
    if study.grid:
        lines.append(Text(f"grid        {study.grid[0]} × {study.grid[1]} patches"))
    lines.append(Text(f"followed    {_followed(count)}"))
    lines += [Text(f"  - {line}") for line in study.unclaimed]
    lines += [Text(f"past it     {_audit(study)}")]
    lines += [Text(f"note        {note}") for note in study.notes]
    lines.append("")
    verdict = f"Attention methods cannot be used: {trouble}" if trouble else "Attention methods can be used."
    put(Group(*lines, Text(verdict, style="red" if trouble else "green")))


def _readout(study: Study) -> str:
    """The rows that feed the head; with several streams, those of each."""
    if study.readouts:
        rules = {s: "found for each input" if r.kind == "rows" else str(r) for s, r in study.readouts.items()}
        return "; ".join(f"{stream}: {rule}" for stream, rule in rules.items())
    return "not known" if study.readout is None else str(study.readout)


def _sites(study: Study) -> Table:
    from rich.table import Table

    windowed = any(site.windows > 1 for site in study.sites)
    several = len({site.streams for site in study.sites}) > 1
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("site", overflow="fold")
    for heading in ("kind", "heads", "Q × K", *(["windows"] if windowed else []), *(["streams"] if several else [])):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "kind" else "right")
    for i, site in enumerate(study.sites):
        cells = (str(i), site.path or "(the model itself)", site.kind, str(site.heads), f"{site.queries} × {site.keys}")
        streams = " ← ".join(site.streams)
        table.add_row(*cells, *([str(site.windows)] if windowed else []), *([streams] if several else []))
    return table


def _followed(unclaimed: int) -> str:
    """Of all softmaxes of a forward pass: is each an attention whose weights were followed to what they weigh?"""
    if not unclaimed:
        return "everything that looks like attention, to what it weighs"
    they = "looks like attention and was" if unclaimed == 1 else "look like attention and were"
    return f"not all: {unclaimed} softmax{'' if unclaimed == 1 else 'es'} {they} not followed to what is weighed"


def _audit(study: Study) -> str:
    """The leak audit (study/leak.py) in words."""
    leak = study.leak
    if leak.found:
        return f"LEAK: positions hear of each other without attention at {leak.path} (by {leak.amount:.2g}, not 0)"
    if leak.checked:
        return f"nothing: positions hear of each other by attention alone ({leak.checked} places compared)"
    return "not tried (too few positions, or streams that could not be put in order)"


def _print_json(study: Study, trouble: str | None) -> None:
    import dataclasses

    from whyformer.cli._output import print_json

    print_json(
        {
            "sites": [dataclasses.asdict(s) for s in study.sites],
            "readout": None if study.readout is None and not study.readouts else _readout(study),
            "grid": study.grid,
            "unclaimed": study.unclaimed,
            "leak": dataclasses.asdict(study.leak),
            "notes": study.notes,
            "trouble": trouble,
        }
    )
