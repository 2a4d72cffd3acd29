"""whyformer demo and doctor: first explanations of a text, an image and a table, and a check of the installation."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from whyformer.cli._input import check_out
from whyformer.cli._options import CommandArguments, announced, takes
from whyformer.cli._results import print_json
from whyformer.demo import SENTENCES
from whyformer.errors import LIBRARIES, SHIPPED, installed, require
from whyformer.files import quiet
from whyformer.version import __version__

if TYPE_CHECKING:
    from rich.text import Text

DRAWN = (
    "This is a drawing made by the demo: photos are not shipped. The model was trained on photos, so this shows what "
    "an explanation looks like, not how accurate the model is."
)
CENSUS = (
    "A small FT-Transformer predicts from census data of 1994 whether a person earned more than 50,000 dollars. It is "
    "an example of explanations of a table, and must not be used for decisions about people."
)
ROW = 1
FEW = 6  # entries of a list, so that all of it fits on a screen
TOLD = ("method", "cost", "not validated")  # of the details, in the terminal
SENTENCE = SENTENCES[3]


def screens() -> Iterator[tuple[str, Any, str]]:
    """Yield a heading, a view and what is to be known about it, for a text, an image and a row of a table."""
    from whyformer.demo.census import adult_rows
    from whyformer.demo.pictures import face
    from whyformer.verbs import Explainer
    from whyformer.views import view_of

    cat, row = face("cat"), adult_rows()[ROW]
    for heading, name, raw, note, more in (
        ("A text, and a sentiment model", "sentiment", SENTENCE, "", {}),
        ("An image, and a model of cats and dogs", "pets", cat, DRAWN, {"image": cat, "title": "a drawn cat"}),
        (
            "A table row, and a model of incomes",
            "adult",
            row,
            CENSUS,
            {"title": f"a person of {row['age']} in a census"},
        ),
    ):
        yield heading, view_of(Explainer(*_loaded(name)).explain(raw, progress=False), most=FEW, **more), note


def _loaded(name: str) -> tuple[Any, Any]:
    from whyformer import demo as shipped

    with quiet():
        return getattr(shipped, f"load_{name}")()


METHODS = ("raw_attention", "attention_rollout", "generic_attention", "grad_sam")
QUICK_CHECKS = ("capture_audit", "class_dependence", "invariance", "sinks")  # one or two seconds in total
INTRODUCTION = (
    "A sentence, an image and a row of a table, explained by the default method; then five sentences by four methods. "
    "A higher score means a larger contribution."
)
SPECIAL = (
    "[CLS] and [SEP] are special tokens that the tokenizer adds. The output is read at [CLS], so this token often "
    "receives a large share of the score. Special tokens are hidden, and a line below the bars shows their share. "
    "Where methods disagree, they cannot all be right: the report compares them."
)
TRY = (  # a command, and what it is for
    ('whyformer explain "your own sentence"', "your own text"),
    ("whyformer explain photo.jpg --out why.html", "your own image, on a page"),
    ("whyformer doctor", "check this installation"),
)


@takes("out/demo")
def demo(asked: CommandArguments) -> None:
    """Explain a text, an image and a table, and write a page.

    The page has more sentences and methods; a report compares and checks the methods.
    Uses three small shipped models, without downloads.

    \b
    Examples:
      whyformer demo
      whyformer demo --out demo.html
    """
    if asked.out.suffix != ".html":
        raise typer.BadParameter(f"{asked.out.name!r}: the page is HTML, name it something.html", param_hint="--out")
    require(*SHIPPED, why="whyformer demo")
    check_out(asked.out)
    report_out = asked.out.with_name(f"{asked.out.stem}-report.html")
    check_out(report_out)
    announced()
    views = []
    for number, (heading, view, note) in enumerate(screens(), start=1):
        typer.secho(f"{number}. {heading}", bold=True)
        replace(view, details=tuple(fact for fact in view.details if fact.name in TOLD)).show()
        views.append(replace(view, caption=f"{view.caption} {note}".strip()))
    typer.echo("Comparing and checking several methods (about half a minute) …", err=True)
    from rich.console import Group
    from rich.text import Text

    from whyformer.registry import meaning_of
    from whyformer.reports.report import report
    from whyformer.verbs import Explainer
    from whyformer.views import page, side_by_side
    from whyformer.views.terminal.terminal_page import put
    from whyformer.views.view import Fact, Terms

    model, tokenizer = _loaded("sentiment")
    explained = Explainer(model, tokenizer).explain(list(SENTENCES), method=list(METHODS), progress=False)
    each = zip(*(explained[name] for name in METHODS), strict=True)
    views += [replace(side_by_side(list(maps)), folded=True) for maps in each]
    outro = (Terms(tuple(Fact(name, meaning_of(name)) for name in METHODS), "Methods"), SPECIAL, *_next(asked.out))
    page(views, "Why did your transformer say that?", lead=(INTRODUCTION,), outro=outro).save(asked.out)
    methods = [*METHODS, "occlusion"]
    settings: dict[str, Any] = {"shown": len(methods), "checks": QUICK_CHECKS, "progress": False}
    trust = report(model, list(SENTENCES), processor=tokenizer, method=methods, **settings)
    trust.save(report_out)
    lines = [
        Text(f"The page    {asked.out}: a text, an image and a table, and five sentences by several methods"),
        Text(f"The report  {report_out}: methods compared and checked"),
        Text(),
        Text(" ".join(trust.view().lead)),
        Text(),
        Text("Three things to try", style="bold"),
    ]
    longest = max(len(command) for command, _ in TRY)
    lines += [Text(f"  {command:<{longest}}").append(f"   {words}", style="dim") for command, words in TRY]
    put(Group(*lines))


def _next(out: Path) -> tuple[Any, ...]:
    from whyformer.views.view import Fact, Terms

    more = (
        ('whyformer explain "Not bad" -m occlusion', "another method"),
        ('whyformer explain "Not bad" -t negative', "another class"),
        ("whyformer tcav --relative", "test the concept of stripes"),
        ("whyformer explain table --row 0", "a row of a table"),
        ("whyformer methods", "list methods and their cost"),
        ("whyformer capture", "list captured attention layers"),
    )
    commands = tuple(Fact(command, words) for command, words in (*TRY, *more))
    return (f"This page is {out}.", Terms(commands, "What to try next", code=True))


CORE = ("torch", "numpy", "scipy", "safetensors", "typer", "rich")
FOR = {  # what an extra is for
    "hf": "Hugging Face models, and images",
    "models": "the small shipped models of the demo",
    "plot": "figures: .png, .svg, .pdf",
    "eval": "concepts (tcav), clusters, scikit-learn scorers",
    "shap": "the algorithms of the shap package, and its plots",
    "tabular": "tables: DataFrames, and the shipped census model",
    "batch": "datasets into Parquet files (whyformer batch)",
    "ray": "datasets on many machines",
    "web": "the page in the browser (whyformer serve), and the proxy",
    "otel": "spans of the proxy for OpenTelemetry",
    "notebook": "interactive pages in a notebook",
}
MODELS = ("sentiment", "pets", "textures", "adult")


@takes("json test")
def doctor(asked: CommandArguments) -> None:
    """Check this installation, and list what to install.

    Prints versions, extras with the command that installs them, devices,
    shipped models, and a self-test that compares the explanation of a tiny
    model with numpy. Exits with code 1 if the self-test fails.

    \b
    Examples:
      whyformer doctor
      whyformer doctor --json
    """
    from whyformer.cli._selftest import self_test

    devices = _devices()
    state: dict[str, Any] = {
        "whyformer": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "libraries": {name: _version(name) for name in CORE},
        "extras": _extras(),
        "devices": devices,
        "models": dict.fromkeys(MODELS),
        "self_test": [self_test(device["name"]) for device in devices] if asked.test else [],
    }
    if installed("whyformer_models"):
        from whyformer.demo import model_folder

        folders = {name: Path(model_folder(name)) for name in MODELS}
        state["models"] = {name: str(folder) if folder.is_dir() else None for name, folder in folders.items()}
    if asked.json:
        print_json(state)
    else:
        _print(state)
    if any(outcome["trouble"] for outcome in state["self_test"]):
        raise typer.Exit(1)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _extras() -> list[dict[str, Any]]:
    """Return each extra with its libraries, whether all are installed, and the command that installs them."""
    libraries: dict[str, dict[str, str]] = {}
    for module, (package, extra) in LIBRARIES.items():
        if extra:
            libraries.setdefault(extra, {})[module] = package
    return [
        {
            "name": extra,
            "for": FOR[extra],
            "present": all(map(installed, modules)),
            "libraries": {package: _version(package) for package in modules.values()},
            "install": f"pip install 'whyformer[{extra}]'",
        }
        for extra, modules in sorted(libraries.items(), key=lambda each: [*FOR].index(each[0]))
    ]


def _devices() -> list[dict[str, Any]]:
    """Return the CPU, and every GPU with its supported features."""
    import torch

    devices: list[dict[str, Any]] = [
        {"name": "cpu", "what": f"{os.cpu_count()} cores, {torch.get_num_threads()} torch threads", "uses": {}}
    ]
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(number)
        uses = {"triton": installed("triton"), "cuda_graphs": True}
        what = f"{about.name}, {about.total_memory / 2**30:.0f} GiB"
        devices.append({"name": f"cuda:{number}", "what": what, "uses": uses})
    if torch.backends.mps.is_available():
        devices.append({"name": "mps", "what": "Apple GPU", "uses": {"triton": False, "cuda_graphs": False}})
    return devices


def _print(state: dict[str, Any]) -> None:
    from rich.console import Group, RenderableType
    from rich.table import Table
    from rich.text import Text

    from whyformer.views.terminal.terminal_page import put

    def listed(rows: list[tuple[str, Text]]) -> Table:
        table = Table.grid(padding=(0, 2))
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for name, words in rows:
            table.add_row(Text(f"  {name}"), words)
        return table

    lines: list[RenderableType] = [
        Text(f"whyformer {state['whyformer']}, Python {state['python']}, {state['system']}", style="bold"),
        Text(", ".join(f"{name} {number}" for name, number in state["libraries"].items())),
    ]
    extras = []
    for extra in state["extras"]:
        if extra["present"]:
            versions = ", ".join(f"{package} {number}" for package, number in extra["libraries"].items())
            told = Text("yes", style="green").append(f"  {versions}", style="dim")
        else:
            told = Text("no", style="yellow").append(f"   {extra['for']}: ", style="dim").append(extra["install"])
        extras.append((extra["name"], told))
    devices = [(each["name"], Text(_device_words(each))) for each in state["devices"]]
    for heading, rows in (("Extras", extras), ("Devices", devices)):
        lines += ["", Text(heading, style="bold"), listed(rows)]
    here = [name for name, folder in state["models"].items() if folder]
    words = f"{', '.join(here)} (included, no download)" if here else "not installed: pip install 'whyformer[models]'"
    lines += ["", Text.assemble(("Shipped models", "bold"), f"  {words}")]
    outcomes = []
    for outcome in state["self_test"]:
        told = Text(f"FAILED: {outcome['trouble']}", style="red")
        if not outcome["trouble"]:
            words = f"  two methods agree with numpy, and the model is unchanged ({outcome['seconds']:.1f} s)"
            told = Text("passed", style="green").append(words, style="dim")
        outcomes.append((outcome["device"], told))
    if outcomes:
        lines += ["", Text("Self-test", style="bold"), listed(outcomes)]
    put(Group(*lines))


def _device_words(device: dict[str, Any]) -> str:
    uses = device["uses"]
    if not uses:
        return str(device["what"])
    triton = "Triton kernels for long inputs" if uses["triton"] else "no Triton (pip install triton: long inputs)"
    graphs = "CUDA graphs (compiled=True)" if uses["cuda_graphs"] else "no CUDA graphs"
    return f"{device['what']}; {triton}; {graphs}"
