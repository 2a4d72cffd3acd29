"""whyformer ask: a question to a language model, its answer, and what the answer came from."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import typer

from whyformer.cli._options import ANSWER_LENGTH, CommandArguments, takes
from whyformer.cli._results import deliver
from whyformer.cli.explain import refuse_both
from whyformer.errors import BadInput, NotOffered

DOCUMENTS = (".txt", ".md")


@takes(
    "question model/language trust_remote_code docs generate/ask answer system method/ask units option seed/explain "
    "out/explain json/explain"
)
def ask(asked: CommandArguments) -> None:
    """Ask a language model, and see what its answer came from.

    The question is put as the tokenizer's chat template says.

    \b
    Examples:
      whyformer ask "Where does Tom live?" --model my-llm/
      whyformer ask "Is it safe?" --model my-llm/ --units sentence
      whyformer ask "Who signed?" --model my-llm/ --docs contracts/ \\
          --out cited.html
    """
    refuse_both(asked.generate, asked.answer)
    question = _question(asked.question)
    documents = None if asked.docs is None else documents_in(asked.docs)
    if documents is not None and (asked.system is not None or asked.units != "token"):
        raise typer.BadParameter(
            "--system and --units are for questions without --docs: documents are cited by the sentence",
            param_hint="--docs",
        )
    lm, tokenizer = asked.load("language")
    options = asked.settings | {"method": asked.method, "processor": tokenizer}
    options["generate"] = asked.generate or ANSWER_LENGTH
    if documents is not None:
        from whyformer.language.citations import cite

        del options["units"]
        deliver(cite(lm, question, documents, answer=asked.answer, **options), asked)
        return
    from whyformer.verbs import explain

    if asked.answer is not None:
        del options["generate"]
    deliver(explain(lm, _prompt(tokenizer, question, asked.system, asked.answer), **options), asked)


def _question(question: str) -> str:
    import sys

    words = sys.stdin.read() if question == "-" else question
    if not words.strip():
        raise typer.BadParameter("the question is empty", param_hint="QUESTION")
    return words.strip()


def _prompt(tokenizer: Any, question: str, system: str | None, answer: str | None) -> Any:
    """A chat, where the tokenizer can write one out; else the question as it stands."""
    if getattr(tokenizer, "chat_template", None):
        roles = (("system", system), ("user", question), ("assistant", answer))
        return [{"role": role, "content": words} for role, words in roles if words is not None]
    if system is not None:
        raise NotOffered(
            "--system is told through a chat template, and this tokenizer has none: leave it out, or write the whole "
            "prompt yourself: whyformer explain prompt."
        )
    typer.echo("The tokenizer has no chat template: the model reads the question as it stands.", err=True)
    return question if answer is None else (question, answer)


def documents_in(folder: Path) -> dict[str, str]:
    """Texts by file name, in the order of names."""
    if not folder.is_dir():
        raise BadInput(f"--docs: there is no folder {str(folder)!r}.")
    texts = {}
    for path in sorted(p for p in folder.rglob("*") if p.suffix.lower() in DOCUMENTS and p.is_file()):
        try:
            text = path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            raise BadInput(f"--docs: {str(path)!r} is no UTF-8 text file.") from error
        if text:
            texts[path.relative_to(folder).as_posix()] = text
    if not texts:
        raise BadInput(f"--docs: {str(folder)!r} holds no {' or '.join(DOCUMENTS)} file with a word in it.")
    return texts
