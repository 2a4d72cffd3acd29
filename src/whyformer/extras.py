"""What is imported when it is needed: optional libraries, with the extras that install them, and floors above."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from types import ModuleType

from whyformer.errors import MissingExtra, listed

LIBRARIES = {  # as it is imported → as pip calls it, and the extra of whyformer that brings it ("": none does)
    "transformers": ("transformers", "hf"),
    "PIL": ("Pillow", "hf"),
    "whyformer_models": ("whyformer-models", "models"),
    "matplotlib": ("matplotlib", "plot"),
    "sklearn": ("scikit-learn", "eval"),
    "shap": ("shap", "shap"),
    "pandas": ("pandas", "tabular"),
    "rtdl_revisiting_models": ("rtdl_revisiting_models", "tabular"),
    "tab_transformer_pytorch": ("tab-transformer-pytorch", ""),
    "pyarrow": ("pyarrow", "batch"),
    "ray": ("ray", "ray"),
    "fastapi": ("fastapi", "web"),
    "uvicorn": ("uvicorn", "web"),
    "httpx": ("httpx", "web"),
    "opentelemetry": ("opentelemetry-api", "otel"),
    "anywidget": ("anywidget", "notebook"),
    "sentence_transformers": ("sentence-transformers", ""),
}
SHIPPED = ("transformers", "PIL", "rtdl_revisiting_models", "whyformer_models")  # what the shipped models take


def require(*modules: str, why: str) -> None:
    """Raise MissingExtra, with the command that installs them, if libraries are missing. Call it before any work."""
    missing = [name for name in modules if not installed(name)]
    if missing:
        raise MissingExtra(why, listed([LIBRARIES[name][0] for name in missing], "and"), command_for(*missing))


def command_for(*modules: str) -> str:
    extras = ",".join(dict.fromkeys(LIBRARIES[name][1] for name in modules if LIBRARIES[name][1]))
    wanted = [f"'whyformer[{extras}]'"] if extras else []
    wanted += [library for library, extra in map(LIBRARIES.__getitem__, modules) if not extra]
    return f"pip install {' '.join(wanted)}"


def installed(module: str) -> bool:
    if module in sys.modules:
        return sys.modules[module] is not None
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:
        return False


def public() -> ModuleType:
    """The package as users have it, for floors below what it names: each name is imported when it is read."""
    return sys.modules[__name__.partition(".")[0]]
