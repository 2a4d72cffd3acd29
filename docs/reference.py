"""The pages of the API reference: every public name, grouped by purpose. ``docs.build`` writes them.

A public name without a group is listed on the page "Others", so that the reference is complete.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType

import whyformer as wf


@dataclass(frozen=True)
class Group:
    file: str
    title: str
    words: str
    names: tuple[str, ...] = ()  # of whyformer
    rooms: tuple[str, ...] = ()  # modules whose public names also belong here


GROUPS = (
    Group(
        "explain",
        "Explain",
        "Explain a prediction, reuse a model for many, and the results.",
        (
            *(
                "explain",
                "Explainer",
                "Explanation",
                "Explanations",
                "ByMethod",
                "Generation",
                "Target",
                "Units",
                "Record",
                "mark_attention",
            ),
            *("list_methods", "load", "to_shap", "to_captum", "to_quantus"),
        ),
    ),
    Group(
        "trust",
        "Evaluate",
        "Compare methods by faithfulness, and run sanity checks.",
        (
            *("compare", "Comparison", "recommend", "Recommendation", "check", "CheckUp", "report", "Report"),
            *("attention_debate", "retrained_attention", "masked_surrogate", "list_metrics"),
        ),
    ),
    Group(
        "language",
        "Language models",
        "Citations, and models behind a server.",
        ("cite", "Citations", "CompletionServer", "ChatServer"),
    ),
    Group(
        "tables",
        "Tables",
        "Named columns, global explanations, and in-context models.",
        ("Table", "Standardize", "explain_global", "feature_permutation"),
        ("tables",),
    ),
    Group(
        "jobs",
        "Datasets",
        "Explain a dataset in parts that are written to disk as they finish; learn a model to explain it in one pass.",
        ("explain_dataset", "learn", "Learned"),
        ("jobs",),
    ),
    Group("heads", "Heads", "Importance, roles and pruning of attention heads.", ("head_importance",), ("heads",)),
    Group(
        "concepts",
        "Concepts",
        "Test whether the output depends on a concept; maximise an activation.",
        ("tcav", "activation_maximization"),
        ("concepts",),
    ),
    Group("views", "Views", "Show, plot and save any result.", (), ("views",)),
    Group("extend", "Extend", "Register a method, a metric or a kind of input.", (), ("extend",)),
    Group("demo", "Example models", "Small trained models that need no download.", (), ("demo",)),
    Group("errors", "Errors", "Exceptions. Each message states the cause and the fix.", (), ("errors",)),
)


def room_names(room: str) -> list[str]:
    """Return the public names of a module: its ``__all__``, or what it defines."""
    module = import_module(f"whyformer.{room}")
    if hasattr(module, "__all__"):
        return list(module.__all__)
    return [
        name
        for name, value in vars(module).items()
        if not name.startswith("_")
        and (inspect.isfunction(value) or inspect.isclass(value))
        and value.__module__ == module.__name__
    ]


def public_names() -> list[str]:
    """Return the full names of everything public except modules."""
    names = [f"whyformer.{n}" for n in wf.__all__ if n != "__version__" and not isinstance(getattr(wf, n), ModuleType)]
    rooms = [n for n in wf.__all__ if isinstance(getattr(wf, n), ModuleType)]
    top = {n.rpartition(".")[2] for n in names}
    return names + [f"whyformer.{room}.{n}" for room in rooms for n in room_names(room) if n not in top]


def groups() -> list[Group]:
    """Return all groups, with the names that have none in a last group."""
    claimed = {f"whyformer.{n}" for g in GROUPS for n in g.names}
    rooms = {room for g in GROUPS for room in g.rooms}
    left = [n for n in public_names() if n not in claimed and not any(n.startswith(f"whyformer.{r}.") for r in rooms)]
    jobs = {"whyformer.ExplainedDataset"}
    others = tuple(n.removeprefix("whyformer.") for n in left if n not in jobs)
    return [*GROUPS, Group("others", "Others", "Names without a group.", others)] if others else list(GROUPS)


def page(group: Group) -> str:
    names = list(group.names)
    top = set(wf.__all__)
    for room in group.rooms:
        names += [n if n in top else f"{room}.{n}" for n in room_names(room) if n not in names]
    listed = "\n".join(f"   {name}" for name in names)
    words = "\n\n".join(
        f"```{{eval-rst}}\n.. automodule:: whyformer.{room}\n   :no-members:\n   :no-index:\n```"
        for room in group.rooms
    )
    summary = "\n".join(
        [
            "```{eval-rst}",
            ".. currentmodule:: whyformer",
            "",
            ".. autosummary::",
            "   :toctree: generated",
            "   :nosignatures:",
            "",
            listed,
            "```",
        ]
    )
    return f"# {group.title}\n\n{group.words}\n\n" + (f"{words}\n\n" if words else "") + summary + "\n"


def pages() -> dict[str, str]:
    """Return the files of docs/api with the text they should have."""
    made = {f"{group.file}.md": page(group) for group in groups()}
    rows = "\n".join(f"| [{g.title}]({g.file}.md) | {g.words} |" for g in groups())
    files = "\n".join(g.file for g in groups())
    made["index.md"] = (
        "# API\n\n"
        "Public names of `import whyformer as wf`. Everything else is internal and may change.\n"
        f"Parameters are shown with their defaults; a method's own options are on [its page](../methods/README.md).\n\n"
        f"| page | contents |\n|---|---|\n{rows}\n\n```{{toctree}}\n:hidden:\n\n{files}\n```\n"
    )
    return made


def undocumented() -> list[str]:
    """Return public names, and public members of public classes, that have no docstring."""
    missing = []
    for whole in public_names():
        room, _, name = whole.rpartition(".")
        value = getattr(import_module(room), name)
        if not inspect.isclass(value):
            missing += [whole] if callable(value) and not value.__doc__ else []
            continue
        written = vars(value).get("__doc__")
        if not written or written.startswith(f"{value.__name__}("):  # what dataclass writes by itself
            missing.append(whole)
        for member, thing in vars(value).items():
            inner = thing.fget if isinstance(thing, property) else getattr(thing, "__func__", thing)
            if not member.startswith("_") and inspect.isfunction(inner) and not (thing.__doc__ or inner.__doc__):
                missing.append(f"{whole}.{member}")
    return missing
