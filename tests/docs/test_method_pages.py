"""The examples on the pages of gradient and perturbation methods run as they stand, on the shipped models."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

PAGES = Path(__file__).parents[2] / "docs" / "methods"
METHODS = (
    "saliency",
    "input_x_gradient",
    "smooth_grad",
    "integrated_gradients",
    "grad_cam",
    "vit_cx",
    "shap",
)


@pytest.mark.parametrize("method", METHODS)
def test_the_example_runs(method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (PAGES / f"{method}.md").read_text(encoding="utf-8"), flags=re.DOTALL)
    assert blocks
    exec("\n".join(blocks), {})
    if method in ("grad_cam", "vit_cx"):
        assert (tmp_path / f"{method}.png").stat().st_size > 10_000
