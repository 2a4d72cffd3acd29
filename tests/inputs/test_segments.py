"""Words, sentences and chosen ranges of a text."""

from __future__ import annotations

import pytest

from whyformer.errors import BadInput
from whyformer.inputs.chat import members, sentences, spans_of, token_sentences, words


def texts(text: str, spans: list[tuple[int, int]]) -> list[str]:
    return [text[start:end] for start, end in spans]


@pytest.mark.parametrize(
    "text, expected",
    [
        ("One. Two! Three?", ["One.", "Two!", "Three?"]),
        ("Dr. Smith went home. He slept.", ["Dr. Smith went home.", "He slept."]),
        ('"Really?" she said. "Yes."', ['"Really?" she said.', '"Yes."']),
        ("J. K. Rowling wrote 3.5 pages (p. 3). End", ["J. K. Rowling wrote 3.5 pages (p. 3).", "End"]),
        ("a line\nanother one\n\nlast", ["a line", "another one", "last"]),
        ("你好。再见！", ["你好。", "再见！"]),
        ("rome is in Italy. where is paris?", ["rome is in Italy.", "where is paris?"]),
        ("dr. smith said no. see fig. 3! then he slept", ["dr. smith said no.", "see fig. 3!", "then he slept"]),
        ("  ", []),
    ],
)
def test_sentences(text: str, expected: list[str]) -> None:
    assert texts(text, sentences(text)) == expected


def test_words_leave_spaces_out() -> None:
    text = "It's state-of-the-art, no."
    assert texts(text, words(text)) == ["It's", "state-of-the-art", ",", "no", "."]


def test_tokens_go_where_most_of_them_is() -> None:
    assert members([(0, 3), (3, 6), (6, 7), (7, 7)], [(0, 4), (4, 7)]) == [[0], [1, 2]]
    assert members([(0, 3)], []) == []


@pytest.mark.parametrize("units", [[(0, 99)], [(3, 3)], [(-1, 2)]])
def test_ranges_lie_within_the_text(units: list[tuple[int, int]]) -> None:
    with pytest.raises(BadInput, match="the text has 5 characters"):
        spans_of("a b c", units)


def test_ranges_do_not_overlap() -> None:
    with pytest.raises(BadInput, match="overlap"):
        spans_of("a b c", [(2, 4), (0, 3)])


def test_sentences_of_an_answer_are_ranges_of_its_tokens() -> None:
    text, tokens = "He ran. She sat !<end>", ["He", " ran", ".", " She", " sat", " !", "<end>"]
    ends = [sum(map(len, tokens[: i + 1])) for i in range(len(tokens))]
    assert token_sentences(text, ends[:-1]) == ((0, 3), (3, 7))
    assert token_sentences("yes", []) == ((0, 1),)
    assert token_sentences("  ", [1]) == ((0, 2),), "all tokens belong somewhere"
