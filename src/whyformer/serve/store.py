"""Results and uploads in one SQLite file: list, search and open them."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import sqlite3
import threading
import time
import weakref
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from whyformer.errors import BadInput, NotOffered
from whyformer.files import TIMES, WORD_BYTES, require_room, writable_file
from whyformer.results.codec import Keyed, filled

APPLICATION = 0x77666D72  # stands in the file's header, so that no other database is written into
VERSION = 1
MOST_UPLOADS = MOST_RESULTS = 512 * 2**20  # bytes
ROOM = 2**20  # bytes of the journal, written once: on a full disk, deleting needs no more
SCHEMA = """
CREATE TABLE results (
    id TEXT PRIMARY KEY, made REAL NOT NULL, model TEXT NOT NULL, kind TEXT NOT NULL, method TEXT NOT NULL,
    title TEXT NOT NULL, said TEXT NOT NULL, parent TEXT, picture TEXT, body BLOB NOT NULL
);
CREATE INDEX by_time ON results (made);
CREATE INDEX by_parent ON results (parent, kind);
CREATE TABLE pictures (id TEXT PRIMARY KEY, made REAL NOT NULL, data BLOB NOT NULL);
"""
PINS = "CREATE TABLE IF NOT EXISTS pins (id TEXT PRIMARY KEY)"  # results that are not deleted to make room
# A view, trigger or computed column of somebody else's file would run here.
TABLES = {*SCHEMA.strip().rstrip(";").split(";\n"), PINS.replace("IF NOT EXISTS ", "")}


@dataclass(frozen=True)
class Entry:
    """One answer: the question, and what came out as plain data (``Result.to_dict``), one per method."""

    model: str
    kind: str  # "explanation", "comparison", "trust", "heads"
    method: str
    title: str  # the input in one line
    said: str  # the prediction
    question: dict[str, Any]
    results: list[dict[str, Any]]
    failures: dict[str, str] = field(default_factory=dict)  # method -> why it could not
    beside: Annotated[dict[str, Any], Keyed({"count": int, "difference": Any}.copy)] = field(default_factory=dict)
    parent: str | None = None  # of trust and heads: the result that they are about
    picture: str | None = None  # or sound: what was uploaded
    id: str = field(default_factory=lambda: secrets.token_urlsafe(9))
    made: float = field(default_factory=time.time)

    def listed(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in LISTED} | {"link": f"/r/{self.id}"}


LISTED = ("id", "made", "model", "kind", "method", "title", "said")
COLUMNS = (*LISTED, "parent", "picture")
BODY = ("question", "results", "failures", "beside")


class Store:
    """One SQLite file; ``None`` keeps everything in memory only."""

    def __init__(self, path: str | Path | None) -> None:
        self.path = None if path is None else writable_file(path, name="--store")
        if self.path is not None and self.path.is_symlink():
            raise BadInput(f"--store: {str(path)!r} is a link, which is not written through: name the file itself.")
        if self.path is not None and not self.path.exists():
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600))  # what people type is theirs
        self._lock = threading.Lock()
        where = ":memory:" if self.path is None else str(self.path)
        self._connection = sqlite3.connect(where, timeout=10, check_same_thread=False)
        weakref.finalize(self, self._connection.close)  # a store that nobody closed
        try:
            self._open()
        except (sqlite3.DatabaseError, BadInput) as error:
            self._connection.close()
            if isinstance(error, BadInput):
                raise
            raise BadInput(f"--store: {where!r} cannot be used ({error}): name another file.") from error

    def _open(self) -> None:
        read = self._connection.execute
        strange = {row[0] for row in read("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL")} - TABLES
        owner, version = read("PRAGMA application_id").fetchone()[0], read("PRAGMA user_version").fetchone()[0]
        tables = read("SELECT count(*) FROM sqlite_master").fetchone()[0]
        if not owner and not tables:
            self._connection.executescript(
                f"BEGIN;{SCHEMA}PRAGMA application_id={APPLICATION};PRAGMA user_version={VERSION};COMMIT;"
            )
        elif owner != APPLICATION or version != VERSION or strange:
            raise BadInput(
                f"--store: {str(self.path)!r} is not a store of this version of whyformer: name another file."
            )
        read("PRAGMA journal_mode = PERSIST")
        read(PINS)
        with suppress(sqlite3.OperationalError), self._connection:  # a full disk, where it was written before
            # What is overwritten is copied into the journal first, and makes it long.
            read("INSERT OR REPLACE INTO pictures VALUES ('room', 0, zeroblob(?))", [ROOM])
            self._connection.commit()
            read("UPDATE pictures SET data = randomblob(?) WHERE id = 'room'", [ROOM])
            self._connection.commit()
            read("DELETE FROM pictures WHERE id = 'room'")

    @contextmanager
    def _using(self) -> Iterator[sqlite3.Connection]:
        with self._lock:
            try:
                with self._connection:
                    yield self._connection
            except sqlite3.Error as error:
                raise NotOffered(f"the store cannot be used at the moment ({error}).") from error

    def add(self, entry: Entry) -> str:
        body = {name: getattr(entry, name) for name in BODY}
        packed = zlib.compress(json.dumps(body, ensure_ascii=True).encode(), 6)
        values = [getattr(entry, name) for name in COLUMNS]
        with self._using() as connection:
            there = connection.execute("SELECT 1 FROM results WHERE id = ?", [entry.parent]).fetchone()
            if entry.parent is not None and there is None:
                raise NotOffered("the result that this belongs to was deleted in the meantime.")
            marks = ", ".join("?" * (len(COLUMNS) + 1))
            connection.execute(f"INSERT INTO results ({', '.join(COLUMNS)}, body) VALUES ({marks})", [*values, packed])
            total = connection.execute("SELECT total(length(body)) FROM results").fetchone()[0]
            oldest = (
                "SELECT id FROM results WHERE parent IS NULL AND id NOT IN (SELECT id FROM pins) AND id NOT IN (?, ?) "
                "ORDER BY made"
            )
            for (old,) in (
                connection.execute(oldest, [entry.id, entry.parent or ""]).fetchall() if total > MOST_RESULTS else ()
            ):
                total -= self._delete(connection, old)
                if total <= MOST_RESULTS:
                    break
            if total > MOST_RESULTS:
                connection.rollback()
                raise NotOffered("the store has no room for more results: delete or unpin some.")
        return entry.id

    def pin(self, identity: str, pinned: bool) -> bool:
        """Keep a result when room is made for others, or no longer; return whether it exists."""
        with self._using() as connection:
            if connection.execute("SELECT 1 FROM results WHERE id = ?", [identity]).fetchone() is None:
                return False
            statement = "INSERT OR IGNORE INTO pins VALUES (?)" if pinned else "DELETE FROM pins WHERE id = ?"
            connection.execute(statement, [identity])
        return True

    def get(self, identity: str) -> Entry | None:
        with self._using() as connection:
            names = ", ".join(COLUMNS)
            row = connection.execute(f"SELECT {names}, body FROM results WHERE id = ?", [identity]).fetchone()
        if row is None:
            return None
        try:
            plain = zlib.decompressobj().decompress(row[-1], max(WORD_BYTES, TIMES * len(row[-1])) + 1)
            require_room((0, len(plain)), len(row[-1]))
            body = json.loads(plain, parse_constant=int)  # which raises for NaN
            entry: Entry = filled(Entry, body | dict(zip(COLUMNS, row[:-1], strict=True)))
            return entry
        except (zlib.error, ValueError, TypeError, RecursionError) as error:  # the file was changed by something else
            raise NotOffered(f"this result cannot be read ({error}): explain it again.") from error

    def about(self, parent: str, kind: str) -> list[str]:
        """Return the entries of a kind that belong to a result, newest first."""
        with self._using() as connection:
            asked = "SELECT id FROM results WHERE parent = ? AND kind = ? ORDER BY made DESC"
            return [str(row[0]) for row in connection.execute(asked, [parent, kind]).fetchall()]

    def listed(self, search: str = "", limit: int = 50, before: float | None = None) -> list[dict[str, Any]]:
        """Return results, the newest first, that contain every word of the search."""
        where = ["parent IS NULL", "made < ?"]
        asked: list[Any] = [1e12 if before is None else before]
        for word in search.split():
            pattern = "%" + word.replace("\\", "\\\\").replace("%", "\\%").replace("_", "\\_") + "%"
            where.append("(title || ' ' || model || ' ' || method || ' ' || said || ' ' || kind) LIKE ? ESCAPE '\\'")
            asked.append(pattern)
        query = f"SELECT {', '.join(LISTED)} FROM results WHERE {' AND '.join(where)} ORDER BY made DESC LIMIT ?"
        with self._using() as connection:
            rows = connection.execute(query, [*asked, limit]).fetchall()
        plain = [row for row in rows if {*map(type, row)} == {str, float}]  # a file may hold bytes in their place
        return [dict(zip(LISTED, row, strict=True)) | {"link": f"/r/{row[0]}"} for row in plain]

    def delete(self, identity: str) -> bool:
        """Delete a result, what is about it, and its upload if no other result uses it."""
        with self._using() as connection:
            return self._delete(connection, identity) > 0

    @staticmethod
    def _delete(connection: sqlite3.Connection, identity: str) -> int:
        """Return the number of bytes."""
        about = "FROM results WHERE id = ?1 OR parent = ?1"
        row = connection.execute("SELECT picture FROM results WHERE id = ?", [identity]).fetchone()
        size = connection.execute(f"SELECT total(length(body)) {about}", [identity]).fetchone()[0]
        connection.execute(f"DELETE {about}", [identity])
        connection.execute("DELETE FROM pins WHERE id = ?", [identity])
        unused = "NOT EXISTS (SELECT 1 FROM results WHERE picture = pictures.id)"
        connection.execute(f"DELETE FROM pictures WHERE id = ? AND {unused}", [row and row[0]])
        return int(size)

    def add_upload(self, data: bytes) -> str:
        """Store an upload under a hash of its content; the oldest unused ones are deleted to make room."""
        identity = hashlib.blake2b(data, digest_size=12).hexdigest()
        with self._using() as connection:
            connection.execute("INSERT OR REPLACE INTO pictures VALUES (?, ?, ?)", [identity, time.time(), data])
            total = connection.execute("SELECT total(length(data)) FROM pictures").fetchone()[0]
            unused = "id NOT IN (SELECT picture FROM results WHERE picture IS NOT NULL) AND id != ?"
            oldest = f"SELECT id, length(data) FROM pictures WHERE {unused} ORDER BY made"
            for other, size in connection.execute(oldest, [identity]).fetchall() if total > MOST_UPLOADS else ():
                connection.execute("DELETE FROM pictures WHERE id = ?", [other])
                total -= size
                if total <= MOST_UPLOADS:
                    break
            if total > MOST_UPLOADS:
                connection.rollback()
                raise NotOffered("the store has no room for more images and sounds: delete results.")
        return identity

    def upload(self, identity: str) -> bytes | None:
        with self._using() as connection:
            row = connection.execute("SELECT data FROM pictures WHERE id = ?", [identity]).fetchone()
        return None if row is None else bytes(row[0])

    def close(self) -> None:
        with self._lock:
            self._connection.close()
