"""Pages that hold numbers: they are what their commands print, and what must hold by construction does."""

from __future__ import annotations

import ast
import gzip
import json
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from bench import in_context, model_kinds, tabular_data, tabular_study
from bench.needle import noted
from bench.needle_report import report
from bench.ranks import STUDENT, interval, spearman
from docs import gradsam_vs_shap as guide
from tests.models.kinds import KINDS

ROOT = Path(__file__).parents[2]
GUIDE, REPORTS = ROOT / "docs" / "guide", ROOT / "docs" / "reports"


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def test_the_first_example_of_the_readme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = re.search(r"```python\n(.*?)```", text_of(ROOT / "README.md"), flags=re.DOTALL)
    assert found is not None
    *before, last = found.group(1).strip().splitlines()
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec("\n".join(before), names)
    assert (tmp_path / "why.html").is_file()
    call, said = last.split("  # ")
    promised = ast.literal_eval(said.replace(", …", ""))
    printed = eval(call, names)[: len(promised)]
    assert [(label, round(score, 3)) for label, score in printed] == promised


def test_every_metric_is_in_the_table_of_the_guide() -> None:
    assert all(f"| {name} |" in text_of(GUIDE / "trust.md") for name in wf.list_metrics())


def test_grad_sam_and_shap(tmp_path: Path) -> None:
    share, found = guide.shares()
    assert guide.table(share, found) in text_of(REPORTS / "gradsam_vs_shap.md")
    assert all(s[0] == 0 and s[-1] == 0 for s in share["|SHAP|"]), "always there: no share"
    assert all(s[0] > 0.4 and s.argmax() == 0 for s in share["Grad-SAM"])
    guide.draw(share, found, tmp_path / "x.png")
    assert (tmp_path / "x.png").stat().st_size > 10_000
    assert guide.top_layer() == pytest.approx([1.0] * len(guide.SENTENCES), abs=1e-6)


def test_needles(capsys: pytest.CaptureFixture[str]) -> None:
    report(noted(REPORTS / "needle.jsonl"))
    page, printed = text_of(REPORTS / "needle.md"), capsys.readouterr().out
    assert printed.count("\n\n") == 3
    assert all(part in page for part in printed.strip().split("\n\n")[1:]) and printed.splitlines()[0] in page


@pytest.mark.parametrize(
    ("printed", "data", "page", "least"),
    [
        (in_context.tables, GUIDE / "in_context.json", GUIDE / "in_context_tables.md", 15),
        (tabular_study.tables, REPORTS / "tabular_study.json", REPORTS / "tabular_study.md", 150),
    ],
)
def test_the_page_is_what_the_command_prints(printed: Any, data: Path, page: Path, least: int) -> None:
    every = printed(json.loads(text_of(data))).splitlines()
    lines = [line for line in every if line.startswith("|") or "seeds, test" in line]
    assert len(lines) > least and all(line in text_of(page) for line in lines)


# The guide to several streams


def test_pictures_of_streams_are_there_and_small() -> None:
    shown = re.findall(r"\(\.\./images/([^)]+)\)", text_of(GUIDE / "streams.md"))
    assert len(shown) == 6
    assert all((ROOT / "docs" / "images" / name).stat().st_size < 60_000 for name in shown)


