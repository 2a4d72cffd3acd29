"""Whole explanations as CUDA graphs: recorded once for a shape, replayed for every input that fits it.

``graph.py`` recording and replaying, and what would stop a recording · ``forms.py`` what is recorded (model, gradient
and formula from static inputs to one tensor), what shape inputs are padded to, and which are never recorded ·
``graphs.py`` the graphs of an Explainer, and whether the model is still the one they were recorded of.
"""

from whyformer.compiled.forms import Compiled as Compiled
from whyformer.compiled.forms import Question as Question
from whyformer.compiled.graphs import Graphs as Graphs
