"""whyformer doctor, methods and metrics: the installation, and the registered methods and metrics."""

from __future__ import annotations

import inspect
import os
import platform
from collections.abc import Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from whyformer.cli._options import CommandArguments, takes
from whyformer.cli._results import print_json
from whyformer.extras import LIBRARIES, installed
from whyformer.version import __version__

if TYPE_CHECKING:
    from rich.text import Text

    from whyformer.registry import Method, Metric

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
        told = []
        for m in chosen:
            about: dict[str, Any] = {"family": "post-hoc", "specificity": m.specificity, "scope": SCOPE}
            about |= {"signed": m.signed, "class_specific": m.class_specific}
            plain = (str, int, float, bool, type(None))
            options = {k: v if isinstance(v, plain) else repr(v) for k, v in m.defaults.items()}
            told.append(_plain(m, about, options))
        print_json(told)
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
        shown = ("kind", "higher_is_better")
        print_json([_plain(m, {name: getattr(m, name) for name in shown}, m.defaults) for m in chosen])
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


def _plain(entry: Method | Metric, about: dict[str, Any], options: dict[str, Any]) -> dict[str, Any]:
    known = {"name": entry.name, "idea": entry.idea, **about, "needs": sorted(entry.needs), "cost": entry.cost_text}
    return known | {"options": options, "paper": entry.paper}
