"""Citations: scores are the explained sentence's, drops are what leaving a source out does."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.support.language import model, tokenizer
from whyformer.errors import NotOffered

DOCUMENTS = {"cats": "The cat sat on the mat . He said yes .", "dogs": "The big red dog ran home ."}
QUESTION, ANSWER = "who ran home ?", "The dog ran home . It was red ."


def plain_tokenizer() -> Any:
    bare = copy.deepcopy(tokenizer())
    bare.chat_template = None
    return bare


def log_probability(lm: Any, prompt: str, answer: str, start: int, end: int) -> float:
    """Of the tokens of ``answer[start:end]`` after the prompt and the answer before them."""
    tok = tokenizer()
    before, said, part = (
        tok(t, add_special_tokens=False)["input_ids"] for t in (prompt, answer[:start], answer[start:end])
    )
    ids = torch.tensor([before + said + part])
    with torch.no_grad():
        rows = lm(input_ids=ids).logits[0].log_softmax(1)
    first = len(before) + len(said)
    return sum(float(rows[first + t - 1, token]) for t, token in enumerate(part))


@pytest.fixture(scope="module")
def cited() -> wf.Citations:
    result = wf.cite(model("llama"), QUESTION, DOCUMENTS, processor=plain_tokenizer(), answer=ANSWER, top=2)
    assert isinstance(result, wf.Citations)
    return result


def prompt_without(piece: str = "") -> str:
    documents = (
        "Document 1 (cats): The cat sat on the mat . He said yes .\n\nDocument 2 (dogs): The big red dog ran home ."
    )
    lead = "Answer the question with the help of these documents."
    return f"{lead}\n\n{documents}\n\nQuestion: {QUESTION}\nAnswer:".replace(piece, "")


def test_drops_are_what_leaving_a_source_out_does(cited: wf.Citations) -> None:
    lm = model("llama")
    for row, (start, end) in enumerate(cited.spans):
        whole = log_probability(lm, prompt_without(), ANSWER, start, end)
        assert cited.log_probabilities[row] == pytest.approx(whole, rel=1e-4)
        tested = np.flatnonzero(~np.isnan(cited.drops[row]))
        assert len(tested) == 2 and set(tested) == set(np.argsort(-cited.scores[row])[:2])
        for index in tested:
            without = log_probability(lm, prompt_without(cited.sources[index].text), ANSWER, start, end)
            assert cited.drops[row, index] == pytest.approx(whole - without, abs=2e-4)
        dogs = log_probability(lm, prompt_without("Document 2 (dogs): The big red dog ran home ."), ANSWER, start, end)
        assert cited.document_drops[row, 1] == pytest.approx(whole - dogs, abs=2e-4)


def test_sentences_documents_and_table(cited: wf.Citations) -> None:
    assert [s.text for s in cited.sentences] == ["The dog ran home .", "It was red ."]
    assert [s.text for s in cited.sources] == ["The cat sat on the mat .", "He said yes .", DOCUMENTS["dogs"]]
    assert [d.name for d in cited.documents] == ["cats", "dogs"]
    np.testing.assert_allclose(cited.document_scores[:, 0], cited.scores[:, :2].sum(1))
    for sentence in cited.sentences:
        assert [c.drop for c in sentence.citations] == sorted((c.drop for c in sentence.citations), reverse=True)
        assert sentence.supported or any(repr(sentence.text) in warning for warning in cited.warnings)
    assert len(cited.table) == 6
    assert set(cited.to_frame().columns) >= {"answer", "document", "sentence", "score", "drop"}


def test_pictures_and_files(cited: wf.Citations, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cited.show()
    assert "The dog ran home ." in capsys.readouterr().out
    assert "Document" not in cited.to_html() and "dogs" in cited.to_html()
    assert cited.save(tmp_path / "c.png").stat().st_size > 1000
    again = wf.load(cited.save(tmp_path / "c.json"))
    np.testing.assert_array_equal(again.drops, cited.drops)
    assert again.sentences == cited.sentences or np.isnan(cited.drops).any()


def test_the_answer_is_written_where_none_is_given() -> None:
    how: dict[str, Any] = {"processor": tokenizer(), "method": "generic_attention", "top": 1}
    cited = wf.cite(model("qwen3"), QUESTION, list(DOCUMENTS.values()), generate=6, **how)
    assert cited.answer and cited.names == ("document 1", "document 2") and cited.method == "generic_attention"


def test_through_the_chat_template() -> None:
    how: dict[str, Any] = {"processor": tokenizer(), "method": "generic_attention", "top": 1}
    cited = wf.cite(model("llama"), QUESTION, DOCUMENTS, answer=ANSWER, **how)
    assert (cited.scores > 0).all()


@pytest.mark.parametrize(
    "documents, how, message",
    [
        ([], {}, "documents is empty"),
        (["", "x"], {}, "document 1 is no text"),
        ({"a": 3}, {}, "is no text|documents"),
        (["The cat ."], {"answer": "  "}, "no sentence"),
        (["The cat ."], {"method": "generic"}, "generic_attention"),
        (["The cat ."], {"method": ""}, "unknown method"),
    ],
)
def test_what_cannot_be_cited(documents: Any, how: dict[str, Any], message: str) -> None:
    with pytest.raises(wf.errors.WhyformerError, match=message):
        wf.cite(model("llama"), QUESTION, documents, processor=tokenizer(), **{"answer": ANSWER, **how})


def test_a_model_that_does_not_write(tmp_path: Path) -> None:
    from tests.support import folders

    with pytest.raises(NotOffered, match="next token"):
        wf.cite(folders.bert(), "who", ["the movie ."], processor=folders.tokenizer(tmp_path))


def test_spaces_around_question_and_answer() -> None:
    """A template may strip the one, and sentences are counted from the beginning of the other."""
    tok = copy.deepcopy(tokenizer())
    tok.chat_template = "{% for m in messages %}{{ m['content'] | trim }}\nAnswer:{% endfor %}"
    lm, answer = model("llama"), "\n " + ANSWER
    spaced = wf.cite(lm, QUESTION + " \n", DOCUMENTS, processor=tok, answer=answer, method="raw_attention", top=1)
    assert [answer[a:b] for a, b in spaced.spans] == ["The dog ran home .", "It was red ."]
    for (start, end), value in zip(spaced.spans, spaced.log_probabilities, strict=True):
        assert value == pytest.approx(log_probability(lm, prompt_without(), answer, start, end), rel=1e-4)
