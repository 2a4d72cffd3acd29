"""A batch on its way through the model: each file adds what can be asked of it to the one before.

positions.py: where its units stand. scores.py: what the model says, and the explained number of it. gradients.py: that
number differentiated. run.py: attention maps, recorded once for all methods; `Run` is all of it, and what methods ask.
"""

from whyformer.run.run import Attribution as Attribution
from whyformer.run.run import Run as Run

__all__ = ["Attribution", "Run"]
