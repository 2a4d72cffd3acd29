"""Run a model on a batch. ``session.py`` prepares model and inputs and loops over batches; a ``Run`` is one batch.

``scores.py`` positions of the units, logits and the explained scalar · ``traced.py`` its gradients at the input ·
``run.py`` attention maps, recorded once for all methods; ``Run`` has all of it.
"""

from whyformer.run.run import ATTENDING as ATTENDING
from whyformer.run.run import Attribution as Attribution
from whyformer.run.run import Run as Run
from whyformer.run.scores import positions_in as positions_in
from whyformer.run.scores import require_undisturbed as require_undisturbed
from whyformer.run.scores import working as working
