"""A dataset explained into a folder: what stands there is what single calls say, whatever the input came as."""

from __future__ import annotations

import csv
import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import whyformer as wf
from tests.jobs.sentences import numbers, sentences
from tests.support import folders
from whyformer.errors import BadInput, NotAllowed, UnknownName
from whyformer.jobs.dataset import summary_of
from whyformer.jobs.source import batches_of
from whyformer.jobs.worker import Tallies

METHODS = ["generic_attention", "grad_sam"]
TEXTS = sentences(11)


@pytest.fixture(scope="module")
def dataset(explainer: wf.Explainer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return wf.explain_dataset(
        explainer, TEXTS, out=tmp_path_factory.mktemp("texts"), method=METHODS, part_rows=4, top=2
    )


def test_rows_say_what_single_calls_say(explainer: wf.Explainer, dataset: Any) -> None:
    assert (dataset.rows, len(dataset), dataset.errors) == (11, 22, 0)
    for (place, read), (text, method) in zip(dataset.entries(), ((t, m) for t in TEXTS for m in METHODS), strict=True):
        single = explainer.explain(text, method=method)
        np.testing.assert_allclose(read.scores, single.scores, atol=1e-5)
        assert TEXTS[place["place"]] == text == read.units.text
        for same in "method units target prediction options changed readout signed scalar model".split():
            assert getattr(read, same) == getattr(single, same), same
        assert (read.cost.forwards, read.cost.backwards) == (single.cost.forwards, single.cost.backwards)
        assert read.value == pytest.approx(single.value, abs=1e-5)


def test_a_row_is_read_by_its_place(explainer: wf.Explainer, tmp_path: Path) -> None:
    dataset = wf.explain_dataset(explainer, [*TEXTS, ""], out=tmp_path, method=METHODS, part_rows=4)
    row = wf.load(tmp_path).row(7)
    assert list(row) == METHODS and row["grad_sam"].units.text == TEXTS[7]
    with pytest.raises(BadInput, match="row 12 does not exist"):
        dataset.row(12)
    with pytest.raises(BadInput, match="row 11 could not be explained: the text is empty"):
        dataset.row(11)


RECORDS = [{"id": f"r{i}", "text": text} for i, text in enumerate(TEXTS)]


class Columns:
    """As a Dataset of the datasets library: rows by number, and the names of its columns."""

    column_names = ("id", "text")

    def __len__(self) -> int:
        return len(TEXTS)

    def __getitem__(self, index: int) -> dict[str, str]:
        return {"id": f"r{range(len(TEXTS))[index]}", "text": TEXTS[index]}


@pytest.mark.parametrize(
    "form", ["rows.csv", "rows.jsonl", "rows.parquet", "rows.txt", "frame", "generator", "Dataset"]
)
def test_the_form_of_the_input_makes_no_difference(form: str, explainer: wf.Explainer, tmp_path: Path) -> None:
    import pandas as pd

    frame, path = pd.DataFrame(RECORDS), tmp_path / form
    source = {"frame": frame, "generator": (row for row in RECORDS), "Dataset": Columns()}.get(form, path)
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    elif path.suffix:
        lines = {".csv": frame.to_csv(index=False), ".jsonl": frame.to_json(orient="records", lines=True)}
        path.write_text(lines.get(path.suffix, "\n\n".join(TEXTS)), encoding="utf-8")
    asked: dict[str, Any] = {"method": "grad_sam", "part_rows": 5, "top": 0}
    key = None if path.suffix == ".txt" else "id"
    dataset = wf.explain_dataset(explainer, source, out=tmp_path / "out", key=key, **asked)
    wf.explain_dataset(explainer, TEXTS, out=tmp_path / "list", **asked)
    assert numbers(tmp_path / "out") == numbers(tmp_path / "list")
    if key:
        assert [place["name"] for place, _ in dataset.entries()] == [row["id"] for row in RECORDS]


def test_pairs_of_columns(explainer: wf.Explainer, tmp_path: Path) -> None:
    rows = [{"first": "good movie", "second": "bad film"}, {"first": "so", "second": "boring book"}]
    dataset = wf.explain_dataset(explainer, rows, out=tmp_path, column=["first", "second"], method="grad_sam", top=0)
    for explanation, row in zip(dataset, rows, strict=True):
        single = explainer.explain((row["first"], row["second"]), method="grad_sam")
        np.testing.assert_allclose(explanation.scores, single.scores, atol=1e-5)
        assert explanation.units == single.units


def test_a_column_says_what_is_explained_of_each_row(explainer: wf.Explainer, tmp_path: Path) -> None:
    """By name or number; an empty cell is the prediction, and a class that nobody knows an error of its row."""
    asked: list[Any] = ["negative", "positive", "", "1", "sideways", "0"]
    path = tmp_path / "rows.csv"
    with path.open("w", newline="", encoding="utf-8") as stream:
        csv.writer(stream).writerows([("text", "gold"), *zip(TEXTS, asked, strict=False)])
    how: dict[str, Any] = {"method": "grad_sam", "column": "text", "top": 0}
    dataset = wf.explain_dataset(explainer, path, out=tmp_path / "out", target_column="gold", **how)
    for place, one in dataset.entries():
        text, word = TEXTS[place["place"]], asked[place["place"]]
        single = explainer.explain(text, method="grad_sam", target=int(word) if word.isdecimal() else word or None)
        assert one.target == single.target
        np.testing.assert_allclose(one.scores, single.scores, atol=1e-5)
    (failure,) = dataset.failures()
    assert failure["place"] == 4 and "sideways" in failure["reason"] and dataset.rows == 6
    rows = [{"text": text, "gold": 1} for text in TEXTS[:6]]  # other targets are other rows
    for source, other, words in (
        (rows, {"target_column": "gold"}, "are different"),
        (path, {}, 'target_column was "gold" and is null'),
        (path, {"target": 0, "target_column": "gold"}, "give one of the two"),
    ):
        with pytest.raises(BadInput, match=words):
            wf.explain_dataset(explainer, source, out=tmp_path / "out", **how, **other)


def test_images_of_a_folder_and_one_that_is_none(tmp_path: Path) -> None:
    pictures = tmp_path / "pictures"
    (pictures / "deep").mkdir(parents=True)
    shades = np.arange(40 * 40 * 3, dtype=np.uint8).reshape(40, 40, 3)
    for name in ("b.png", "a.png", "deep/c.png"):
        Image.fromarray(shades + len(name)).save(pictures / name)
    (pictures / "broken.png").write_bytes(b"no picture")
    x = wf.Explainer(folders.vit(), folders.image_processor())
    dataset = wf.explain_dataset(x, pictures, out=tmp_path / "out", method=METHODS)
    assert [place["name"] for place, e in dataset.entries() if e.method == "grad_sam"] == [
        "a.png", "b.png", "deep/c.png",
    ]  # fmt: skip
    (failure,) = dataset.failures()
    assert failure["name"] == "broken.png" and "cannot be read as an image" in failure["reason"]
    single = x.explain(pictures / "a.png", method="grad_sam")
    np.testing.assert_allclose(dataset.row(0)["grad_sam"].heatmap(), single.heatmap(), atol=1e-5)
    assert dataset.summary.unit == "region"
    assert {i.unit for i in dataset.summary.importance} >= {"top left", "centre", "bottom right"}
    whole = sum(i.mean for i in dataset.summary.importance if (i.method, i.target) == ("grad_sam", single.target.label))
    each = [e.heatmap().sum() for e in dataset if e.method == "grad_sam" and e.target.label == single.target.label]
    assert whole == pytest.approx(np.mean(each), rel=1e-5)


def test_rows_of_a_table(tmp_path: Path) -> None:
    from whyformer.demo.census import rows_file

    model, table = wf.demo.load_adult()
    source = tmp_path / "rows.csv"
    lines = rows_file().read_text(encoding="utf-8").splitlines()[:6]
    source.write_text("\n".join(lines) + "\n")
    dataset = wf.explain_dataset(model, source, out=tmp_path / "out", processor=table, method="grad_sam")
    first = dict(zip(lines[0].split(","), lines[1].split(","), strict=True))
    cells = {k: table.parsed(k, v) for k, v in first.items() if k in table.columns}
    single = wf.explain(model, cells, processor=table, method="grad_sam")
    np.testing.assert_allclose(dataset.row(0)["grad_sam"].scores, single.scores, atol=1e-5)
    assert dataset.rows == 5 and dataset.summary.unit == "column"
    assert {i.unit for i in dataset.summary.importance} <= set(table.columns)


# Bad rows


def test_bad_rows_are_told_apart_and_the_job_goes_on(explainer: wf.Explainer, tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    long = " ".join(["good"] * 40)
    lines = [json.dumps({"text": t}) for t in (TEXTS[3], "  ", TEXTS[5], long)]
    path.write_text(
        "\n".join([*lines, "{no json", json.dumps({"words": "x"}), json.dumps({"text": None}), "[" * 10**5])
    )
    dataset = wf.explain_dataset(explainer, path, out=tmp_path / "out", method=METHODS, column="text")
    assert {e.units.text for e in dataset} == {TEXTS[3], TEXTS[5]} and len(dataset) == 4
    reasons = {f["place"]: (f["kind"], f["reason"]) for f in dataset.failures()}
    assert reasons.keys() == {1, 3, 4, 5, 6, 7} and dataset.errors == 6
    assert "the text is empty" in reasons[1][1]
    assert reasons[3] == ("TooLong", "the text has 42 tokens, and the model takes 16.")
    assert "not valid JSON" in reasons[4][1] and "no 'text'" in reasons[5][1] and "expected a string" in reasons[6][1]
    assert "nested more than 100 deep" in reasons[7][1]
    assert dataset.summary.error_kinds == {"BadInput": 5, "TooLong": 1}
    alone = explainer.explain(TEXTS[5], method="grad_sam")
    np.testing.assert_allclose(dataset.row(2)["grad_sam"].scores, alone.scores, atol=1e-5)


def test_long_texts_are_cut_where_that_is_asked_for(explainer: wf.Explainer, tmp_path: Path) -> None:
    dataset = wf.explain_dataset(
        explainer, [" ".join(["good"] * 40)], out=tmp_path, method="grad_sam", too_long="cut", top=0
    )
    (explanation,) = dataset
    assert len(explanation.scores) == 16 and "the end was cut off" in explanation.warnings[0]


class Refusing(wf.Explainer):
    """Whose model fails on one text, as soon as it is in a batch."""

    def explain(self, inputs: Any, **how: Any) -> Any:
        if "hate hate" in inputs.raw:
            raise wf.errors.ModelFailed("the model stumbles")
        return super().explain(inputs, **how)


def test_a_row_that_fails_in_the_model_fails_alone(explainer: wf.Explainer, tmp_path: Path) -> None:
    x = Refusing(explainer.model, explainer.processor)
    dataset = wf.explain_dataset(x, [*TEXTS, "hate hate"], out=tmp_path, method="grad_sam", top=0)
    assert (len(dataset), [f["place"] for f in dataset.failures()]) == (11, [11])


def test_what_is_wrong_for_all_rows_is_no_row_error(explainer: wf.Explainer, tmp_path: Path) -> None:
    for x, how, error, words in (
        (explainer, {"method": "vit_cx"}, BadInput, r"none of the first 11 rows could be explained.*vit_cx"),
        (explainer.model, {}, wf.errors.MissingProcessor, "processor"),
        (explainer, {"target": "postive"}, UnknownName, "positive"),
    ):
        with pytest.raises(error, match=words):
            wf.explain_dataset(x, TEXTS, out=tmp_path / error.__name__, **how)


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"method": "gradsam"}, UnknownName, "grad_sam"),
        ({"method": "grad_sam", "reduc": "key"}, UnknownName, "reduc"),
        ({"method": "grad_sam", "reduce": "all"}, NotAllowed, "reduce"),
        ({"units": 3}, NotAllowed, "units"),
        ({"engine": "spark"}, NotAllowed, "engine"),
        ({"target": ["negative"] * 11}, BadInput, "one class for all rows"),
        ({"keep_layers": True}, BadInput, "keep_layers"),
        ({"methods": ["grad_sam"]}, UnknownName, "method="),
    ],
)
def test_wrong_calls_are_refused_before_a_folder_is_made(
    how: dict[str, Any], error: type[Exception], words: str, explainer: wf.Explainer, tmp_path: Path
) -> None:
    with pytest.raises(error, match=words):
        wf.explain_dataset(explainer, TEXTS, out=tmp_path / "out", **how)
    assert not (tmp_path / "out").exists()


