"""Files that were cut off, changed or made to do harm: an error of ours that says what is wrong, nothing else."""

from __future__ import annotations

import io
import json
import random
import tracemalloc
import warnings
import zipfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.views import samples
from tests.views.results import ALL
from whyformer.errors import BadInput, WhyformerError
from whyformer.files import DEEPEST, members_bytes
from whyformer.results.result import Result

KINDS = sorted(ALL, key=lambda kind: kind.__name__)
ODD: list[Any] = [None, True, 3, -1, 1.5, 10**30, "x", [], {}, [None], ["a"], [[1], [2, 3]], {"a": 1}, [[[[1]]]]]


def loads_or_is_refused(path: Path) -> None:
    """Whatever the file holds: a result, with a warning if it has odd numbers, or an error that says what to do."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "the loaded .* has NaN or infinity")
            assert isinstance(wf.load(path), Result)
    except WhyformerError as error:
        assert str(path) in str(error) and "save" in str(error)


@pytest.mark.parametrize("ending", ["json", "npz"])
@pytest.mark.parametrize("kind", KINDS)
def test_cut_off_anywhere(kind: type[Result], ending: str, tmp_path: Path) -> None:
    path = ALL[kind]().save(tmp_path / f"x.{ending}")
    whole = path.read_bytes()
    draw = random.Random(0)
    for end in {0, 1, 2, len(whole) - 1, *(draw.randrange(len(whole)) for _ in range(30))}:
        path.write_bytes(whole[:end])
        with pytest.raises(BadInput, match="not a saved explanation or other result"):
            wf.load(path)


@pytest.mark.parametrize("ending", ["json", "npz"])
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_flipped(kind: type[Result], ending: str, tmp_path: Path) -> None:
    path = ALL[kind]().save(tmp_path / f"x.{ending}")
    whole = path.read_bytes()
    draw = random.Random(1)
    for _ in range(60):
        changed = bytearray(whole)
        for _ in range(draw.choice((1, 1, 5, 50))):
            changed[draw.randrange(len(whole))] = draw.randrange(256)
        path.write_bytes(changed)
        loads_or_is_refused(path)


def places(data: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field; of lists the ends, or the last if they hold fields in turn."""
    names = data if isinstance(data, dict) else ()
    if isinstance(data, list) and data:
        names = {len(data) - 1} if isinstance(data[-1], dict | list) else {0, len(data) - 1}
    for name in names:
        yield (*at, name)
        yield from places(data[name], (*at, name))


