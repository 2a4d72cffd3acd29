"""whyformer: why did your transformer say that?"""

# The folder first: below, its name becomes the function that lists what is in it.
import whyformer.methods as _methods  # noqa: F401
from whyformer.capture.marker import mark_attention as mark_attention
from whyformer.explainer import Explainer as Explainer
from whyformer.explainer import explain as explain
from whyformer.io import load as load
from whyformer.registry import methods as methods
from whyformer.types import Explanation as Explanation
from whyformer.types import Record as Record
from whyformer.types import Target as Target
from whyformer.types import Units as Units
from whyformer.version import __version__ as __version__

__all__ = [
    "Explainer",
    "Explanation",
    "Record",
    "Target",
    "Units",
    "__version__",
    "explain",
    "load",
    "mark_attention",
    "methods",
]
