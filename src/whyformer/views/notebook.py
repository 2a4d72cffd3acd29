"""A page as a widget in a running notebook: the kernel answers its questions. A saved notebook keeps the page alone."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from whyformer.extras import command_for
from whyformer.views.html.live import question_of
from whyformer.views.view import Explained

Ask = Callable[..., Any]


def widget_of(drawn: Any, ask: Ask | None = None) -> Any:
    """Return a View or Page as a widget, itself without anywidget or a kernel; ``ask`` is called with ``target=``."""
    kernel = _has_kernel()
    kind = widget_kind() if kernel else None
    if kind is None:
        if kernel and ask is not None:
            warnings.warn(f"without anywidget, clicks are not answered: {command_for('anywidget')}", stacklevel=4)
        return drawn
    widget = kind(page=drawn.to_html(asks=ask is not None))
    if ask is not None:
        widget.on_msg(lambda _, told, __: widget.send(answer(drawn, ask, told)))
    return widget


def answer(drawn: Any, ask: Ask, told: Any) -> dict[str, Any]:
    """What the page is told when a class is clicked: its maps, or why there are none."""
    number, label, place = str(told.get("number", "")), str(told.get("label", "")), int(told.get("place", 0))
    try:
        sources = [view.explained for view in drawn._page().views if isinstance(view.explained, Explained)]
        said = sources[place].explanations[0].prediction
        other = next(choice.index for choice in said.next or () if str(choice) == label)  # labels may be missing
        answered = ask(target=(None, other))
        parts = list(answered.values()) if isinstance(answered, dict) else [answered]
        question = question_of([part[place] if isinstance(part, list) else part for part in parts])
    except Exception as error:  # whatever it is, the page waits for it
        return {"number": number, "error": f"{type(error).__name__}: {error}"}
    return {"number": number, "question": question and question | {"label": label}}


def _has_kernel() -> bool:
    """IPython is there where somebody runs it; a terminal has no place for widgets."""
    ipython = sys.modules.get("IPython")
    shell = ipython.get_ipython() if ipython is not None else None
    return shell is not None and getattr(shell, "kernel", None) is not None


@cache
def widget_kind() -> Any:
    """The class of widgets; None without anywidget."""
    try:
        import anywidget
        import traitlets
    except ImportError:
        return None

    class PageWidget(anywidget.AnyWidget):  # type: ignore[misc]
        _esm = (Path(__file__).parent / "html" / "widget.js").read_text(encoding="utf-8")
        page = traitlets.Unicode().tag(sync=True)

    return PageWidget