@pytest.mark.parametrize("kind", KINDS)
def test_fields_of_another_type(kind: type[Result], tmp_path: Path) -> None:
    plain = json.loads(json.dumps(ALL[kind]().to_dict()))
    path = tmp_path / "x.json"
    every = list(places(plain))
    # Each place has something odd in it once, and some places have everything.
    turns = [(at, ODD[turn % len(ODD)]) for turn, at in enumerate(every)]
    for at, odd in turns + [(at, odd) for at in random.Random(2).sample(every, 3) for odd in ODD]:
        inside = plain
        for name in at[:-1]:
            inside = inside[name]
        before, inside[at[-1]] = inside[at[-1]], odd
        path.write_text(json.dumps(plain), encoding="utf-8")
        inside[at[-1]] = before
        loads_or_is_refused(path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": "high"}, "scores should be numbers"),
        ({"scores": [[1], [2, 3]]}, "scores should be numbers in rows of one length"),
        ({"scores": [1.0] * 5}, "scores should be of length 12 .*as units is"),
        ({"scores": [True] * 12}, "scores should be numbers"),
        ({"scores": ["1.5"] * 12}, "scores should be numbers"),
        ({"value": "3"}, "value should be a number and is '3'"),
        ({"seed": 1.5}, "seed should be a whole number and is 1.5"),
        ({"seed": 10**40}, "seed should be a number that fits into 64 bits"),
        ({"signed": 1}, "signed should be true or false and is 1"),
        ({"method": None}, "method should be a word and is None"),
        ({"warnings": "careful"}, "warnings should be a list and is 'careful'"),
        ({"warnings": ["careful", 3]}, r"warnings\[1\] should be a word and is 3"),
        ({"target": []}, "target should be an object with names"),
        ({"target": {"label": "x"}}, r"'target\.index' is missing"),
        ({"target": {"index": 1, "mood": 2}}, r"'target\.mood' is unknown"),
        ({"matrix": {"text": [[1.0]]}}, "matrix should be by names such as"),
        ({"format": 2}, "newer whyformer, in format 2.*pip install --upgrade"),
        ({"format": 0}, "another version"),
        ({"what": ["x"]}, "it contains a"),
    ],
)
def test_the_field_is_named(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text(json.dumps(samples.text().to_dict() | changes), encoding="utf-8")
    with pytest.raises(BadInput, match=message) as caught:
        wf.load(path)
    assert caught.value.__cause__ is not None


@pytest.mark.parametrize("size", [[0, 0], [-1, 5], [0, 9], [4, -3]])
@pytest.mark.parametrize("name", ["grid", "image_size", "picture_size"])
def test_a_picture_without_height_or_width_is_refused(name: str, size: list[int], tmp_path: Path) -> None:
    plain = samples.image().to_dict()
    plain["units"][name] = size
    (path := tmp_path / "x.json").write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(BadInput, match=rf"Units\.{name} is .*, which is no height and width"):
        wf.load(path)


@pytest.mark.parametrize("grid", [[1, 1], [100, 1], [10**9, 10**9], [2**62, 2]])
@pytest.mark.parametrize("sample", [samples.image, samples.text, samples.table])
def test_a_grid_of_other_patches_is_an_error_of_ours(sample: Any, grid: list[int], tmp_path: Path) -> None:
    plain = sample().to_dict()
    plain["units"]["grid"] = grid
    (path := tmp_path / "x.json").write_text(json.dumps(plain), encoding="utf-8")
    loaded = wf.load(path)
    for draw in (loaded.heatmap, loaded.show, loaded.to_html, loaded.plot):
        with pytest.raises(BadInput, match=r"units\.grid is .* patches: the explanation was changed"):
            draw()


def test_what_is_left_out_is_named(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    plain = samples.text().to_dict()
    del plain["units"]["labels"]
    path.write_text(json.dumps(plain), encoding="utf-8")
    with pytest.raises(BadInput, match=r"'units\.labels' is missing"):
        wf.load(path)


@pytest.mark.parametrize("ending", ["json", "npz"])
@pytest.mark.parametrize("brackets", ["[]", '{"a":}'])
def test_deep_files(ending: str, brackets: str, tmp_path: Path) -> None:
    opening, closing = brackets[:-1], brackets[-1]
    deep = opening * 200_000 + closing * 200_000
    path = tmp_path / f"x.{ending}"
    if ending == "json":
        path.write_text(deep, encoding="utf-8")
    else:
        np.savez_compressed(path, __header__=np.array(deep))
    with pytest.raises(BadInput, match=f"nested more than {DEEPEST} deep"):
        wf.load(path)


def test_brackets_in_words_are_words(tmp_path: Path) -> None:
    words = ('[{"' * 500, "\\" * 33, '\\"' * 200 + "[" * 300)
    saved = samples.text(warnings=words)
    assert wf.load(saved.save(tmp_path / "x.json")).warnings == words


def npz(path: Path, **arrays: Any) -> Path:
    """A saved explanation with other arrays in it."""
    samples.text().save(path)
    with np.load(path) as file:
        held = {name: file[name] for name in file.files}
    np.savez_compressed(path, **(held | arrays))
    return path


def test_objects_are_refused_and_never_made(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    class Trap:
        def __reduce__(self) -> Any:
            return Path.touch, (ran,)

    for name in ("scores", "__header__"):
        path = npz(tmp_path / "x.npz", **{name: np.array([Trap()], object)})
        with pytest.raises(BadInput, match=f"'{name}.npy' in it contains object, not numbers"):
            wf.load(path)
    assert not ran.exists()


@pytest.mark.parametrize(
    ("array", "message"),
    [
        (np.zeros(5, np.float32), "scores should be of length 12"),
        (np.zeros((12, 2), np.float32), "scores should be an array with 1 axes"),
        (np.array(["a"] * 12), "not numbers"),
        (np.zeros(12, "M8[s]"), "not numbers"),
        (np.zeros(12, complex), "not numbers"),
        (np.zeros(12, [("a", "f4")]), "not numbers"),
        (np.zeros(12, bool), "scores should be numbers"),
    ],
)
def test_arrays_of_another_kind(array: Any, message: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=message):
        wf.load(npz(tmp_path / "x.npz", scores=array))


def test_a_shape_that_contradicts_the_size(tmp_path: Path) -> None:
    path = npz(tmp_path / "x.npz")
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    for shape in ("(99999999999999,)", "(-12,)", "(3, 5)"):
        stream = io.BytesIO()
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": eval(shape)})
        with zipfile.ZipFile(path, "w") as archive:
            for name, data in members.items():
                archive.writestr(name, stream.getvalue() + bytes(48) if name == "scores.npy" else data)
        with pytest.raises(BadInput, match="does not match its shape"):
            wf.load(path)


def test_a_small_file_does_not_take_all_memory(tmp_path: Path) -> None:
    """A few hundred kilobytes of zeros that unfold to hundreds of megabytes, as numbers and as words."""
    count, paths = 75_000_000, []
    for name, kind, shape in (("scores", "<f4", (count,)), ("__header__", f"<U{count}", ())):
        paths.append(path := tmp_path / f"{name}.npz")
        samples.text().save(path)
        with zipfile.ZipFile(path) as archive:
            members = {n: archive.read(n) for n in archive.namelist() if n != f"{name}.npy"}
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(header, {"descr": kind, "fortran_order": False, "shape": shape})
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for n, data in members.items():
                archive.writestr(n, data)
            with archive.open(f"{name}.npy", "w", force_zip64=True) as stream:
                stream.write(header.getvalue())
                for _ in range(count * 4 // 10_000_000):
                    stream.write(bytes(10_000_000))
        assert path.stat().st_size < 500_000
    tracemalloc.start()  # it counts what numpy takes, too
    try:
        for path in paths:
            with pytest.raises(BadInput, match=r"would take 300 MB of memory") as refusal:
                wf.load(path)
            assert "not a saved" in str(refusal.value)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 50e6


def test_names_of_many_members_are_compared_once() -> None:
    """Each was looked for among all of them: 20,000 of a 4 MB file took 15 seconds, 100,000 minutes."""

    class Name(str):
        compared = 0

        def __eq__(self, other: object) -> bool:
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    np.lib.format.write_array(stream := io.BytesIO(), np.zeros(1))
    members: Any = [SimpleNamespace(filename=Name(f"x{i}.npy"), file_size=136) for i in range(200)]
    archive: Any = SimpleNamespace(open=lambda member: io.BytesIO(stream.getvalue()))
    assert members_bytes(archive, members) == (1600, 0) and Name.compared < 1000


def test_what_is_packed_tightly_is_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Zeros that are ours are written so that they are not taken for a trap."""
    monkeypatch.setattr("whyformer.files.ARRAY_BYTES", 1000)
    zeros = np.zeros((400, 400), np.float32)
    path = samples.text(matrix=zeros).save(tmp_path / "x.npz")
    np.testing.assert_array_equal(wf.load(path).matrix, zeros)
    with np.load(path) as file:
        np.savez_compressed(path, **{name: file[name] for name in file.files})
    with pytest.raises(BadInput, match="of memory"):
        wf.load(path)
