"""What a method took where an option was left open, in a form that can be asked for again."""

from __future__ import annotations

from whyformer.run import Run
from whyformer.subjects.parts import fitting


def used_replacement(run: Run, replacement: str | int) -> str | int:
    """What stood for an absent unit: the name that was asked for, unless every stream took one and the same other."""
    taken = set(_by_stream(run, replacement).values())
    return taken.pop() if len(taken) == 1 else replacement


def other_replacements(run: Run, replacement: str | int) -> list[str]:
    """A remark where streams took different things: one name cannot say it."""
    taken = _by_stream(run, replacement)
    if len(set(taken.values())) < 2:
        return []
    each = ", ".join(f"{stream}: {f'token {v}' if isinstance(v, int) else v}" for stream, v in taken.items())
    return [f"not every stream has replace={replacement!r}; what stood for an absent unit is {each}."]


def _by_stream(run: Run, replacement: str | int) -> dict[str, str | int]:
    """Per stream of which something can be taken away."""
    if not run.subject.several:
        return {run.subject.stream: replacement}
    parts = {s: run.subject.part(s, run.batch)[0] for s in dict.fromkeys(s for u in run.units for s in u.stream)}
    return {stream: fitting(part, replacement) for stream, part in parts.items() if part.replacements}
