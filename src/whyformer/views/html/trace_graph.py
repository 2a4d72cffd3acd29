"""The run of an agent as HTML: its text, and what drove each step; frontend/src/graph.js draws lines and walks back."""

from __future__ import annotations

from html import escape

import numpy as np

from whyformer.views import marks
from whyformer.views.html.charts import STEPS, reading_html
from whyformer.views.html.live import as_json, rounded

HINT = "Click a step to see what drove it; click a step among its sources to walk back; arrow keys move; Esc returns."


def graph_html(mark: marks.StepGraph) -> str:
    """The page is whole without its script: it shows the sources of the last step in colour, and a list of all."""
    steps = "".join(
        f"<li><b>{escape(step)}</b><ul>{''.join(f'<li>{escape(source)}</li>' for source in sources)}</ul></li>"
        for step, sources in mark.told()
    )
    data = {
        "names": list(mark.names),
        "steps": list(mark.steps),
        "calls": list(mark.calls),
        "unit": STEPS,
        "least": marks.LEAST,
        "shares": np.round(mark.shares * STEPS).astype(int).tolist(),
        "origins": np.round(mark.origins * STEPS).astype(int).tolist(),
        "drops": [[None if np.isnan(drop) else rounded(drop) for drop in row] for row in mark.drops],
    }
    run, drawn = reading_html(mark.reading), as_json(data)
    return (
        f'<div class="wf-graph"><p class="wf-note wf-graph-hint">{HINT}</p><div class="wf-graph-columns">'
        f'<div class="wf-graph-run">{run}</div><div class="wf-why" aria-live="polite"></div></div>'
        f'<ol class="wf-graph-told">{steps}</ol><script type="application/json" class="wf-data">{drawn}</script></div>'
    )
