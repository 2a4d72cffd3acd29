"""whyformer methods, metrics, compare, recommend, check, tcav and maximize: methods, their evaluation, and concepts."""

from __future__ import annotations

import inspect
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from whyformer.cli._input import inputs_from, lines_of, number_or_word, texts_from
from whyformer.cli._options import SHIPPED_CLASS, SHIPPED_POOLING, CommandArguments, load, takes
from whyformer.cli._results import deliver, print_json
from whyformer.errors import BadInput, one_of, require
from whyformer.files import IMAGES

if TYPE_CHECKING:
    from whyformer.registry import Method, Metric

MODEL = "inputs file model trust_remote_code"
JUDGED = "replace units hold target batch_size seed cache out/compare json"


@takes(f"{MODEL} method/compare metric {JUDGED}")
def compare(asked: CommandArguments) -> None:
    """Compare methods by faithfulness, cost and agreement.

    Random scores are the lower reference, a greedy search the upper one.
    Without texts: the five sentences of the demo, too few to rank methods.

    \b
    Examples:
      whyformer compare --file reviews.txt --out compare.html
      whyformer compare -m raw_attention -m attn_lrp "I like the movie"
      whyformer compare --file reviews.txt --replace delete
      whyformer compare --model my-lm/ -f prompts.txt --units sentence --hold -1
      whyformer compare --model my-vit/ *.jpg --cache results/
    """
    from whyformer.evaluate.compare import compare as run

    model, processor, raw = asked.load_with_inputs("compare")
    chosen: dict[str, Any] = {"method": asked.method or None, "metric": asked.metric or None}
    deliver(run(model, raw, processor=processor, **chosen, **asked.settings), asked)


@takes(f"{MODEL} scope method/recommend attention_only budget {JUDGED}")
def recommend(asked: CommandArguments) -> None:
    """Choose a method for a model, and test the choice.

    Candidates are all methods, and attention of every layer and head, with
    and without gradients. Each half of the inputs is tested with the choice of the other half.

    \b
    Examples:
      whyformer recommend --file reviews.txt --out choice.html
      whyformer recommend --file reviews.txt --scope label
      whyformer recommend "I like the movie" --scope instance
      whyformer recommend --file reviews.txt --attention-only
      whyformer recommend --file reviews.txt --budget 20
    """
    one_of("--scope", asked.scope, ("dataset", "label", "instance"))
    from whyformer.choices import budget_of
    from whyformer.evaluate.recommend import recommend as run

    if asked.budget is not None:
        budget_of(asked.budget)  # before a model is loaded
    model, processor, raw = asked.load_with_inputs("recommend")
    methods = [] if asked.attention_only and not asked.method else asked.method or None
    deliver(run(model, raw, processor=processor, method=methods, **asked.settings), asked)


@takes(f"{MODEL} method/check checks train epochs target batch_size seed cache out/check json")
def check(asked: CommandArguments) -> None:
    """Run sanity checks on an explanation.

    Compares the explanation with those of random weights, another class, noisy and padded inputs;
    tests shuffled, erased, uniform and adversarial attention inside the unmodified model.

    \b
    Examples:
      whyformer check "I like the movie"
      whyformer check "So boring" -c jain_wallace -c serrano_smith
      whyformer check --file reviews.txt -m grad_sam --out check.html
      whyformer check --file reviews.txt --cache results/
      whyformer check cat.jpg --model my-vit/ --out check.png
      whyformer check --model my-bert/ --train reviews.tsv --out debate.html
    """
    if asked.train is None:
        from whyformer.checks.check import check as run

        model, processor, raw = asked.load_with_inputs("check", demo=False)
        chosen = {"checks": asked.checks or None, "method": asked.method}
        deliver(run(model, raw, processor=processor, **chosen, **asked.settings), asked)
        return
    if any((asked.inputs, asked.file, asked.checks, asked.method, asked.target, asked.cache)):
        raise BadInput(
            "--train uses the examples of its file: omit texts, --file, --checks, --method, --target and --cache."
        )
    from whyformer.checks.attention_debate import attention_debate

    texts, labels = labelled(asked.train)
    model, processor, kind = asked.load_any()
    raw = texts if kind == "text" else inputs_from(texts, None, kind, "check")
    options = {"epochs": asked.epochs, "batch_size": asked.batch_size, "seed": asked.seed}
    deliver(attention_debate(model, raw, labels, processor=processor, **options), asked)


