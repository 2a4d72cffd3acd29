"""While a model is loaded: no progress bars and notices of transformers, in terminals and below cells of notebooks."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager

from whyformer.extras import require


@contextmanager
def quiet() -> Iterator[None]:
    """Silence, and the settings of transformers put back after it."""
    require("transformers", why="loading models")
    from transformers.utils import logging as hf_logging

    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.ERROR)
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()
