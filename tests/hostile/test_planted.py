"""Folders that somebody else prepared: nothing is written through their links, and nothing in them is believed."""

from __future__ import annotations

import os
import resource
import shutil
import stat
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Any

import pytest

import whyformer as wf
from tests.jobs.sentences import sentences
from tests.support import folders
from tests.views import samples
from whyformer.errors import BadInput, JobStopped
from whyformer.serve.store import Store

TEXTS = sentences(6)
HOW: dict[str, Any] = {"method": "grad_sam", "part_rows": 4}
pytestmark = pytest.mark.skipif(os.name != "posix", reason="permissions and links of POSIX")


@pytest.fixture(scope="module")
def explainer(tmp_path_factory: pytest.TempPathFactory) -> wf.Explainer:
    return wf.Explainer(folders.bert(), folders.tokenizer(tmp_path_factory.mktemp("tokenizer")))


@pytest.fixture(scope="module")
def job(explainer: wf.Explainer, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("job") / "out"
    wf.explain_dataset(explainer, TEXTS, out=out, **HOW)
    return out


LINKS = (
    "manifest.json manifest.json.unfinished commits.jsonl lock summary.json unfinished-summary.json summary.html "
    "explanations errors explanations/part-000000.parquet explanations/part-000001.parquet.unfinished"
).split()


@pytest.mark.parametrize("dangling", [False, True])
@pytest.mark.parametrize("name", LINKS)
def test_a_job_writes_through_no_link(
    name: str, dangling: bool, job: Path, explainer: wf.Explainer, tmp_path: Path
) -> None:
    """In an otherwise empty folder, and in one with a job to resume."""
    target = tmp_path / "target"
    for resumed in (False, True):
        out = tmp_path / f"out {resumed}"
        if resumed:
            shutil.copytree(job, out)
            (out / "commits.jsonl").unlink()
        planted = out / name
        planted.parent.mkdir(parents=True, exist_ok=True)
        if planted.is_dir():
            shutil.rmtree(planted)
        planted.unlink(missing_ok=True)
        if not dangling:
            target.write_text("mine")
        planted.symlink_to(target)
        with pytest.raises(BadInput, match=r"contains (a link|other files)|manifest.json. cannot be read"):
            wf.explain_dataset(explainer, TEXTS, out=out, **HOW)
        assert target.exists() is not dangling and (dangling or target.read_text() == "mine")


@pytest.mark.parametrize("ending", ["json", "npz", "html", "svg", "png"])
def test_a_result_replaces_a_link_and_leaves_its_target(ending: str, tmp_path: Path) -> None:
    target, path = tmp_path / "target", tmp_path / f"x.{ending}"
    target.write_text("mine")
    path.symlink_to(target)
    samples.text().save(path)
    assert target.read_text() == "mine" and not path.is_symlink() and path.stat().st_size > 500
    assert {p.name for p in tmp_path.iterdir()} == {"target", path.name}


@pytest.mark.parametrize("contents", [None, b"", b"mine"], ids=["dangling", "empty", "words"])
@pytest.mark.parametrize("name", ["store.sqlite", "store.sqlite-journal"])
def test_a_store_writes_through_no_link(name: str, contents: bytes | None, tmp_path: Path) -> None:
    target = tmp_path / "target"
    if contents is not None:
        target.write_bytes(contents)
    (tmp_path / name).symlink_to(target)
    with pytest.raises(BadInput, match="is a link") if name == "store.sqlite" else suppress(BadInput):
        Store(tmp_path / "store.sqlite").close()
    assert (target.read_bytes() if target.exists() else None) == contents


@pytest.mark.parametrize("name", ["commits.jsonl", "explanations/part-000000.parquet"])
def test_a_job_writes_into_no_file_that_has_another_name(
    name: str, job: Path, explainer: wf.Explainer, tmp_path: Path
) -> None:
    target, out = tmp_path / "target", tmp_path / "out"
    shutil.copytree(job, out)
    (out / "commits.jsonl").unlink()
    (out / name).unlink(missing_ok=True)
    target.write_text("mine")
    (out / name).hardlink_to(target)
    with pytest.raises(JobStopped, match="has another name") if name == "commits.jsonl" else nullcontext():
        wf.explain_dataset(explainer, TEXTS, out=out, **HOW)
    assert target.read_text() == "mine"


def test_jobs_and_caches_are_for_their_owner_alone(job: Path, explainer: wf.Explainer, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    wf.compare(explainer, TEXTS[:2], method=["grad_sam"], cache=cache, progress=False)
    for folder in (job, cache):
        entries = [folder, *folder.rglob("*")]
        assert len(entries) > 3
        for path in entries:
            private = 0o700 if path.is_dir() else 0o600
            if not path.name.startswith("summary."):  # a result, with the usual permissions
                assert stat.S_IMODE(path.stat().st_mode) == private, path


def test_a_saved_file_keeps_narrow_permissions(tmp_path: Path) -> None:
    path = samples.text().save(tmp_path / "x.json")
    path.chmod(0o600)
    samples.text().save(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


@pytest.mark.parametrize("mode", [0o770, 0o777, 0o1777])
def test_folders_that_others_may_write_to_are_refused(mode: int, explainer: wf.Explainer, tmp_path: Path) -> None:
    folder = tmp_path / "open"
    folder.mkdir()
    folder.chmod(mode)
    calls = (
        lambda: wf.explain_dataset(explainer, TEXTS, out=folder, **HOW),
        lambda: wf.compare(explainer, TEXTS[:2], method=["grad_sam"], cache=folder, progress=False),
        lambda: wf.check(explainer, TEXTS[0], checks=["sinks"], cache=folder, progress=False),
    )
    for call in calls:
        with pytest.raises(BadInput, match=r"can be changed by other users.*chmod go-w"):
            call()
    assert not list(folder.iterdir())


def test_a_folder_of_another_user_is_refused(
    explainer: wf.Explainer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    real = Path.stat
    owner = 12345

    def of_another(path: Path, **how: Any) -> os.stat_result:
        state = real(path, **how)
        return os.stat_result((*state[:4], owner, *state[5:10])) if path == tmp_path else state

    monkeypatch.setattr(Path, "stat", of_another)
    with pytest.raises(BadInput, match="can be changed by other users"):
        wf.compare(explainer, TEXTS[:2], method=["grad_sam"], cache=tmp_path, progress=False)


@pytest.mark.parametrize("pipes", [False, True])
def test_what_a_cache_cannot_hold_is_an_error_that_names_the_file(
    pipes: bool, explainer: wf.Explainer, tmp_path: Path
) -> None:
    """On a full disk; and where pipes stand in the place of its files."""
    asked: dict[str, Any] = {"method": ["grad_sam"], "cache": tmp_path / "cache", "progress": False}
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    if pipes:
        wf.compare(explainer, TEXTS[:2], **asked)
        for path in sorted((tmp_path / "cache").iterdir()):
            path.unlink()
            os.mkfifo(path)
    else:
        resource.setrlimit(resource.RLIMIT_FSIZE, (150, limits[1]))
    try:
        with pytest.raises(BadInput, match=r"cache/[\w.]+' cannot be written"):
            wf.compare(explainer, TEXTS[:2], **asked)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_entries_of_a_cache_that_changed_places_are_not_read(explainer: wf.Explainer, tmp_path: Path) -> None:
    """Each is signed with its name: the work of one question is never the answer to another."""
    asked: dict[str, Any] = {"method": ["grad_sam", "raw_attention"], "progress": False}
    fresh = wf.compare(explainer, TEXTS[:2], cache=tmp_path / "a", **asked)
    for ending in {path.name.partition(".")[2] for path in (tmp_path / "a").iterdir()}:
        entries = sorted((tmp_path / "a").glob(f"*.{ending}"))
        contents = [path.read_bytes() for path in entries]
        for path, content in zip(entries, contents[1:] + contents[:1], strict=True):
            path.write_bytes(content)
    again = wf.compare(explainer, TEXTS[:2], cache=tmp_path / "a", **asked)
    measured = [name for name in fresh.to_frame() if name not in ("seconds", "peak_bytes")]
    assert again.to_frame()[measured].equals(fresh.to_frame()[measured])
