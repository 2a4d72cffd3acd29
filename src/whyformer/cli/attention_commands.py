"""whyformer attention, capture and heads: attention maps, coverage of the capture, and importance of heads."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from whyformer.cli._input import drawn_faces, inputs_from, lines_of, number_or_word, refuse_files
from whyformer.cli._options import HEAD_RESULTS, CommandArguments, takes
from whyformer.cli._results import deliver, print_json, seen_by
from whyformer.errors import BadInput, one_of

if TYPE_CHECKING:
    from rich.table import Table

    from whyformer.results.types import AttentionMaps
    from whyformer.study import Study


WITHOUT_INPUTS = ("induction", "circuits")
ORDERS = ("importance", "gates", "random")


@takes(
    "inputs file model trust_remote_code what/heads kind per target normalize labels order points penalty steps/gates "
    "batch_size seed out json"
)
def heads(asked: CommandArguments) -> None:
    """Measure the importance and the roles of attention heads.

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

    refuse_files(asked.inputs or [], "heads")
    model, processor, modality = asked.load_any()
    common: dict[str, Any] = {"processor": processor, "batch_size": asked.batch_size}
    seeded, target = {"seed": asked.seed}, {"target": asked.settings["target"]}
    importance = {"kind": asked.kind, "per": asked.per, "normalize": asked.normalize, **target, **seeded, **common}
    beside: dict[str, Any] = {}
    raw = inputs_from(asked.inputs or [], asked.file, modality, "heads") if asked.what not in WITHOUT_INPUTS else []
    measures: dict[str, Callable[[], Any]] = {
        "induction": partial(library.induction, model, **common, **seeded),
        "circuits": partial(library.circuits, model, processor=processor, **seeded),
        "importance": partial(library.head_importance, model, raw, **importance),
        "roles": partial(library.roles, model, raw, **common),
        "layers": partial(library.layer_profile, model, raw, **target, **common),
    }
    if asked.what in measures:
        result: Any = measures[asked.what]()
    else:
        demo = modality == "text" and not asked.inputs and asked.file is None
        classes = _classes(asked.labels, raw, demo, needed="gates" in (asked.what, asked.order))
        training = {"penalty": asked.penalty, "steps": asked.steps, **seeded, **common}
        metric = "agreement" if classes is None else "accuracy"
        pruned: Any = partial(library.pruning_curve, model, points=asked.points, metric=metric, **seeded, **common)
        if asked.what == "gates":
            result = library.learn_gates(model, raw, classes or [], **training)
        elif len(raw) < 2:
            raise BadInput("pruning needs at least 2 inputs (got 1): one half finds the order, the other tests it.")
        elif asked.order == "random":
            result = pruned(raw, classes, order="random")
        else:  # one half finds the order, the other half tests it and a random order
            first, tested_on, truth = raw[::2], raw[1::2], classes and classes[1::2]
            order: Any
            if asked.order == "gates":
                order = library.learn_gates(model, first, (classes or [])[::2], **training)
            else:
                order = library.head_importance(model, first, **importance)
            result, chance = (pruned(tested_on, truth, order=each) for each in (order, "random"))
            beside = {"beside": [chance]}
            sizes = f"{len(first)} inputs and tested on {len(tested_on)} others."
            typer.echo(f"The order of heads was found on {sizes}", err=True)
    deliver(result, asked, plain=result.rows() if asked.what in ("roles", "layers") else None, **beside)


def _classes(file: Path | None, inputs: list[Any], demo: bool, needed: bool) -> list[int | str] | None:
    """Return a class per input. Pruning without classes measures agreement with the whole model."""
    from whyformer.demo import SENTENCE_LABELS

    if file is None:
        if needed and not demo:
            raise BadInput("gates are trained on labels: give --labels FILE, one class per line.")
        return list(SENTENCE_LABELS) if demo else None
    classes = [number_or_word(line.strip()) for line in lines_of(file)]
    if len(classes) != len(inputs):
        raise BadInput(
            f"{str(file)!r} has {len(classes)} labels, and there are {len(inputs)} inputs: give one label per input."
        )
    return classes


WHAT = ("map", "grid", "colours", "streams")
SCALES = ("shared", "free", "full")


