"""A tabular model in a folder: which class with which arguments, its weights, and its table.

config.json        {"library": …, "class": …, "arguments": {…}}
table.json         Table.to_dict()
model.safetensors  the weights
"""

from __future__ import annotations

import json
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import nn

from whyformer.errors import BadInput, MissingExtra, UnknownName
from whyformer.extras import require
from whyformer.files.paths import Damaged, made_folder, read_json, readable_folder, writing
from whyformer.inputs.table_schema import Table
from whyformer.parameters import checked

CONFIG, TABLE, WEIGHTS = "config.json", "table.json", "model.safetensors"
ENTRIES = {"library": str, "class": str, "arguments": dict}

# Only these are built from a file: a folder must not be able to name any code it likes.
CLASSES = {
    "rtdl_revisiting_models": ("FTTransformer",),
    "tab_transformer_pytorch": ("FTTransformer", "TabTransformer"),
}


@checked
def save_model(model: nn.Module, arguments: dict[str, Any], table: Table, folder: str | Path) -> Path:
    """Write a model (with the arguments it was made with) and its table; ``load_model`` reads them back."""
    from safetensors.torch import save_file

    library = type(model).__module__.split(".")[0]
    _check(library, type(model).__name__)
    if not isinstance(table, Table):
        raise BadInput(f"table has to be a whyformer.Table, and is a {type(table).__name__}.")
    config = {"library": library, "class": type(model).__name__, "arguments": arguments}
    try:
        written = {
            CONFIG: json.dumps(config, indent=1),
            TABLE: json.dumps(table.to_dict(), ensure_ascii=False, indent=1),
        }
    except (TypeError, ValueError) as error:
        raise BadInput(f"arguments and table are written as JSON, which has no room for this: {error}.") from error
    folder = made_folder(folder)
    with writing(folder):
        for name, text in written.items():
            (folder / name).write_text(text, encoding="utf-8")
        save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / WEIGHTS)
    return folder


@checked
def load_model(folder: str | Path) -> tuple[nn.Module, Table]:
    """The model, ready to be explained, and its table."""
    from safetensors.torch import load_file

    folder = readable_folder(folder, "saved tabular model in")
    try:
        config, described = (read_json(folder / name) for name in (CONFIG, TABLE))
        for key, kind in ENTRIES.items():
            if not isinstance(config, dict) or not isinstance(config.get(key), kind):
                raise Damaged(f"{CONFIG} has no {key!r}, or it is not of type {kind.__name__}")
        library, name, arguments = (config[key] for key in ENTRIES)
        weights = load_file(folder / WEIGHTS)
        _check(library, name)
        _require_modest(arguments, sum(tensor.numel() for tensor in weights.values()))
        require(library, why=f"a saved {name}")
        model: nn.Module = getattr(import_module(library), name)(**arguments)
        model.load_state_dict({k: v.to(model.state_dict()[k].dtype) for k, v in weights.items()})
        return model.eval(), Table.from_dict(described)
    except (UnknownName, MissingExtra):
        raise
    except Exception as error:  # files can hold anything, and the classes of other libraries say it in their own way
        words = " ".join(f"{type(error).__name__}: {error}".split())[:300]
        raise BadInput(
            f"{str(folder)!r} is no saved tabular model ({words}): whyformer.tables.saved.save_model writes one."
        ) from error


def _require_modest(arguments: Any, weights: int) -> None:
    """Raise if a number is larger than the number of weights: a model of a billion blocks would be built first."""
    parts = arguments.values() if isinstance(arguments, dict) else arguments if isinstance(arguments, list) else ()
    for part in parts:
        _require_modest(part, weights)
    if isinstance(arguments, int) and abs(arguments) > weights:
        raise Damaged(f"{CONFIG} asks for {arguments} of something, and there are {weights} weights")


def _check(library: str, name: str) -> None:
    if name not in CLASSES.get(library, ()):
        known = [f"{a}.{b}" for a, names in CLASSES.items() for b in names]
        raise UnknownName("kind of saved model", f"{library}.{name}", known, "Pass other models from Python.")