def test_inputs_that_cannot_be_read(explainer: wf.Explainer, tmp_path: Path) -> None:
    (tmp_path / "empty.csv").write_text("text\n")
    (tmp_path / "two.csv").write_text("a,b\n1,2\n")
    (tmp_path / "semicolons.csv").write_text("id;text\n1;i like it\n")
    (tmp_path / "no.parquet").write_text("nothing")
    (tmp_path / "folder").mkdir()
    for source, words in (
        (tmp_path / "none.csv", "no file at"),
        (tmp_path / "empty.csv", "no rows"),
        (tmp_path / "two.csv", "column of the input is not clear"),
        (tmp_path / "semicolons.csv", "its separator seems to be ';'"),
        (tmp_path / "no.parquet", "cannot be read as Parquet"),
        (tmp_path / "folder", "neither images"),
        ([], "empty"),
        (iter(()), "empty"),
        ({"text": "x"}, "source is a dict"),
        ([object()] * 3, "a row is a object"),
    ):
        with pytest.raises(BadInput, match=words):
            wf.explain_dataset(explainer, source, out=tmp_path / "out")
    with pytest.raises(BadInput, match="unknown column 'c'"):
        wf.explain_dataset(explainer, tmp_path / "two.csv", out=tmp_path / "out", column="c")


