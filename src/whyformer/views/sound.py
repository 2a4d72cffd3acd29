"""Sound: scores of frames over time, above the waveform they were cut from."""

from __future__ import annotations

import numpy as np

from whyformer.types import Explanation, Units
from whyformer.views.marks import Line, Lines


def in_time(units: Units, stream: str) -> bool:
    """Frames of a sound whose length is known."""
    return stream == "audio" and units.grid is None and units.seconds is not None


def time_lines(explanation: Explanation, times: float = 1.0) -> Lines:
    """A step per frame at its time in seconds, the waveform behind it as high as the highest score."""
    units = explanation.units
    assert units.seconds is not None
    plain = [i for i, special in enumerate(units.special) if not special]
    scores = explanation.scores[plain].astype(float) * times
    edges = np.linspace(0.0, units.seconds, len(plain) + 1)
    x, steps = np.repeat(edges, 2)[1:-1], np.repeat(scores, 2)
    lines = [Line("score", steps)]
    if units.wave is not None:
        loud = np.asarray(units.wave) * float(np.abs(scores).max(initial=0.0))
        at = (np.arange(len(loud)) + 0.5) * units.seconds / len(loud)
        lines.append(Line("waveform", loud, quiet=True, x=at))
    return Lines(x, tuple(lines), "seconds", "score" if times == 1.0 else "share of the method's total", from_zero=True)
