"""Pictures of explanations and of attention: in the terminal, as a page, as a figure.

Each function here returns a View (or Page) with ``.show()``, ``.plot()``, ``.to_html()`` and ``.save(path)``; notebooks
draw it by themselves. ``Result.show()`` and its siblings are doors to ``view_of``.

>>> explainer = wf.Explainer(*wf.demo.load_sentiment())
>>> explanations = explainer.explain("I like the movie", method=["grad_sam", "occlusion"])
>>> wf.views.side_by_side(list(explanations.values())).save("both.html")
"""

from whyformer.views.attention_view import attention_map, attention_streams, heads_grid, heads_over_image, relevance_map
from whyformer.views.explained import page, side_by_side
from whyformer.views.generation import generation_view
from whyformer.views.several import list_page, methods_page
from whyformer.views.table_marks import table_map
from whyformer.views.view import Page, View, view_of

__all__ = [
    "Page",
    "View",
    "attention_map",
    "attention_streams",
    "generation_view",
    "heads_grid",
    "heads_over_image",
    "list_page",
    "methods_page",
    "page",
    "relevance_map",
    "side_by_side",
    "table_map",
    "view_of",
]
