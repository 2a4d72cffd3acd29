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
from whyformer.inputs.table_schema import Table
from whyformer.parameters import checked

# Only these are built from a file: a folder must not be able to name any code it likes.
CLASSES = {
    "rtdl_revisiting_models": ("FTTransformer",),
    "tab_transformer_pytorch": ("FTTransformer", "TabTransformer"),
}


@checked
def save_model(model: nn.Module, arguments: dict[str, Any], table: Table, folder: str | Path) -> Path:
    """Write a model (with the arguments it was made with) and its table; ``load_model`` reads them back."""
    from safetensors.torch import save_file

    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    library = type(model).__module__.split(".")[0]
    _check(library, type(model).__name__)
    config = {"library": library, "class": type(model).__name__, "arguments": arguments}
    (folder / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    (folder / "table.json").write_text(json.dumps(table.to_dict(), ensure_ascii=False, indent=1), encoding="utf-8")
    save_file({k: v.contiguous() for k, v in model.state_dict().items()}, folder / "model.safetensors")
    return folder


@checked
def load_model(folder: str | Path) -> tuple[nn.Module, Table]:
    """The model, ready to be explained, and its table."""
    from safetensors.torch import load_file

    folder = Path(folder)
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        library, name, arguments = config["library"], config["class"], config["arguments"]
        described = json.loads((folder / "table.json").read_text(encoding="utf-8"))
        weights = load_file(folder / "model.safetensors")
    except (OSError, KeyError, ValueError) as error:
        raise BadInput(
            f"{str(folder)!r} is no saved tabular model ({error}): whyformer.tables.saved.save_model writes one."
        ) from None
    _check(library, name)
    try:
        kind = getattr(import_module(library), name)
    except ImportError:
        raise MissingExtra(library, "tabular", "this model") from None
    model: nn.Module = kind(**arguments)
    model.load_state_dict({k: v.to(model.state_dict()[k].dtype) for k, v in weights.items()})
    return model.eval(), Table.from_dict(described)


def _check(library: str, name: str) -> None:
    if name not in CLASSES.get(library, ()):
        known = [f"{a}.{b}" for a, names in CLASSES.items() for b in names]
        raise UnknownName("kind of saved model", f"{library}.{name}", known, "Pass other models from Python.")
