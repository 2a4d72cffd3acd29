"""Files and folders that a user names: asked for before long work, and refused with what to do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from whyformer.errors import BadInput, UnknownName


def path_of(value: Any, name: str = "path") -> Path:
    """What can be a path at all: a string or a Path, neither empty nor with characters that no system takes."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if isinstance(text, bytes):
        raise BadInput(f"{name}={value!r} is bytes: give a string, os.fsdecode({value!r}), or a pathlib.Path.")
    if not isinstance(text, str):
        raise BadInput(
            f"{name}={value!r} is no path but of type {type(value).__name__}: give a string or a pathlib.Path."
        )
    if not text.strip():
        raise BadInput(f"{name}={text!r} is empty: give the name of a file or folder.")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise BadInput(f"{name}={text!r} holds a character that no file name can have: choose another.") from None
    if "\0" in text:
        raise BadInput(f"{name}={text!r} holds a zero byte, which no file name can have: choose another.")
    return Path(text)


def is_file(path: Path) -> bool:
    """``Path.is_file`` that says no where the system refuses to answer (a name too long, a folder that is closed)."""
    try:
        return path.is_file()
    except OSError:
        return False


def is_folder(path: Path) -> bool:
    """``Path.is_dir`` in the same way."""
    try:
        return path.is_dir()
    except OSError:
        return False


def readable_file(value: Any, what: str = "file", name: str = "path") -> Path:
    """A file that is there and may be read."""
    path = path_of(value, name)
    if is_folder(path):
        raise BadInput(f"{str(path)!r} is a folder: name a file in it.")
    if not is_file(path):
        raise BadInput(f"no {what} at {str(path)!r}: there is no file of that name.")
    if not os.access(path, os.R_OK):
        raise BadInput(f"{str(path)!r} may not be read by this user: change its permissions, or give a copy.")
    return path


def readable_folder(value: Any, what: str = "folder", name: str = "folder") -> Path:
    """A folder that is there."""
    path = path_of(value, name)
    if is_file(path):
        raise BadInput(f"{str(path)!r} is a file: give the folder that it is in.")
    if not is_folder(path):
        raise BadInput(f"there is no {what} {str(path)!r}.")
    return path


def writable_file(value: Any, endings: tuple[str, ...] = (), name: str = "path") -> Path:
    """A file that can be written: of a known type, in a folder that is there, and no folder itself."""
    path = path_of(value, name)
    if endings and path.suffix not in endings:
        raise UnknownName("file type", path.suffix or str(path), endings)
    if trouble := trouble_writing(path):
        raise BadInput(f"{str(path)!r} cannot be written: {trouble}.")
    return path


def trouble_writing(path: Path) -> str:
    """Why a file cannot be written, and what to do; "" where nothing is in the way."""
    if is_folder(path):
        return "it is a folder. Name a file in it"
    if not is_folder(path.parent):
        return f"there is no folder {str(path.parent)!r}. Make it first"
    if is_file(path) and not os.access(path, os.W_OK):
        return "the file is there and may not be changed. Choose another name"
    if not is_file(path) and not os.access(path.parent, os.W_OK):
        return f"nothing may be written into {str(path.parent)!r}. Choose another folder"
    return ""


def made_folder(value: Any, name: str = "folder") -> Path:
    """A folder to write into, made if it is not there."""
    folder = path_of(value, name)
    if is_file(folder):
        raise BadInput(f"{name}={str(folder)!r} is a file: give the name of a folder.")
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise BadInput(f"nothing may be written into {name}={str(folder)!r}: choose another folder.")
    return folder


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """What the system says while a file is written (a full disk, a name too long), as an error of ours."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"{str(path)!r} cannot be written ({reason}): choose another name or folder.") from error