@takes(
    "inputs file model/attention trust_remote_code what/attention layer/number head query values scale "
    "out/attention json"
)
def attention(asked: CommandArguments) -> None:
    """Show attention maps: matrices, or heads over an image.

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
    chosen = asked.what or ("grid" if asked.layer is None and asked.head is None else "map")
    one_of("--what", chosen, WHAT)
    options: dict[str, Any] = {"values": asked.values}
    if asked.scale is not None:
        low, comma, high = asked.scale.partition(",")
        try:
            options["scale"] = (float(low), float(high)) if comma else asked.scale
        except ValueError:
            words = f"{asked.scale!r}: {', '.join(SCALES)}, or two numbers as 0,0.5"
            raise typer.BadParameter(words, param_hint="--scale") from None
    from whyformer.verbs import Explainer

    shown = "mean" if asked.head is None else number_or_word(asked.head)
    refuse_files(asked.inputs or [], "attention")
    loaded, processor, kind = asked.load_any("image" if chosen == "colours" else "text")
    if kind not in ("text", "image"):
        raise BadInput(
            f"{asked.model!r} takes neither texts alone nor images alone. In Python: Explainer(model).record(…)."
        )
    if chosen == "colours" and kind != "image":
        raise BadInput("--what colours draws heads over an image: give an image model, or omit --model.")
    explainer = Explainer(loaded, processor)
    maps = [_Maps(explainer, raw, name) for name, raw in _inputs(asked, kind).items()]
    views = [one.view(chosen, asked.layer, shown, asked.query, options) for one in maps]
    as_data = asked.json or (asked.out is not None and asked.out.suffix == ".json")
    rows = [[one.result(asked.layer, shown)] for one in maps] if as_data else []
    deliver(rows, asked, views=views, names=[str(i) for i in range(1, len(maps) + 1)], title="Attention")


def _inputs(asked: CommandArguments, kind: str) -> dict[str, Any]:
    inputs = asked.inputs or []
    if kind == "image" and asked.model is None and not inputs:
        return {"a drawn cat": drawn_faces()["a drawn cat"]}
    raw = inputs_from(inputs, asked.file, kind, "attention")
    if kind == "image":
        return {Path(name).name: image for name, image in zip(inputs, raw, strict=True)}
    return {text: text for text in (raw if inputs or asked.file is not None else raw[:1])}


class _Maps:
    """The attention of one input, with labels of its positions."""

    def __init__(self, explainer: Any, raw: Any, title: str) -> None:
        from whyformer.inputs.batch import signature_of

        self.explainer, self.raw, self.title = explainer, raw, title
        with explainer.session([raw]) as session:
            run = session.run([session.size - 1])  # of a generated answer: its last token, which attends to all others
            self.units, written = run.units[0], bool(session.batch.groups)
        taken = signature_of(explainer.model)  # tokenizers may return tensors that the model does not take
        tensors = {name: tensor for name, tensor in run.batch.tensors.items() if name in taken}
        self.record = explainer.record(tensors if written else [raw])

    def view(self, what: str, layer: int | None, head: Any, query: int, options: dict[str, Any]) -> Any:
        from dataclasses import replace

        from whyformer import views

        at = -1 if layer is None else layer
        if what == "map":
            view = views.attention_map(self.record, at, head, self._labels(at), **options)
        elif what == "grid":
            sites = None if layer is None else [layer]
            labels = self._labels(at) if options["values"] else None
            view = views.heads_grid(self.record, sites=sites, labels=labels, names=self._labels(at), **options)
        elif what == "streams":
            labels = {
                stream: [label for label, s in zip(self.units.labels, self.units.stream, strict=True) if s == stream]
                for stream in dict.fromkeys(self.units.stream)
            }
            view = views.attention_streams(self.record, labels, layer=at, head=head, **options)
        else:
            (seen,) = seen_by(self.explainer, [self.raw])
            view = views.heads_over_image(self.record, self.units, seen, site=at, query=query)
        return replace(view, title=f"{view.title}: {self.title}")

    def _labels(self, site: int) -> Any:
        """Return the units as labels of rows and columns, if the map is over them."""
        sites = self.record.sites
        keys = sites[site].attention_BHQK.shape[3] if -len(sites) <= site < len(sites) else 0
        return self.units if keys == len(self.units) else None

    def result(self, layer: int | None, head: Any) -> AttentionMaps:
        from whyformer.results.types import AttentionMaps, SiteMap
        from whyformer.views.attention_view import attention_map

        maps = []
        for number in range(len(self.record.sites)) if layer is None else [layer]:
            matrix: Any = attention_map(self.record, number, head).panels[0].marks[0]
            site = self.record.sites[number]
            maps.append(SiteMap(number, site.path, site.kind, matrix.values))
        return AttentionMaps(self.title, self.units.labels, head, tuple(maps))


@takes("model trust_remote_code text image json")
def capture(asked: CommandArguments) -> None:
    """List captured attention layers and audit coverage.

    Prints every attention layer, the output position, and the leak audit: whether positions
    exchange information outside the captured attention.

    Exits with code 1 if attention methods cannot be used.

    \b
    Examples:
      whyformer capture
      whyformer capture --model my-bert/ --text "A sentence"
      whyformer capture --model my-vit/ --image cat.jpg
    """
    from whyformer.errors import CaptureError
    from whyformer.study import require_readable
    from whyformer.verbs import Explainer

    loaded, processor, kind = asked.load_any()
    explainer = Explainer(loaded, processor)
    study = explainer.study(_example(loaded, kind, asked.text, asked.image))
    trouble = None
    try:
        require_readable(study, multi_stream=True)
    except CaptureError as error:
        trouble = str(error)
    if not study.sites:
        trouble = "no attention was captured: the model has none, or computes it outside torch functions."
    elif study.unclaimed:
        trouble = (
            "a softmax looks like attention but its values were not found (see above): the maps may be incomplete."
        )
    if asked.json:
        from dataclasses import asdict

        print_json(
            {
                "sites": [asdict(s) for s in study.sites],
                "readout": None if study.readout is None and not study.readouts else _readout(study),
                "grid": study.grid,
                "unclaimed": study.unclaimed,
                "leak": asdict(study.leak),
                "notes": study.notes,
                "trouble": trouble,
            }
        )
    else:
        _print(type(loaded).__name__, study, trouble)
    if trouble:
        raise typer.Exit(1)


def _example(model: Any, kind: str, text: str, image: Path | None) -> Any:
    """Return an input of the kind that the model takes, noise where the user gave none."""
    if kind == "text":
        return text
    import numpy as np

    noise = np.random.default_rng(0)
    if kind in ("image", "pair"):
        from whyformer.files import open_image

        picture = open_image(noise.integers(0, 256, (224, 224, 3), np.uint8) if image is None else image)
        return picture if kind == "image" else (picture, text)
    if kind == "sound":
        return noise.normal(size=16000).astype(np.float32)
    boxes = {"visual_feats": ("visual_feat_dim", "visual_pos"), "visual_embeds": ("visual_embedding_dim", "")}
    from whyformer.inputs.batch import signature_of

    name = next(n for n in boxes if n in signature_of(model))
    size, corners = boxes[name]
    regions = {name: noise.normal(size=(6, getattr(model.config, size))).astype(np.float32)}
    return regions | ({corners: noise.random((6, 4)).astype(np.float32)} if corners else {}), text


def _print(name: str, study: Study, trouble: str | None) -> None:
    from rich.console import Group, RenderableType
    from rich.text import Text

    from whyformer.views.terminal.terminal_page import put

    count = len(study.unclaimed)
    lines: list[RenderableType] = [
        Text(f"{name}: {len(study.sites)} attention layer{'' if len(study.sites) == 1 else 's'}", style="bold"),
        "",
    ]
    if study.sites:
        lines += [_sites(study), ""]
    lines.append(Text(f"output      {_readout(study)}"))
    if study.grid:
        lines.append(Text(f"grid        {study.grid[0]} × {study.grid[1]} patches"))
    followed = "complete: every softmax that looks like attention was captured"
    if count:
        they = "softmax looks like attention and was" if count == 1 else "softmaxes look like attention and were"
        followed = f"incomplete: {count} {they} not captured"
    lines.append(Text(f"coverage    {followed}"))
    lines += [Text(f"  - {line}") for line in study.unclaimed]
    leak, past = study.leak, "not run (too few positions, or the order of streams is unknown)"
    if leak.found:
        past = f"LEAK: positions exchange information without attention at {leak.path} (change {leak.amount:.2g})"
    elif leak.checked:
        past = f"passed: positions exchange information through attention only ({leak.checked} places compared)"
    lines.append(Text(f"leak audit  {past}"))
    lines += [Text(f"note        {note}") for note in study.notes]
    lines.append("")
    verdict = f"Attention methods cannot be used: {trouble}" if trouble else "Attention methods can be used."
    put(Group(*lines, Text(verdict, style="red" if trouble else "green")))


def _readout(study: Study) -> str:
    """Return the output position; with several streams, that of each."""
    if study.readouts:
        rules = {s: "found for each input" if r.kind == "rows" else str(r) for s, r in study.readouts.items()}
        return "; ".join(f"{stream}: {rule}" for stream, rule in rules.items())
    return "not known" if study.readout is None else str(study.readout)


def _sites(study: Study) -> Table:
    from rich.table import Table

    windowed = any(site.windows > 1 for site in study.sites)
    mixed = len({site.streams for site in study.sites}) > 1
    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("#", justify="right")
    table.add_column("site", overflow="fold")
    for heading in ("kind", "heads", "Q × K", *(["windows"] if windowed else []), *(["streams"] if mixed else [])):
        table.add_column(heading, no_wrap=True, justify="left" if heading == "kind" else "right")
    for i, site in enumerate(study.sites):
        cells = (str(i), site.path or "(the model itself)", site.kind, str(site.heads), f"{site.queries} × {site.keys}")
        streams = " ← ".join(site.streams)
        table.add_row(*cells, *([str(site.windows)] if windowed else []), *([streams] if mixed else []))
    return table
