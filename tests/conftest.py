"""Annotations of shapes (shapes.py) are held to what is passed: here in the tests, and nowhere at a user's."""

from __future__ import annotations

from typing import Any

import numpy as np
from beartype import BeartypeConf, FrozenDict, beartype
from jaxtyping import install_import_hook

FORMULAS = [  # where maps are computed with; what only carries them about is not checked
    "whyformer.engines.attention",
    "whyformer.methods",
]

held = beartype(
    conf=BeartypeConf(
        is_pep484_tower=True,  # an int is welcome where a float is asked for, as it is to mypy
        hint_overrides=FrozenDict({np.ndarray[Any, Any]: np.ndarray}),  # which beartype cannot read
    )
)

# The hook sees modules that are imported after it: nothing of whyformer may be imported above.
install_import_hook(FORMULAS, "tests.conftest.held")
