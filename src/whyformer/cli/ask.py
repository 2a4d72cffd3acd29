"""whyformer ask: a question to a language model, its answer, and what the answer came from."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.cli._explaining import Json, Options, Out, Seed, asked
from whyformer.cli._input import units_from
from whyformer.cli._options import LanguageModel, Method, TextUnits, Trusted
from whyformer.errors import BadInput, NotOffered

LENGTH = 32  # tokens of an answer, unless told
DOCUMENTS = (".txt", ".md")


def ask(
    question: Annotated[str, typer.Argument(metavar="QUESTION", help="What to ask; '-' reads it from stdin.")],
    model: LanguageModel,
    trust_remote_code: Trusted = False,
    docs: Annotated[
        Path | None,
        typer.Option("--docs", metavar="FOLDER", help="Answer from the .txt and .md files in here, with citations."),
    ] = None,
    generate: Annotated[
        int | None,
        typer.Option(
            "--generate", "-g", min=1, metavar="N", help="Tokens the answer may have.", show_default=str(LENGTH)
        ),
    ] = None,
    answer: Annotated[
        str | None,
        typer.Option("--answer", metavar="TEXT", help="Explain this answer.", show_default="what the model answers"),
    ] = None,
    system: Annotated[
        str | None, typer.Option("--system", metavar="TEXT", help="What the model is told first.")
    ] = None,
    method: Method = None,
    units: TextUnits = "token",
    option: Options = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Ask a language model, and see what its answer came from.

    The question is put as the tokenizer's chat template says.

    \b
    Examples:
      whyformer ask "Where does Tom live?" --model my-llm/
      whyformer ask "Is it safe?" --model my-llm/ --units sentence
      whyformer ask "Who signed?" --model my-llm/ --docs contracts/ \\
          --out cited.html
    """
    options = asked(out, option, [method] if method else [], seed=seed)
    if generate is not None and answer is not None:
        raise typer.BadParameter(
            "--generate is for what the model writes, and --answer gives it", param_hint="--answer"
        )
    question, units = _question(question), units_from(units)
    documents = None if docs is None else documents_in(docs)
    if documents is not None and (system is not None or units != "token"):
        raise typer.BadParameter(
            "--system and --units are for questions without --docs: documents are cited by the sentence",
            param_hint="--docs",
        )
    from whyformer.cli._explaining import deliver_result
    from whyformer.cli._options import load_language

    lm, tokenizer = load_language(model, trust_remote_code)
    options |= {"method": method, "processor": tokenizer}
    if documents is not None:
        from whyformer.language.citations import cite

        cited = cite(lm, question, documents, answer=answer, generate=generate or LENGTH, **options)
        deliver_result(cited, out, json)
        return
    from whyformer.verbs import explain

    options |= {"units": units} if answer is not None else {"units": units, "generate": generate or LENGTH}
    deliver_result(explain(lm, _prompt(tokenizer, question, system, answer), **options), out, json)


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
