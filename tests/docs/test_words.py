"""The program that counts words and lists wording to avoid: which sentences it finds, and which it leaves alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from docs import words

PAGE = """# A page

The first sentence is plain. What stands for
an absent part is masked. The next one is plain, too.

```python
doubt = "code is not searched"
```

| row | `doubt` is a name, [doubt](doubt.md) is a link |
|---|---|
| other | chosen by the judge |
"""

MODULE = '''"""A module: no user reads doubt here."""

HINT = "omit it, or leave x= away"


def shown(n: int) -> str:
    """Return what to doubt."""
    return f"{n} inputs cannot be told apart"


def _inner() -> None:
    """A note for maintainers: doubt."""
'''


def test_sentences_know_their_line() -> None:
    assert list(words.sentences(PAGE))[:2] == [(1, "# A page"), (3, "The first sentence is plain.")]
    assert [(hit.line, hit.found) for hit in words.hits(PAGE)] == [
        (3, "What stands for"),
        (3, "absent part"),
        (10, "doubt"),
        (12, "the judge"),
    ]


@pytest.mark.parametrize(
    "text",
    [
        "Time limits apply, and limits of memory.",
        "A part of the dataset is written.",
        "One token stands for each pixel.",
        "Judge for yourself.",
        "The measures are noted in `doubt`.",
    ],
)
def test_ordinary_uses_are_no_hits(text: str) -> None:
    assert words.hits(text) == []


@pytest.mark.parametrize("text", ["(95 % limits exclude zero)", "[CLS] has no bar.", "It takes part.", "2 · players"])
def test_wording_of_the_list_is_found(text: str) -> None:
    assert len(words.hits(text)) == 1


def test_strings_that_reach_screens() -> None:
    read = [(line, text) for line, text in words.texts_of(MODULE) if words.hits(text)]
    assert sorted(read) == [
        (3, "omit it, or leave x= away"),
        (7, "Return what to doubt."),
        (8, "… inputs cannot be told apart"),
    ]


def test_sections() -> None:
    names = ("README.md", "docs/index.md", "docs/api/views.md", "docs/guide/trust.md")
    assert [words.section_of(Path(name)) for name in names] == ["README", "other", "reference", "guide"]
