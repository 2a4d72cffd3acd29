"""whyformer explain … --report: the explanation as ever, and a report beside it."""

from __future__ import annotations

from pathlib import Path

import whyformer as wf
from tests.cli.test_cli import run
from whyformer.demo import load_sentiment

TEXTS = ("This is so boring", "I like it")


def test_named_methods_are_compared(tmp_path: Path) -> None:
    out = tmp_path / "report.json"
    done = run("explain", "text", *TEXTS, "-m", "grad_sam", "-m", "raw_attention", "-t", "negative", "--report", out)
    assert "grad_sam" in done.stdout and f"wrote {out}" in done.stderr
    report = wf.load(out)
    model, tokenizer = load_sentiment()
    again = wf.compare(
        model, list(TEXTS), processor=tokenizer, methods=["grad_sam", "raw_attention"], target="negative"
    )
    assert repr([row.scores for row in report.comparison.rows]) == repr([row.scores for row in again.rows])
    assert {e.target.label for each in report.explanations for e in each} == {"negative"}
    assert report.checkup is not None and report.checkup.inputs == 2


def test_a_single_method_with_options_stands_among_the_usual_ones(tmp_path: Path) -> None:
    from whyformer.cli import _explaining

    asked = {}

    class Explainer:
        def source(self, raw: list[str]) -> object:
            return type("Source", (), {"modality": type("Text", (), {"kind": "text"})})

        def report(self, raw: list[str], **how: object) -> object:
            asked.update(how)
            return type("Report", (), {"save": lambda self, path: path})()

    how = {"target": None, "scalar": "logit", "batch_size": None, "seed": 3, "steps": 4, "memory": "auto"}
    _explaining.deliver_report(Explainer(), ["a"], tmp_path / "x.html", ["integrated_gradients"], ["steps=4"], how)
    assert asked["methods"][0] == {"method": "integrated_gradients", "steps": 4} and asked["seed"] == 3
    assert "integrated_gradients" not in asked["methods"][1:] and len(asked["methods"]) == 5
    several = ["integrated_gradients", "grad_sam"]
    _explaining.deliver_report(Explainer(), ["a"], tmp_path / "x.html", several, ["steps=4"], how)
    assert asked["methods"] == [{"method": "integrated_gradients", "steps": 4}, "grad_sam"]
