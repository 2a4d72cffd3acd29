"""The folder of a job: what was asked, what is done, and the files of each part, whole or not there at all.

manifest.json                    what was asked: input, model, methods, options, the sizes of parts and batches
commits.jsonl                    one line per part that is done; a part that is not in it is run again
explanations/part-000000.parquet
errors/part-000000.parquet       only of parts with rows that could not be explained
summary.json, summary.html       when all parts are done
"""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from whyformer.errors import BadInput, JobStopped
from whyformer.files.paths import is_file, made_folder
from whyformer.jobs.source import Part

log = logging.getLogger("whyformer.jobs")
MANIFEST, COMMITS, LOCK = "manifest.json", "commits.jsonl", "lock"
EXPLANATIONS, ERRORS = "explanations", "errors"
FORMAT = 1
UNFINISHED = ".unfinished"


@dataclass(frozen=True)
class Commit:
    """A part that is done: which rows it held, and what became of them."""

    part: int
    digest: str
    rows: int
    explanations: int
    errors: int
    bytes: int = 0  # of the file of explanations
    seconds: float = 0.0


@dataclass(frozen=True)
class Written:
    """What a worker made of a part: its commit, and files as they are to be written."""

    commit: Commit
    data: bytes
    error_data: bytes = b""


class JobFolder:
    """One folder; the only writer is the process that holds its lock."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.commits: dict[int, Commit] = {}

    @contextmanager
    def held(self) -> Iterator[None]:
        """The folder, for this process alone."""
        made_folder(self.folder, "out")
        with self._stopping():
            lock = (self.folder / LOCK).open("a+")
        with lock:
            _lock(lock, self.folder)
            yield

    def begin(self, source: str, asked: Mapping[str, Any]) -> None:
        """Start in a new folder, or resume a job with the same parameters; raise if they differ."""
        path = self.folder / MANIFEST
        if not is_file(path):
            strangers = sorted(p.name for p in self.folder.iterdir() if p.name != LOCK and UNFINISHED not in p.name)
            if strangers:
                raise BadInput(
                    f"out={str(self.folder)!r} holds other things ({strangers[0]}): give a new or an empty folder."
                )
            self.write(path, json.dumps({"format": FORMAT, "source": source, "asked": dict(asked)}, indent=1).encode())
        self._refuse_other(asked, read_manifest(self.folder)["asked"])
        for kind in (EXPLANATIONS, ERRORS):
            (self.folder / kind).mkdir(exist_ok=True)
            for leftover in (self.folder / kind).glob(f"*{UNFINISHED}"):
                leftover.unlink()
        # A file that was taken away, or cut short, is made again.
        self.commits = {commit.part: commit for commit in read_commits(self.folder) if self._is_whole(commit)}

    def _refuse_other(self, asked: Mapping[str, Any], before: Mapping[str, Any]) -> None:
        now = json.loads(json.dumps(dict(asked)))
        other = [name for name in {**before, **now} if before.get(name) != now.get(name)]
        if other:
            told = "; ".join(f"{name} was {_shown(before.get(name))} and is {_shown(now.get(name))}" for name in other)
            raise BadInput(
                f"out={str(self.folder)!r} holds a job that was asked for something else: {told}. Ask for the same to "
                "go on with it, or give another folder."
            )

    def _is_whole(self, commit: Commit) -> bool:
        file = part_file(self.folder, commit.part)
        return is_file(file) and file.stat().st_size == commit.bytes

    def done(self, part: Part) -> bool:
        """Return whether the part is committed; raise if its rows have changed since."""
        commit = self.commits.get(part.number)
        if commit is None:
            return False
        if commit.digest != part.digest:
            first = part.rows[0].place
            raise BadInput(
                f"the input is not what it was when this job began: rows {first} to {first + len(part.rows) - 1} are "
                "others now. Give the input as it was, or another folder."
            )
        return True

    def refuse_fewer(self, parts: int) -> None:
        """Raise if parts beyond the end of the input are committed."""
        if self.commits and max(self.commits) >= parts:
            raise BadInput(
                "the input is not what it was when this job began: it has fewer rows now. Give the input as it was, or "
                "another folder."
            )

    def commit(self, written: Written) -> None:
        """Write the files of a part, move them into place, then append the commit."""
        commit = written.commit
        with self._stopping():
            self.write(part_file(self.folder, commit.part), written.data)
            if written.error_data:
                self.write(part_file(self.folder, commit.part, ERRORS), written.error_data)
            self._append(json.dumps(asdict(commit)))
        self.commits[commit.part] = commit
        log.info("%s: %d rows more, %d of them with errors", self.folder, commit.rows, commit.errors)

    def write(self, path: Path, data: bytes) -> None:
        """Write a file atomically."""
        beside = path.with_name(f"{path.name}{UNFINISHED}")
        try:
            with self._stopping():
                with beside.open("wb") as stream:
                    stream.write(data)
                    stream.flush()
                    os.fsync(stream.fileno())
                beside.replace(path)
        except JobStopped:
            beside.unlink(missing_ok=True)
            raise

    def _append(self, line: str) -> None:
        with (self.folder / COMMITS).open("ab+") as log:
            start = log.seek(0, os.SEEK_END)
            if start:  # a line that was cut short by a crash is no commit: the next one begins on its own
                log.seek(start - 1)
                line = line if log.read(1) == b"\n" else f"\n{line}"
            try:
                log.write(f"{line}\n".encode())
                log.flush()
                os.fsync(log.fileno())
            except OSError:
                log.truncate(start)
                raise

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Raise JobStopped for errors of the system (a full disk); all that is committed stays."""
        try:
            yield
        except OSError as error:
            if isinstance(error, JobStopped):
                raise
            rows = sum(commit.rows for commit in self.commits.values())
            raise JobStopped(
                f"nothing more can be written into {str(self.folder)!r} ({error.strerror or error}). {rows} rows are "
                "done and safe there: make room, and run the same again to go on."
            ) from error


def part_file(folder: Path, part: int, kind: str = EXPLANATIONS) -> Path:
    return folder / kind / f"part-{part:06d}.parquet"


def read_manifest(folder: Path) -> dict[str, Any]:
    """Return the manifest: the parameters of the job."""
    path = folder / MANIFEST
    if not is_file(path):
        raise BadInput(f"{str(folder)!r} holds no explained dataset: there is no {MANIFEST} in it.")
    try:
        manifest = json.loads(path.read_text(encoding="utf-8"))
        if manifest["format"] != FORMAT or not isinstance(manifest["asked"], dict):
            raise ValueError("it is of another version of whyformer")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadInput(f"{str(path)!r} cannot be read ({error}): give a folder that explain_dataset wrote.") from error
    return dict(manifest)


def read_commits(folder: Path) -> Iterator[Commit]:
    """Yield committed parts; lines cut short by a crash are skipped. The last record of a part wins."""
    path = folder / COMMITS
    if not is_file(path):
        return
    for line in path.read_bytes().splitlines():
        try:
            yield Commit(**json.loads(line))
        except (ValueError, TypeError):
            continue


def _lock(stream: IO[str], folder: Path) -> None:
    """Lock a file until this process ends; systems without such locks go without."""
    try:
        import fcntl
    except ImportError:
        return
    try:
        fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise BadInput(f"another job is writing into out={str(folder)!r}: wait for it, or stop it first.") from None


def _shown(value: Any) -> str:
    words = json.dumps(value, ensure_ascii=False)
    return words if len(words) <= 80 else f"{words[:77]}…"