def labelled(file: Path) -> tuple[list[str], list[str | int]]:
    """Return texts and labels of a file with one text<TAB>label per line; a label is a class number or name."""
    texts: list[str] = []
    labels: list[str | int] = []
    for number, line in enumerate(lines_of(file), 1):
        text, tab, label = line.rpartition("\t")
        if not tab or not text.strip() or not label.strip():
            raise BadInput(f"{file.name}, line {number}: expected a text, a tab and a label.")
        texts.append(text)
        labels.append(number_or_word(label.strip()))
    return texts, labels


@takes(
    "model/textures trust_remote_code concept random inputs/tcav target/tcav layer relative pooling classifier "
    "batch_size seed out json"
)
def tcav(asked: CommandArguments) -> None:
    """Test whether a prediction depends on concepts (TCAV).

    Without options: stripes, dots and bubbles in the shipped model of shapes and textures.

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
    together = (asked.model, asked.concept, asked.inputs)
    if any((*together, asked.random)) and not all(together):
        raise typer.BadParameter("give --model, --concept, --random and --inputs together, or omit all of them")
    if asked.model is not None and not asked.random and not asked.relative:
        raise typer.BadParameter("concepts are compared with --random sets; with --relative, with each other")
    if asked.model is not None and (asked.target is None or asked.layer is None):
        raise typer.BadParameter("your own model needs --target and --layer")
    from whyformer.concepts.concept_vectors import tcav as measure

    if asked.inputs is None:
        arguments = shipped_concepts(asked.seed) | {"pooling": SHIPPED_POOLING}
    else:
        named = {}
        for option in asked.concept:
            name, sign, path = option.partition("=")
            if not sign or not name or not Path(path).exists():
                raise typer.BadParameter(f"{option!r} is not NAME=PATH of a folder or file", param_hint="--concept")
            named[name] = Path(path)
        loaded, processor, modality = asked.load_any()
        arguments = {
            "model": loaded,
            "processor": processor,
            "concepts": {name: _read(path, modality) for name, path in named.items()},
            "random_sets": [_read(path, modality) for each in asked.random or [] for path in _sets(each, modality)],
            "class_inputs": _read(asked.inputs, modality),
        }
    layer = None if asked.layer is None else number_or_word(asked.layer)
    told = {"layer": layer, "pooling": asked.pooling} | asked.settings
    arguments |= {name: value for name, value in told.items() if value is not None}
    deliver(measure(arguments.pop("model"), relative=asked.relative, classifier=asked.classifier, **arguments), asked)


def _sets(path: Path, modality: str) -> list[Path]:
    """Return the sets inside a folder of sets, else the path itself."""
    if not path.is_dir():
        return [path]
    inside = sorted(
        p for p in path.iterdir() if (p.is_file() and p.suffix == ".txt" if modality == "text" else p.is_dir())
    )
    return inside or [path]


def _read(path: Path, modality: str) -> list[Any]:
    if modality == "text":
        if path.is_dir():
            raise BadInput(f"{str(path)!r} is a folder: texts are read from files, one per line.")
        return list(texts_from([], path))
    files = sorted(p for p in path.iterdir() if p.suffix.lower() in IMAGES) if path.is_dir() else []
    if not files:
        raise BadInput(f"there are no images in {str(path)!r} ({', '.join(IMAGES)}).")
    return list(files)


def shipped_concepts(seed: int, sets: int = 20, size: int = 20) -> dict[str, Any]:
    """Return generated images for the shipped model of textures."""
    import numpy as np

    from whyformer.demo import pictures as drawn

    require("transformers", "PIL", "whyformer_models", "sklearn", why="tcav on the shipped model of textures")
    from PIL import Image

    model, processor = load("textures", None)
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


@takes(
    "unit model/textures trust_remote_code layer/mean neuron position steps/maximize l2 tv option/maximize seed "
    "out json"
)
def maximize(asked: CommandArguments) -> None:
    """Generate an image that maximizes a class, layer or neuron.

    Penalties are sums over pixels and colours, in units of the activation:
    raise them tenfold until the image is clear.

    \b
    Examples:
      whyformer maximize
      whyformer maximize zebra-like --l2 0.01 --tv 0.03 --out zebra.png
      whyformer maximize --layer 2 --neuron 5
      whyformer maximize cat --model my-vit/ --option jitter=8
    """
    sought = _unit(asked.unit, asked.layer, asked.neuron, asked.position, asked.model)
    from whyformer.concepts.activation_maximization import activation_maximization

    model, processor, kind = asked.load_any("textures")
    if kind != "image":
        raise BadInput(f"{asked.model!r} does not take images alone: only images can be generated.")
    deliver(activation_maximization(model, sought, processor=processor, **asked.settings), asked)


def _unit(unit: str | None, layer: str | None, neuron: int | None, position: int | None, model: str | None) -> Any:
    """Return the unit in the form that ``activation_maximization`` takes."""
    if layer is None:
        if neuron is not None or position is not None:
            raise typer.BadParameter("--neuron and --position need --layer: give --layer, too", param_hint="--neuron")
        if unit is None and model is not None:
            raise typer.BadParameter("your own model needs a class, or --layer", param_hint="CLASS")
        return number_or_word(unit or SHIPPED_CLASS)
    if unit is not None:
        raise typer.BadParameter("give a class or --layer, not both", param_hint="--layer")
    place = number_or_word(layer)
    if neuron is None:
        if position is not None:
            raise typer.BadParameter("--position needs --neuron: give --neuron, too", param_hint="--position")
        return ("layer", place)
    return ("neuron", place, neuron) if position is None else ("token", place, position, neuron)


SCOPE = "local"  # of all registered methods; global explanations are verbs (explain_global)
LOOKS_AT = """
uses    attention maps, gradients of the input, or inputs and outputs only (black box)
scope   local: explains one prediction, not the model over many inputs
signed  negative scores mark features that speak against the target
class   the scores depend on the class that is explained
cost    passes through the model per input

