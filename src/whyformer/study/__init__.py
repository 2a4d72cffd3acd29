"""Study a model once: its sites, the row that feeds its head, its patch grid, and whether it leaks.

``facts.py`` what is known · ``once.py`` who studies what, and remembers · ``one_stream.py`` plain self-attention ·
``several.py`` streams and windows · ``between_rows.py`` rows that look at each other · ``starts.py`` where the input's
own positions start · ``passes.py`` passes, counted · ``padding.py`` what a model hides · ``readable.py`` what methods
may rely on.
"""

from whyformer.study.facts import Study as Study
from whyformer.study.facts import require_readable as require_readable
from whyformer.study.facts import with_streams as with_streams
from whyformer.study.padding import hidden_padding as hidden_padding
from whyformer.study.study import rows_of_each as rows_of_each
from whyformer.study.study import study_of as study_of
