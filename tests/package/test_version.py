"""Versions of a release agree, and its notes are those of the changelog."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

import whyformer as wf
from docs.release_notes import faults, section, versions
from tests.support.packages import REPOSITORY

FILES = ("src/whyformer/version.py", "models/src/whyformer_models/__init__.py", "CITATION.cff", "CHANGELOG.md")


def test_what_is_here_could_be_released_but_for_the_date() -> None:
    assert faults(REPOSITORY) == []
    assert versions(REPOSITORY)["src/whyformer/version.py"] == wf.__version__
    assert len(section((REPOSITORY / "CHANGELOG.md").read_text(encoding="utf-8"), wf.__version__)[1]) > 1000


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(REPOSITORY / name, tmp_path / name)
    (tmp_path / "CHANGELOG.md").write_text("# Changelog\n\n## 9.1.0 (2030-01-02)\n\n- New.\n\n## 9.0.0\n\n- Old.\n")
    for name in FILES[:3]:
        text = (tmp_path / name).read_text(encoding="utf-8").replace(wf.__version__, "9.1.0")
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "before", "after", "fault"),
    [
        ("CITATION.cff", "9.1.0", "9.0.0", "CITATION.cff has version 9.0.0"),
        ("models/src/whyformer_models/__init__.py", "9.1.0", "9.0.7", "the models are of version 9.0.7"),
        ("CHANGELOG.md", "- New.", "", "nothing about 9.1.0"),
        ("CHANGELOG.md", "9.1.0 (2030-01-02)", "Unreleased (9.1.0)", "write '## 9.1.0 (YYYY-MM-DD)'"),
    ],
)
def test_what_is_wrong_is_said(repository: Path, file: str, before: str, after: str, fault: str) -> None:
    assert faults(repository, final=True) == []
    text = (repository / file).read_text(encoding="utf-8")
    (repository / file).write_text(text.replace(before, after), encoding="utf-8")
    (line,) = faults(repository, final=True)
    assert fault in line


def test_a_section_ends_where_the_next_begins(repository: Path) -> None:
    changelog = (repository / "CHANGELOG.md").read_text()
    assert section(changelog, "9.1.0") == ("9.1.0 (2030-01-02)", "- New.")
    assert section(changelog, "9.0.0") == ("9.0.0", "- Old.") and section(changelog, "9.1") == ("", "")