# Reading


def test_other_libraries_read_the_folder(dataset: Any, tmp_path: Path) -> None:
    import datasets
    import duckdb
    import pandas as pd

    parts = f"'{dataset.folder}/explanations/*.parquet'"
    frame = pd.read_parquet(dataset.folder / "explanations")
    assert frame["row_id"].nunique() == 11
    assert dataset.to_frame()["scores"].map(len).tolist() == frame["scores"].map(len).tolist()
    assert list(dataset.to_frame(["place", "value"]).columns) == ["place", "value"]
    with pytest.raises(BadInput, match="unknown column 'score'"):
        dataset.to_frame(["score"])
    counted = duckdb.sql(f"select method, count(*), max(len(scores)) from {parts} group by method order by 1")
    assert counted.fetchall() == [(name, 11, 11) for name in METHODS]
    label = duckdb.sql(f"select distinct target.label from {parts}").fetchall()
    assert {name for (name,) in label} == {e.target.label for e in dataset}
    read = datasets.load_dataset(
        "parquet", data_files=parts.strip("'"), split="train", cache_dir=str(tmp_path), keep_in_memory=True
    )
    assert [(row["method"], len(row["scores"])) for row in read] == [(e.method, len(e.scores)) for e in dataset]


def plain(kind: Any) -> bool:
    """Whether every library reads it: pandas, datasets, DuckDB, Polars and Spark differ in maps and dictionaries."""
    import pyarrow as pa

    if pa.types.is_list(kind):
        return plain(kind.value_type)
    if pa.types.is_struct(kind):
        return all(plain(kind.field(i).type) for i in range(kind.num_fields))
    return kind in (pa.string(), pa.bool_(), pa.int32(), pa.int64(), pa.float32(), pa.float64())


