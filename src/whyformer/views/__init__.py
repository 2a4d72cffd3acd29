"""Pictures of explanations and of attention: in the terminal, as a page, as a figure.

Each function here returns a View (or Page) with ``.show()``, ``.plot()``, ``.to_html()`` and ``.save(path)``; notebooks
draw it by themselves. ``Result.show()`` and its siblings are doors to ``view_of``.

>>> explainer = wf.Explainer(*wf.demo.load_sentiment())
>>> explanations = explainer.explain("I like the movie", method=["grad_sam", "occlusion"])
>>> wf.views.side_by_side(list(explanations.values())).save("both.html")
"""

from whyformer.views.attention_view import attention_map as attention_map
from whyformer.views.attention_view import attention_streams as attention_streams
from whyformer.views.attention_view import heads_grid as heads_grid
from whyformer.views.attention_view import heads_over_image as heads_over_image
from whyformer.views.attention_view import relevance_map as relevance_map
from whyformer.views.explained import page as page
from whyformer.views.explained import side_by_side as side_by_side
from whyformer.views.generation import generation_view as generation_view
from whyformer.views.several import list_page as list_page
from whyformer.views.several import methods_page as methods_page
from whyformer.views.table_marks import table_map as table_map
from whyformer.views.view import Page as Page
from whyformer.views.view import View as View
from whyformer.views.view import view_of as view_of

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
