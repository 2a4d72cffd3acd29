"""whyformer doctor: what is installed, what this machine can be used for, and whether explanations come out right."""

from __future__ import annotations

import os
import platform
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

CORE = ("torch", "numpy", "scipy", "safetensors", "typer", "rich")
FOR = {  # what an extra is for
    "hf": "models of the Hugging Face libraries, and images",
    "models": "the small shipped models of the demo",
    "plot": "figures: .png, .svg, .pdf",
    "eval": "concepts (tcav), clusters, metrics by name",
    "shap": "the algorithms of the shap package, and its plots",
    "tabular": "tables: DataFrames, and the shipped census model",
    "batch": "datasets into Parquet files (whyformer batch)",
    "ray": "the same on many machines",
    "web": "the page in the browser (whyformer serve)",
    "notebook": "pages in a notebook that ask its kernel",
}
MODELS = ("sentiment", "pets", "textures", "adult")


@takes("json test")
def doctor(asked: CommandArguments) -> None:
    """Say what works on this machine, and what to install.

    Versions, extras with the command that installs them, devices and what
    can be used of them, shipped models, and a self-test: a tiny model is
    explained and compared with what is known of it. Exit code 1 if that fails.

    \b
    Examples:
      whyformer doctor
      whyformer doctor --json
    """
    state = diagnosis(asked.test)
    if asked.json:
        print_json(state)
    else:
        _print(state)
    if any(outcome["trouble"] for outcome in state["self_test"]):
        raise typer.Exit(1)


def diagnosis(test: bool = True) -> dict[str, Any]:
    """Return everything that is printed, as plain data."""
    from whyformer.cli._selftest import self_test

    devices = _devices()
    return {
        "whyformer": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "libraries": {name: _version(name) for name in CORE},
        "extras": _extras(),
        "devices": devices,
        "models": _models(),
        "self_test": [self_test(device["name"]) for device in devices] if test else [],
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _extras() -> list[dict[str, Any]]:
    """Each extra with its libraries, whether all of them are here, and the command that brings them."""
    libraries: dict[str, dict[str, str]] = {}
    for module, (package, extra) in LIBRARIES.items():
        if extra:
            libraries.setdefault(extra, {})[module] = package
    libraries["notebook"] = {"anywidget": "anywidget"}
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
    """The processor, and every GPU with what can be used of it."""
    import torch

    devices: list[dict[str, Any]] = [
        {"name": "cpu", "what": f"{os.cpu_count()} cores, torch uses {torch.get_num_threads()} at once", "uses": {}}
    ]
    for number in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        about = torch.cuda.get_device_properties(number)
        uses = {"triton": installed("triton"), "cuda_graphs": True}
        what = f"{about.name}, {about.total_memory / 2**30:.0f} GiB"
        devices.append({"name": f"cuda:{number}", "what": what, "uses": uses})
    if torch.backends.mps.is_available():
        devices.append({"name": "mps", "what": "Apple GPU", "uses": {"triton": False, "cuda_graphs": False}})
    return devices


def _models() -> dict[str, str | None]:
    """Shipped models by name, and where they are; None where they are not."""
    if not installed("whyformer_models"):
        return dict.fromkeys(MODELS)
    from whyformer.demo import model_folder

    folders = {name: Path(model_folder(name)) for name in MODELS}
    return {name: str(folder) if folder.is_dir() else None for name, folder in folders.items()}


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
    extras = [(each["name"], _extra_words(each)) for each in state["extras"]]
    devices = [(each["name"], Text(_device_words(each))) for each in state["devices"]]
    for heading, rows in (("Extras", extras), ("Devices", devices)):
        lines += ["", Text(heading, style="bold"), listed(rows)]
    here = [name for name, folder in state["models"].items() if folder]
    words = f"{', '.join(here)} (nothing is downloaded)" if here else "none here: pip install 'whyformer[models]'"
    lines += ["", Text.assemble(("Shipped models", "bold"), f"  {words}")]
    if state["self_test"]:
        rows = [(each["device"], _test_words(each)) for each in state["self_test"]]
        lines += ["", Text("Self-test", style="bold"), listed(rows)]
    put(Group(*lines))


def _extra_words(extra: dict[str, Any]) -> Text:
    from rich.text import Text

    if extra["present"]:
        versions = ", ".join(f"{package} {number}" for package, number in extra["libraries"].items())
        return Text("yes", style="green").append(f"  {versions}", style="dim")
    return Text("no", style="yellow").append(f"   {extra['for']}: ", style="dim").append(extra["install"])


def _device_words(device: dict[str, Any]) -> str:
    uses = device["uses"]
    if not uses:
        return str(device["what"])
    triton = "Triton kernels for long inputs" if uses["triton"] else "no Triton (pip install triton: long inputs)"
    graphs = "CUDA graphs (compiled=True)" if uses["cuda_graphs"] else "no CUDA graphs"
    return f"{device['what']}; {triton}; {graphs}"


def _test_words(outcome: dict[str, Any]) -> Text:
    from rich.text import Text

    if outcome["trouble"]:
        return Text(f"FAILED: {outcome['trouble']}", style="red")
    words = f"  two methods agree with numpy, and the model is as it was ({outcome['seconds']:.1f} s)"
    return Text("passed", style="green").append(words, style="dim")
