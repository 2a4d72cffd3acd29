"""Language models from the command line: questions, prompts, and what cannot be asked."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import whyformer as wf
from tests.cli.test_cli import run, told
from tests.support.language import model, tokenizer

PROMPT = "the capital of france is"


@pytest.fixture(scope="session")
def bare_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Its tokenizer has no chat template."""
    folder = tmp_path_factory.mktemp("gpt2")
    model("gpt2").save_pretrained(folder)
    tok = tokenizer()
    template, tok.chat_template = tok.chat_template, None
    try:
        tok.save_pretrained(folder)
    finally:
        tok.chat_template = template
    return folder


def test_ask_puts_the_question_as_the_template_says(lm_folder: Path, tmp_path: Path) -> None:
    out = tmp_path / "page.html"
    said = run("ask", "where is paris ?", "--model", lm_folder, "--generate", 3, "--out", out)
    expected = wf.explain(
        model("llama"), [{"role": "user", "content": "where is paris ?"}], processor=tokenizer(), generate=3
    )
    assert expected.text.strip() in said.stdout and "where is paris ?" in said.stdout.splitlines()[0]
    assert "template: <|im_start|>user" in said.stdout and "wf-dialogue" in out.read_text(encoding="utf-8")


def test_ask_about_an_answer(lm_folder: Path) -> None:
    shown = told(
        "ask", "where is paris ?", "--model", lm_folder, "--answer", "in france . Yes .", "--system", "he said no .",
        "--units", "sentence", "-m", "attention_rollout",
    )  # fmt: skip
    assert (shown["what"], shown["text"]) == ("generation", "in france . Yes .")
    assert shown["sentences"] == [[0, 3], [3, 5]]
    last = shown["tokens"][-1]
    assert last["method"] == "attention_rollout"
    voices = dict(zip(last["units"]["labels"], last["units"]["role"], strict=True))
    assert (voices["he said no ."], voices["where is paris ?"]) == ("system", "user")


def test_ask_without_a_template_reads_the_question_as_it_stands(bare_folder: Path) -> None:
    result = run("ask", "-", "--model", bare_folder, "-g", 2, "--json", stdin="the cat sat\n")
    assert "no chat template" in result.stderr
    assert json.loads(result.stdout)["tokens"][0]["units"]["labels"] == ["the", "cat", "sat"]
    refused = run("ask", "the cat sat", "--model", bare_folder, "--system", "no", code=1).stderr
    assert "no chat template" not in refused and "this tokenizer has none" in refused


def test_ask_with_documents_cites_them(lm_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    docs, out = tmp_path / "docs", tmp_path / "cited.json"
    (docs / "more").mkdir(parents=True)
    (docs / "b.txt").write_text("the dog ran home .\n", encoding="utf-8")
    (docs / "more" / "a.md").write_text("he sat .", encoding="utf-8")
    (docs / "empty.txt").write_text("\n", encoding="utf-8")
    (docs / "c.bin").write_bytes(b"\xff")
    asked = ("ask", "who ran ?", "--model", lm_folder, "--docs", docs, "--answer", "the dog .", "-m", "grad_sam")
    shown = run(*asked, "--out", out).stdout
    cited = wf.load(out)
    assert isinstance(cited, wf.Citations) and (cited.question, cited.answer) == ("who ran ?", "the dog .")
    assert (cited.names, cited.texts) == (("b.txt", "more/a.md"), ("the dog ran home .", "he sat ."))
    assert cited.method == "grad_sam" and "b.txt" in shown
    lengths = []

    def cite(*_: object, generate: int, **__: object) -> wf.Citations:
        lengths.append(generate)
        return cited

    monkeypatch.setattr("whyformer.language.citations.cite", cite)
    for more in ((), ("--generate", 2)):
        assert told("ask", "who ran ?", "--model", lm_folder, "--docs", docs, *more)["answer"] == "the dog ."
    assert lengths == [32, 2]


# explain prompt


def test_the_next_token_and_a_contrast(lm_folder: Path) -> None:
    shown = run("explain", "prompt", PROMPT, "--model", lm_folder).stdout
    assert shown.startswith(
        PROMPT
    ) and "the first token, where language models often park attention, holds" in " ".join(shown.split())
    rather = run("explain", "prompt", PROMPT, "--model", lm_folder, "--target", "paris", "--versus", "rome").stdout
    assert rather.startswith("Why 'paris' rather than 'rome'?")


def test_an_answer_as_a_whole_by_several_methods(lm_folder: Path, tmp_path: Path) -> None:
    shown = run(
        "explain", "prompt", PROMPT, "--model", lm_folder, "--answer", " paris and the dog", "--span",
        "-m", "generic_attention", "-m", "input_x_gradient", "--out", tmp_path / "x.json",
    ).stdout  # fmt: skip
    assert len(re.findall(r"^answer +paris and the dog \([<\d. ]+ % likely as a whole\)$", shown, re.MULTILINE)) == 2
    for name in ("generic_attention", "input_x_gradient"):
        explanation = wf.load(tmp_path / f"x-{name}.json")
        assert explanation.scalar == "log_probability" and explanation.method == name


def test_choices_and_prompts_from_a_pipe_which_keep_their_lines(lm_folder: Path) -> None:
    shown = told("explain", "prompt", "-", "--model", lm_folder, "--choices", "yes, no", stdin="the cat\nsat on\n")
    assert shown["target"]["label"] in ("yes", "no") and shown["units"]["text"] == "the cat\nsat on"