Papers
"""
KINDS = """
faithfulness  do the scores match what the model depends on?
plausibility  do they agree with what people marked?
localisation  are they on the object?
robustness    do they stay the same under small changes of the input?
complexity    are they concentrated on a few features?

Show one metric with its formula: whyformer metrics comprehensiveness"""


@takes("name json")
def methods(asked: CommandArguments) -> None:
    """List methods with what they use and what they cost.

    \b
    Examples:
      whyformer methods
      whyformer methods generic_attention
      whyformer methods --json
    """
    from whyformer.registry import get_method, list_methods

    chosen = [get_method(asked.name)] if asked.name else list(list_methods().values())
    if asked.json:
        shown = ("signed", "class_specific")
        kind: dict[str, Any] = {"family": "post-hoc", "specificity": "", "scope": SCOPE}
        print_json([_plain(m, kind | {"specificity": m.specificity}, *shown) for m in chosen])
    elif asked.name:
        (m,) = chosen
        sign = "signed (for and against)" if m.signed else "unsigned (size only)"
        depends = "depends on the class" if m.class_specific else "the same for every class"
        looks, scores = f"{m.specificity}; post-hoc, {SCOPE}", f"{sign}; {depends}"
        _sheet(m, {"uses": looks, "scores": scores, "cost": f"{m.cost_text} per input"})
    else:
        from rich.text import Text

        cells = [(m.name, m.specificity, SCOPE, _yes(m.signed), _yes(m.class_specific), m.cost_text) for m in chosen]
        _table(
            ("method", "uses", "scope", "signed", "class", "cost"),
            cells,
            before=[Text("Post-hoc methods: they explain a trained model without changing it."), Text("")],
            after=[
                Text(LOOKS_AT.rstrip("\n")),
                *(Text(f"{m.name}: {m.paper}", style="dim") for m in chosen),
                Text("\nShow one method with its options: whyformer methods generic_attention"),
            ],
        )


@takes("name/metric json")
def metrics(asked: CommandArguments) -> None:
    """List metrics with their kind and what they cost.

    \b
    Examples:
      whyformer metrics
      whyformer metrics comprehensiveness
      whyformer metrics --json
    """
    from whyformer.registry import get_metric, list_metrics

    chosen = [get_metric(asked.name)] if asked.name else list(list_metrics().values())
    if asked.json:
        print_json([_plain(m, {}, "kind", "higher_is_better") for m in chosen])
    elif asked.name:
        (m,) = chosen
        better = "higher" if m.higher_is_better else "lower"
        _sheet(m, {"kind": f"{m.kind}; {better} is better", "cost": f"{m.cost_text} per input"})
    else:
        from rich.text import Text

        ordered = sorted(chosen, key=lambda m: (m.kind, m.name))
        cells = [(m.name, m.kind, "higher" if m.higher_is_better else "lower", m.cost_text) for m in ordered]
        _table(("metric", "kind", "better", "cost per input"), cells, after=[Text(KINDS)])


def _yes(value: bool) -> str:
    return "yes" if value else "no"


def _sheet(entry: Method | Metric, facts: dict[str, str]) -> None:
    """Print the docstring, free to wrap at the terminal's width, then the facts and the options."""
    from rich.console import Group
    from rich.text import Text

    from whyformer.views.terminal.terminal_page import put

    paragraphs = (inspect.getdoc(entry.run) or "").split("\n\n")
    options = [f"  {k}={v!r}" for k, v in entry.defaults.items()] or ["  (none)"]
    needs = ", ".join(sorted(entry.needs)).replace("_", " ") or "no model internals"
    facts |= {"needs": needs, "paper": entry.paper}
    width = max(map(len, facts))
    lines = [f"{name:<{width}}  {words}" for name, words in facts.items()]
    put(
        Group(
            Text(entry.name, style="bold"),
            *(Text(" ".join(part.split()).replace("``", "") + "\n") for part in paragraphs),
            *(Text(line) for line in [*lines, "options", *options]),
        )
    )


def _table(
    headings: Sequence[str], rows: Iterable[Sequence[str]], before: Sequence[Any] = (), after: Sequence[Any] = ()
) -> None:
    """Print one row per entry: the name in bold first; the last column may wrap."""
    from rich.console import Group
    from rich.table import Table

    from whyformer.views.terminal.terminal_page import put

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False)
    for heading in headings[:-1]:
        table.add_column(heading, no_wrap=True, style="bold" if heading == headings[0] else "")
    table.add_column(headings[-1], overflow="fold")
    for row in rows:
        table.add_row(*row)
    put(Group(*before, table, *after))


def _plain(entry: Method | Metric, kind: dict[str, Any], *shown: str) -> dict[str, Any]:
    """Return an entry for --json; ``shown``: its attributes, besides those that methods and metrics have."""
    plain = (str, int, float, bool, tuple, type(None))
    known = {"name": entry.name, "idea": entry.idea, **kind} | {name: getattr(entry, name) for name in shown}
    known |= {"needs": sorted(entry.needs), "cost": entry.cost_text}
    known["options"] = {k: v if isinstance(v, plain) else repr(v) for k, v in entry.defaults.items()}
    return known | {"paper": entry.paper}
