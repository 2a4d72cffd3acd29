"""The site in a browser, opened from its folder: it can be searched, needs no network, and everyone can read it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from docs import reference
from tests.support.browser import Browser
from tests.views.test_accessible import axe

CALL, NOTEBOOK = "api/generated/whyformer.explain.html", "start/first_look.html"
METHOD, NAME = "methods/attention_rollout.html", "api/generated/whyformer.Explanation.html"
SERIOUS = (  # frames are pages of ours, which tests/views looks at
    "axe.run(document, {iframes: false, resultTypes: ['violations']}).then(r => r.violations"
    ".filter(v => ['serious', 'critical'].includes(v.impact))"
    ".map(v => `${v.impact} ${v.id}: ${v.nodes.length} ${v.nodes[0].html.slice(0, 160)}`))"
)
SETTLED = (  # colours fade in as the theme is chosen: halfway there, contrast is low
    "new Promise(r => { document.getAnimations().forEach(a => a.finish());"
    "requestAnimationFrame(() => requestAnimationFrame(() => r(document.getAnimations().length))); })"
)
LINKS = (
    "new Promise(r => { const t = setInterval(() => { const l = [...document.querySelectorAll('#search-results li a')];"
    "if (l.length && !document.querySelector('.search-summary')?.textContent.includes('Searching')) "
    "{ clearInterval(t); r(l.map(a => a.getAttribute('href'))); } }, 50); setTimeout(() => { clearInterval(t); r([]); }"
    ", 20000); })"
)
FETCHED = "performance.getEntriesByType('resource').map(e => e.name).filter(n => !/^(file|data|blob):/.test(n))"


@pytest.mark.parametrize(
    ("page", "dark"), [("index.html", False), (METHOD, False), (NOTEBOOK, False), (CALL, True), ("glossary.html", True)]
)
def test_no_serious_rule_of_accessibility_is_broken(site: Path, browser: Browser, page: str, dark: bool) -> None:
    browser.open(site / page, dark=dark)
    assert browser.does(SETTLED) == 0
    browser.ask("Runtime.evaluate", expression=axe())
    assert browser.does(SERIOUS) == []


@pytest.mark.parametrize(("words", "page"), [("rollout", METHOD), ("heatmap", NAME)])
def test_it_is_searched_from_its_folder(site: Path, browser: Browser, words: str, page: str) -> None:
    browser.open(f"{(site / 'search.html').as_uri()}?q={words}")
    assert any(page in (link or "") for link in browser.does(LINKS))


@pytest.mark.parametrize("page", ["index.html", METHOD, NAME, NOTEBOOK])
def test_it_needs_no_network_and_fits_a_phone(site: Path, browser: Browser, page: str) -> None:
    browser.open(site / page, width=400)
    assert browser.does(FETCHED) == []
    assert browser.does("document.documentElement.scrollWidth") <= 400
    if page == METHOD:  # a formula is drawn by the browser alone
        assert browser.does("document.querySelector('div.math math').getBoundingClientRect().height") > 15
    assert browser.errors == []


def test_a_name_is_told_with_its_fields_and_verbs(site: Path) -> None:
    text = (site / NAME).read_text(encoding="utf-8")
    assert all(f"whyformer.Explanation.{verb}" in text for verb in ("ranked", "show", "save", "heatmap"))
    assert "standard error of each score" in text  # the comment behind a field


def test_every_public_name_has_a_place() -> None:
    pages = "\n".join(reference.pages().values())
    listed = {f"whyformer.{name}" for name in re.findall(r"^   ([A-Za-z_.]+)$", pages, flags=re.MULTILINE)}
    assert set(reference.public_names()) <= listed
    assert not reference.undocumented()
