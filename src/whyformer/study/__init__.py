"""What is found out about a model, once: its sites, the row that feeds its head, its patch grid, and whether it leaks.

``study.py`` studies a model and remembers · ``facts.py`` what is known then, and what methods may rely on ·
``readout.py`` sites, and the rows that feed the head · ``dataflow.py`` where queries and keys come from, and what they
reach · ``schedule.py``, ``streams.py`` several streams of tokens · ``windows.py`` attention inside windows ·
``leak.py`` what passes between positions outside attention · ``padding.py`` what a model hides by itself ·
``interference.py`` whether looking into a model changes what it says · ``slopes.py`` whether gradients are slopes ·
``swayed.py`` both by one pass · ``replay.py``, ``again.py``, ``fingerprints.py`` a pass that says again what was said ·
``entrance.py`` whether units stand where they are said to · ``hidden.py`` attention that ran out of sight.
"""

from whyformer.study.facts import Study as Study
from whyformer.study.facts import require_readable as require_readable
from whyformer.study.facts import with_streams as with_streams
from whyformer.study.padding import hidden_padding as hidden_padding
from whyformer.study.padding import require_real_rows as require_real_rows
from whyformer.study.study import rows_of_each as rows_of_each
from whyformer.study.study import study_of as study_of
