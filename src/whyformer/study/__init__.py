"""Examine a model once: attention sites, the row that feeds its head, its patch grid, leaks between positions.

``study.py`` run the study and remember it · ``facts.py`` its result; information that passes between positions outside
attention, attention that was not seen · ``readout.py`` sites, and the rows that feed the head · ``dataflow.py`` where
queries and keys come from · ``schedule.py``, ``streams.py`` several streams of tokens, attention inside windows ·
``interference.py`` whether interception changes the output, whether gradients are slopes · ``entrance.py`` whether
units are at their positions, and padding that the model hides itself.
"""

from whyformer.study.entrance import hidden_padding as hidden_padding
from whyformer.study.facts import Study as Study
from whyformer.study.facts import require_readable as require_readable
from whyformer.study.study import rows_of_each as rows_of_each
from whyformer.study.study import study_of as study_of
