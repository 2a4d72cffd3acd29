"""whyformer compare, recommend and check: which method to trust, and whether to trust it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from whyformer.cli._input import inputs_from, number_or_word, texts_from
from whyformer.cli._options import CommandArguments, takes
from whyformer.cli._results import deliver
from whyformer.errors import BadInput, one_of

MODEL = "inputs file model trust_remote_code"
JUDGED = "replace units hold target batch_size seed cache out/compare json"


@takes(f"{MODEL} method/compare metric {JUDGED}")
def compare(asked: CommandArguments) -> None:
    """Compare methods: faithfulness with intervals, cost, agreement.

    Random scores run along as the floor, a greedy search as the ceiling.
    Without texts: the five sentences of the demo, which are few.

    \b
    Examples:
      whyformer compare --file reviews.txt --out compare.html
      whyformer compare -m raw_attention -m attn_lrp "I like the movie"
      whyformer compare --file reviews.txt --replace delete
      whyformer compare --model my-lm/ -f prompts.txt --units sentence --hold -1
      whyformer compare --model my-vit/ *.jpg --cache results/
    """
    from whyformer.evaluate.compare import compare as run
    from whyformer.registry import get_metric

    for name in asked.metric or []:
        get_metric(name)
    model, processor, raw = asked.load_with_inputs("compare")
    chosen: dict[str, Any] = {"methods": asked.method or None, "metrics": asked.metric or None}
    deliver(run(model, raw, processor=processor, **chosen, **asked.settings), asked)


@takes(f"{MODEL} scope method/recommend attention_only budget {JUDGED}")
def recommend(asked: CommandArguments) -> None:
    """Choose how to explain a model, and test the choice.

    Every layer, head and reading of attention, with and without gradients,
    and all other methods: chosen on half of the inputs, tested on the rest.

    \b
    Examples:
      whyformer recommend --file reviews.txt --out choice.html
      whyformer recommend --file reviews.txt --scope label
      whyformer recommend "I like the movie" --scope instance
      whyformer recommend --file reviews.txt --attention-only
      whyformer recommend --file reviews.txt --budget 20
    """
    one_of("--scope", asked.scope, ("dataset", "label", "instance"))
    from whyformer.evaluate.candidate_pool import budget_of
    from whyformer.evaluate.recommend import recommend as run

    if asked.budget is not None:
        budget_of(asked.budget)  # before a model is loaded
    model, processor, raw = asked.load_with_inputs("recommend")
    methods = [] if asked.attention_only and not asked.method else asked.method or None
    deliver(run(model, raw, processor=processor, methods=methods, **asked.settings), asked)


@takes(f"{MODEL} method/check checks train epochs target batch_size seed cache out/check json")
def check(asked: CommandArguments) -> None:
    """Check what an explanation can be trusted with.

    Random weights, other classes, noise, padding; and the debate on attention: shuffled,
    erased, uniform and adversarial attention inside the unmodified model.

    \b
    Examples:
      whyformer check "I like the movie"
      whyformer check "So boring" -c jain_wallace -c serrano_smith
      whyformer check --file reviews.txt -m grad_sam --out check.html
      whyformer check --file reviews.txt --cache results/
      whyformer check cat.jpg --model my-vit/ --out check.png
      whyformer check --model my-bert/ --train reviews.tsv --out trained.html
    """
    if asked.train is None:
        from whyformer.checks.check import check as run

        model, processor, raw = asked.load_with_inputs("check", demo=False)
        found = run(model, raw, processor=processor, checks=asked.checks or None, method=asked.method, **asked.settings)
        deliver(found, asked)
        return
    if any((asked.inputs, asked.file, asked.checks, asked.method, asked.target, asked.cache)):
        raise BadInput("--train trains on the examples of its file: give no texts, --file, --checks or --method.")
    from whyformer.checks.retrained import retrained_attention

    texts, labels = labelled(asked.train)
    model, processor, kind = asked.load_any()
    raw = texts if kind == "text" else inputs_from(texts, None, kind, "check")
    options = {"epochs": asked.epochs, "batch_size": asked.batch_size, "seed": asked.seed}
    deliver(retrained_attention(model, raw, labels, processor=processor, **options), asked)


def labelled(file: Path) -> tuple[list[str], list[str | int]]:
    """Texts and labels of a file with one text<TAB>label in each line; numbers are classes, words their names."""
    texts: list[str] = []
    labels: list[str | int] = []
    for number, line in enumerate(texts_from([], file), 1):
        text, tab, label = line.rpartition("\t")
        if not tab or not text.strip() or not label.strip():
            raise BadInput(f"{file.name}, line {number}: one text, a tab and its label were expected.")
        texts.append(text)
        labels.append(number_or_word(label.strip()))
    return texts, labels
