"""Pages as figures of matplotlib, for .png, .svg and .pdf files."""

from __future__ import annotations

from whyformer.errors import require

require("matplotlib", why="drawing a figure (.plot(), .png, .svg, .pdf)")