@pytest.mark.parametrize("kind", ["boxes", "clip", "detection", "translation", "sound"])
def test_the_script_that_makes_them_runs(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(ROOT / "examples")
    import streams

    streams.main(tmp_path, [kind])
    assert (tmp_path / f"streams_{kind}.png").stat().st_size < 60_000
    del sys.modules["streams"]


# Kinds of models: a subset that runs in a few seconds; ``python -m bench.model_kinds`` compares all kinds.

# One of each: post- and pre-norm, causal, experts, windows, sinks, other layouts of heads, pictures, sound, video,
# tables, several streams, and kinds that have to be refused.
SUBSET = (
    "bert", "deberta_v2", "gpt2_cls", "gemma3", "qwen3_moe", "gpt_oss", "vit", "videomae", "wavlm", "looped_heads",
    "rtdl_ft_transformer", "lxmert", "t5", "mamba", "token_mixing", "longformer", "bert_tokens", "yolos", "patchtst",
)  # fmt: skip
LISTED = {each.split(" | ")[0].removeprefix("| "): each for each in text_of(model_kinds.PAGE).splitlines()}


@pytest.mark.filterwarnings("ignore")  # of the models, not of ours
@pytest.mark.parametrize("name", SUBSET)
def test_value_and_scores_are_those_of_the_formula(name: str) -> None:
    assert model_kinds.line(model_kinds.row(KINDS[name])) == LISTED[name]


def test_the_page_lists_every_kind() -> None:
    rows = [LISTED[name] for name in KINDS]
    whole = "| " + " | ".join(["works"] * len(model_kinds.METHODS)) + " |"
    assert sum(each.endswith(whole) for each in rows) >= 60
    assert not [name for name in KINDS if "differs" in LISTED[name]]


# The study of tables


def test_every_table_has_shap() -> None:
    judged = [r["readings"] for r in json.loads(text_of(REPORTS / "tabular_study.json")) if "readings" in r]
    assert len(judged) >= 39 and all(set(r["SHAP"]) == set(tabular_study.AGAINST) for r in judged)


@pytest.fixture
def small_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    rows = [f"{i},{i % 7},{'ab'[i % 2]},{'xyz'[i % 3]},{3 * (i % 7) + i % 2}" for i in range(80)]
    (tmp_path / "t.csv.gz").write_bytes(gzip.compress("\n".join(["first,second,letter,other,price", *rows]).encode()))
    monkeypatch.setitem(tabular_data.FILES, "california", ("t.csv.gz", "price"))
    monkeypatch.setitem(tabular_data.NUMBERS, "california", ("first", "second"))
    return tmp_path


def test_all_readings_run_with_shap_among_them(small_table: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shap", None)  # its values are whyformer's own
    options = tabular_study.parsed(
        ["--data", small_table, "--explained", 3, "--shuffled", 8, "--evaluations", 16, "--device", "cpu", "--steps", 2]
    )
    result = tabular_study.study("california", "FT-Transformer", 0, options)
    assert set(result["readings"]) == {*tabular_study.READINGS, "SHAP", "random", "integrated gradients"}
    assert set(result["readings"]["SHAP"]) == set(tabular_study.AGAINST)


def test_a_second_run_does_what_is_left(
    small_table: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_table / "results.json"
    done = [
        {"data": "california", "model": "TabTransformer", "seed": seed, **rest}
        for seed, rest in enumerate([{"skipped": "one column"}, {"error": "it broke"}])
    ]
    out.write_text(json.dumps(done))
    command = ["tabular_study", "--data", small_table, "--datasets", "california", "--seeds", 2, "--processes", 1]
    command += ["--models", "TabTransformer", "FT-Transformer", "--out", out, "--device", "cpu"]
    monkeypatch.setattr(sys, "argv", [str(part) for part in command])
    monkeypatch.setattr(tabular_study, "lacking", lambda model: ["a_package"] if model == "FT-Transformer" else [])
    tabular_study.main()
    printed = capsys.readouterr().out
    assert "FT-Transformer is left out: it needs a_package" in printed
    assert "1 jobs are in" in printed and "1 are left" in printed
    assert [(r["seed"], "skipped" in r) for r in json.loads(out.read_text())] == [(0, True), (1, True)]


def test_rank_correlation_and_intervals() -> None:
    from scipy import stats

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(4, 9)), rng.integers(0, 4, size=(4, 9)).astype(float)
    expected = [stats.spearmanr(x, y).statistic for x, y in zip(a, b, strict=True)]
    np.testing.assert_allclose(spearman(a, b), expected, atol=1e-12)
    assert np.isnan(spearman(np.ones((1, 5)), rng.normal(size=(1, 5)))).all()
    values = [0.2, 0.4, 0.5, 0.1]
    low, high = stats.t.interval(0.95, 3, np.mean(values), stats.sem(values))
    mean, half = interval(values)
    assert (mean - half, mean + half) == pytest.approx((low, high), abs=1e-5)
    np.testing.assert_allclose(STUDENT, stats.t.ppf(0.975, np.arange(1, 31)), atol=1e-4)
