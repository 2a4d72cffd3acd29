"""Pages under axe (WCAG rules, in the browser) with everything unfolded: each way of drawing, light or dark."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from tests.support.browser import Browser
from tests.views import samples
from tests.views.conftest import opened
from tests.views.results import ALL
from tests.views.test_notebook import SAID, rather_than
from whyformer.views import heads_grid, side_by_side

LIGHT = ("Explanation", "Generation", "Report", "heads grid", "image")
DARK = (
    *("heads grid", "why not", "CheckUp", "Citations", "HeadRoles", "Report", "TCAVResult", "side by side"),
    *("Explanation", "Comparison", "HeadImportance", "Recommendation"),
)
PAGES: dict[str, Callable[[], Any]] = {kind.__name__: make for kind, make in ALL.items()}
PAGES |= {
    "side by side": lambda: side_by_side([samples.text(), samples.text("occlusion", signed=True, base=0.1)]),
    "image": samples.image,
    "why not": lambda: rather_than(0).replace(target=SAID).view(others=[rather_than(0)]),
    "heads grid": lambda: heads_grid(samples.encoder_record()),
}
UNFOLDED = (
    "document.querySelectorAll('details').forEach(d => { d.open = true; });"
    "document.querySelectorAll('button.wf-badge, .wf-asks').forEach(b => b.click())"
)
BROKEN = (
    "axe.run(document, {resultTypes: ['violations']}).then(r => r.violations.map(v => "
    "`${v.impact} ${v.id}: ${v.nodes.length} ${v.nodes[0].html.slice(0, 120)}`))"
)


def axe() -> str:
    home = find_spec("axe_core_python")
    assert home is not None and home.origin is not None, "axe-core-python is in the dev group"
    return (Path(home.origin).parent / "axe.min.js").read_text(encoding="utf-8")


@pytest.mark.parametrize(("name", "dark"), [*((n, False) for n in LIGHT), *((n, True) for n in DARK)])
def test_no_rule_is_broken_wide_and_light_or_narrow_and_dark(
    browser: Browser, tmp_path: Path, name: str, dark: bool
) -> None:
    opened(browser, PAGES[name](), tmp_path, dark=dark, width=420 if dark else 1300)
    assert browser.does("document.documentElement.classList.contains('wf-started')")
    assert browser.does("document.documentElement.scrollWidth") <= (420 if dark else 1300)
    browser.does(UNFOLDED)
    browser.ask("Runtime.evaluate", expression=axe())
    assert browser.does(BROKEN) == []


def test_the_check_sees_what_is_broken(browser: Browser, tmp_path: Path) -> None:
    opened(browser, samples.text(), tmp_path)
    browser.does(
        "document.querySelector('.wf').append(Object.assign(document.createElement('p'), {textContent: 'pale'}));"
        "document.querySelector('.wf > p:last-child').style.color = '#eee'; document.querySelector('.wf-tools')"
        ".append(document.createElement('button')); document.documentElement.lang = ''"
    )
    browser.ask("Runtime.evaluate", expression=axe())
    broken = " ".join(browser.does(BROKEN))
    assert all(rule in broken for rule in ("color-contrast", "button-name", "html-has-lang"))