def test_a_damaged_part_is_named(explainer: wf.Explainer, tmp_path: Path) -> None:
    """One of many kinds of damage: tests/hostile/test_damaged_jobs.py."""
    dataset = wf.explain_dataset(explainer, TEXTS[:2], out=tmp_path, method="grad_sam", top=0)
    path = next((tmp_path / "explanations").iterdir())
    path.write_bytes(b"junk")
    for read in (list, wf.jobs.ExplainedDataset.to_frame, wf.jobs.ExplainedDataset.summarize):
        with pytest.raises(BadInput, match=rf"{path.name}. cannot be read .*run the same job again"):
            read(dataset)


def test_columns_are_lists_structs_and_plain_values(explainer: wf.Explainer, dataset: Any, tmp_path: Path) -> None:
    assert all(plain(kind) for kind in dataset.table(0).schema.types)
    how: dict[str, Any] = {"method": "shap", "top": 0, "evaluations": 20}
    (read,) = wf.explain_dataset(explainer, TEXTS[:1], out=tmp_path, **how)
    single = explainer.explain(TEXTS[0], method="shap", evaluations=20)
    assert read.checks == pytest.approx(single.checks, abs=1e-5) and read.checks


def test_batches_hold_rows_of_like_length() -> None:
    lengths = [9, 2, 5, 2, 30, 5, 2]
    batches = batches_of(lengths, tokens=10, most=3)
    assert sorted(i for batch in batches for i in batch) == list(range(7))
    assert batches == [[1, 3, 6], [2, 5], [0], [4]]


def test_words_that_hardly_occur_are_no_general_ones() -> None:
    tallies = Tallies()
    for row in range(1000):
        labels = ("often", f"rare {row % 250}") if row % 2 else ("often", f"some {row % 50}")
        units = wf.Units(labels, (False, False), ("text", "text"))
        tallies.add("grad_sam", "positive", units, np.array([1.0, 2.0]))
    listed, left_out = tallies.importances(1000)
    words = {unit: count for _, _, unit, count, _, _ in listed}
    assert words.pop("often") == 1000 and left_out == 125
    assert {word.split()[0] for word in words} == {"some"} and set(words.values()) == {20}


def test_the_summary_knows_what_matters(dataset: Any) -> None:
    summary, folder = dataset.summary, dataset.folder
    words: dict[tuple[str, str, str], list[float]] = {}
    for e in dataset:
        for word, score in e.words():
            words.setdefault((e.method, e.target.label, word), []).append(score)
    listed = {(i.method, i.target, i.unit): i for i in summary.importance}
    assert listed.keys() == words.keys()
    for key, scores in words.items():
        assert (listed[key].rows, listed[key].mean) == (len(scores), pytest.approx(np.mean(scores), rel=1e-5))
        assert listed[key].mean_size == pytest.approx(np.mean(np.abs(scores)), rel=1e-5)
    assert len(summary.disagreements) == len(summary.outliers) == 2
    assert summary.disagreements[0].number <= summary.disagreements[1].number <= summary.agreement
    assert [e.method for e in summary.disagreements[0].explanations] == METHODS
    page = (folder / "summary.html").read_text(encoding="utf-8")
    assert "Most important features of this dataset" in page and "rows where methods disagree most" in page
    for case in (*summary.disagreements, *summary.outliers):
        assert f"{case.place} · {TEXTS[case.place][:23]}" in page
    again = wf.load(folder / "summary.json")
    assert again.ranked("grad_sam") == summary.ranked("grad_sam") and len(again.to_frame()) == len(summary.importance)
    assert wf.load(folder).to_html() == page


def test_the_summary_of_many_rows_keeps_few_bytes_of_each(dataset: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts are read again and again, as if there were so many: what grows is the memory of a row."""
    (part, *_), tables = dataset.parts, {}
    read = dataset.table
    monkeypatch.setattr(dataset, "table", lambda *of: tables[of] if of in tables else tables.setdefault(of, read(*of)))

    def peak(parts: int) -> int:
        monkeypatch.setattr(dataset, "parts", (part,) * parts)
        tracemalloc.start()
        try:
            summary = summary_of(dataset, 2)
            assert len(summary.outliers) == len(summary.disagreements) == 2
            return tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()

    peak(1)
    few, many = 20, 220
    grown = (peak(many) - peak(few)) / (part.explanations * (many - few))
    assert grown < 100, "bytes per explanation: 16, and medians are taken of copies"
