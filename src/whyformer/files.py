"""Files and folders that a user names, checked before long work; archives and pictures, read safely."""

from __future__ import annotations

import csv
import json
import logging
import math
import os
import re
import stat
import warnings
import zipfile
from base64 import b64decode, b64encode
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from secrets import token_hex
from typing import IO, TYPE_CHECKING, Any

import numpy as np
from numpy.lib import format as npy

from whyformer.errors import BadInput, UnknownName, reading, require

if TYPE_CHECKING:  # it would import torch, and the command line reads files before that
    from whyformer.shapes import Array

IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp", ".tif", ".tiff")

# Files of words and arrays from anywhere: the sizes that they claim are compared with the file before memory is taken.

DEEPEST = 100  # levels of brackets; results have about ten
TOKENS = re.compile(r'\\.|["\[\]{}]', re.DOTALL)
# What a file may unfold to however small it is, and how often its own size. More is a trap: a megabyte can unfold to
# a thousand of them, and words to objects that take twenty times as much again.
ARRAY_BYTES, WORD_BYTES, TIMES = 1 << 28, 1 << 25, 100
NUMBERS, WORDS = "biuf", "U"  # kinds of numpy's types; no objects, which would run code when they are read
ENDING = ".npy"
HEADERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
LONGEST_HEADER = 1 << 16  # bytes, of one array
LONGEST_FIELD = 2**31 - 1  # of CSV; its own limit is 128 kB


class Damaged(ValueError):
    """The contents of a file are invalid; the caller adds the file's name and what to do."""


def parsed(text: str) -> Any:
    """Read JSON; raise if it is nested so deeply that reading it would exhaust the stack."""
    depth, inside = 0, False
    for token in TOKENS.finditer(text):
        sign = token[0]
        if sign == '"':
            inside = not inside
        elif not inside and sign in "[{":
            depth += 1
            if depth > DEEPEST:
                raise Damaged(f"its brackets are nested more than {DEEPEST} deep")
        elif not inside and sign in "]}":
            depth -= 1
    try:
        return json.loads(text)
    except ValueError as error:
        raise Damaged(f"it is not valid JSON, or was cut off: {error}") from error


def read_json(path: Path) -> Any:
    try:
        return parsed(path.read_text(encoding="utf-8"))
    except UnicodeDecodeError as error:
        raise Damaged("it is not a UTF-8 text") from error


def csv_lines(path: Path, separator: str = ",") -> Iterator[list[str]]:
    """Return the cells of each line, the header first; blank lines are skipped."""
    csv.field_size_limit(LONGEST_FIELD)
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            yield from (line for line in csv.reader(stream, delimiter=separator) if line)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise BadInput(
            f"{str(path)!r} cannot be read as CSV ({error}): give a UTF-8 text with a header and commas."
        ) from error


def csv_header(path: Path, separator: str = ",") -> tuple[list[str], int]:
    """Return the names of the columns, and how many rows follow."""
    header = [name.strip() for name in next(csv_lines(path, separator), [])]
    rows = sum(1 for _ in csv_lines(path, separator)) - 1
    if rows < 1:
        raise BadInput(f"{str(path)!r} has no rows below a header.")
    return header, rows


def read_arrays(path: Path) -> dict[str, Array]:
    """Read the arrays of an .npz file: numbers, and single strings."""
    try:
        with path.open("rb") as file, zipfile.ZipFile(file) as archive:
            members = archive.infolist()
            require_room(members_bytes(archive, members), path.stat().st_size)
            arrays = {}
            for member in members:
                with archive.open(member) as stream:
                    arrays[member.filename.removesuffix(ENDING)] = npy.read_array(stream, allow_pickle=False)
            return arrays
    except Damaged:
        raise
    except Exception as error:  # zip, deflate, numpy's headers: each has errors of its own
        raise Damaged(f"it is not an .npz file, or was cut off: {error}") from error


def members_bytes(archive: zipfile.ZipFile, members: list[zipfile.ZipInfo]) -> tuple[int, int]:
    """Bytes of all numbers and of all words, by the headers alone; headers that contradict themselves are refused."""
    numbers = words = 0
    seen = set[str]()
    for member in members:
        name = member.filename
        if not name.endswith(ENDING) or name in seen:
            raise Damaged(f"{name!r} in it is not an array, or occurs twice")
        seen.add(name)
        with archive.open(member) as stream:
            version = npy.read_magic(stream)
            if version not in HEADERS:
                raise Damaged(f"it has version {version} of numpy's format, which is not supported")
            shape, _, kind = HEADERS[version](stream, max_header_size=LONGEST_HEADER)
            if kind.kind not in NUMBERS and (kind.kind != WORDS or shape):
                raise Damaged(f"{name!r} in it contains {kind}, not numbers")
            size = math.prod(shape) * kind.itemsize
            if min(shape, default=0) < 0 or stream.tell() + size != member.file_size:
                raise Damaged(f"the size of {name!r} in it does not match its shape {shape}")
        if kind.kind == WORDS:
            words += size
        else:
            numbers += size
    return numbers, words


def require_room(unfolded: tuple[int, int], size: int) -> None:
    """Raise if a file would decompress to far more than its size."""
    for wanted, free in zip(unfolded, (ARRAY_BYTES, WORD_BYTES), strict=True):
        if wanted > max(free, TIMES * size):
            raise Damaged(f"its {size / 1e6:.1f} MB would take {wanted / 1e6:.0f} MB of memory")


@contextmanager
def quiet() -> Iterator[None]:
    """Silence transformers (warnings, progress bars), and restore its settings."""
    require("transformers", why="loading models")
    from transformers.utils import logging as hf_logging

    verbosity, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.set_verbosity(logging.ERROR)
    hf_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        hf_logging.set_verbosity(verbosity)
        if bars:
            hf_logging.enable_progress_bar()


def path_of(value: Any, name: str = "path") -> Path:
    """Return a Path; raise for other types, empty names and characters that no system accepts."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else value
    if isinstance(text, bytes):
        raise BadInput(f"{name}={value!r} is bytes: give a string, os.fsdecode({value!r}), or a pathlib.Path.")
    if not isinstance(text, str):
        raise BadInput(f"{name}={value!r} is not a path but a {type(value).__name__}: give a string or a pathlib.Path.")
    if not text.strip():
        raise BadInput(f"{name}={text!r} is empty: give the name of a file or folder.")
    try:
        os.fsencode(text)
    except UnicodeEncodeError:
        raise BadInput(f"{name}={text!r} contains a character that file names cannot have: choose another.") from None
    if "\0" in text:
        raise BadInput(f"{name}={text!r} contains a zero byte, which file names cannot have: choose another.")
    return Path(text)


def is_file(path: Path) -> bool:
    """``Path.is_file``, False where the system raises (a name too long, a folder without permission)."""
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
        raise BadInput(f"{str(path)!r} cannot be read by this user: change its permissions, or give a copy.")
    return path


def readable_folder(value: Any, what: str) -> Path:
    path = path_of(value, "folder")
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
        return "the file exists and is read-only. Choose another name"
    if not os.access(path.parent, os.W_OK):
        return f"the folder {str(path.parent)!r} is read-only. Choose another folder"
    return ""


def made_folder(value: Any, name: str = "folder", mode: int = 0o777) -> Path:
    """A folder to write into, made if it is not there."""
    folder = path_of(value, name)
    if is_file(folder):
        raise BadInput(f"{name}={str(folder)!r} is a file: give the name of a folder.")
    with writing(folder):
        folder.mkdir(mode, parents=True, exist_ok=True)
    if not os.access(folder, os.W_OK):
        raise BadInput(f"{name}={str(folder)!r} is read-only: choose another folder.")
    return folder


def private_folder(value: Any, name: str) -> Path:
    """A folder whose files are taken at their word later: made for this user alone, refused where others may write."""
    folder = made_folder(value, name, 0o700)
    state = folder.stat()
    if hasattr(os, "getuid") and (state.st_uid not in (0, os.getuid()) or state.st_mode & 0o022):
        raise BadInput(
            f"{name}={str(folder)!r} can be changed by other users, who could change the results in it: name a new "
            f"folder, or close this one if it is yours: chmod go-w {str(folder)!r}."
        )
    if link := next((path.name for path in sorted(folder.iterdir()) if path.is_symlink()), None):
        raise BadInput(f"{name}={str(folder)!r} contains a link ({link}), which is not written through: remove it.")
    return folder


PRIVATE = 0o600  # files of jobs and caches; other files have the usual permissions
UNFINISHED = ".unfinished"
NO_LINKS = os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)


def write_file(path: Path, data: bytes, mode: int = 0o666) -> None:
    """Write a file whole or not at all; a link of that name is replaced, and its target stays as it is.

    A file that is replaced hands its permissions on, if they are narrower. Raises OSError.
    """
    beside = path.with_name(f".{token_hex(8)}{UNFINISHED}")
    if not path.is_symlink() and path.is_file():
        mode &= path.stat().st_mode
    try:
        with os.fdopen(os.open(beside, os.O_WRONLY | os.O_EXCL | NO_LINKS, mode), "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        beside.replace(path)
    finally:
        beside.unlink(missing_ok=True)


def append_to(path: Path) -> IO[bytes]:
    """Open a private file to add to it; raise OSError for a link, a pipe, or a second name of some other file."""
    number = os.open(path, os.O_RDWR | os.O_APPEND | NO_LINKS, PRIVATE)
    state = os.fstat(number)
    if state.st_nlink > 1 or not stat.S_ISREG(state.st_mode):
        os.close(number)
        raise OSError("it has another name, too, or is no ordinary file")
    return os.fdopen(number, "ab+")


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turn errors of the system while a file is written (a full disk, a name too long) into BadInput."""
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise BadInput(f"{str(path)!r} cannot be written ({reason}): choose another name or folder.") from error


# Pictures: opened as RGB, upright; resized; and as text, for pages and files

INTERPOLATIONS = ("bilinear", "nearest")
JPEG = "data:image/jpeg;base64,"
LONGEST = 448  # pixels of the longer side, as text
LARGEST = 1024  # of what is read back: a file can hold anything


PICTURES = {".bmp", ".gif", ".jpeg", ".jpg", ".png", ".tif", ".tiff", ".webp"}


def names_picture(raw: Any) -> bool:
    """Return whether a string or path names an image file, as opposed to a prompt that ends in such a name."""
    if not isinstance(raw, (str, Path)) or Path(raw).suffix.lower() not in PICTURES:
        return False
    return " " not in str(raw) or is_file(Path(raw))


def open_image(raw: Any) -> Any:
    """A PIL image in RGB from an image, a path or an array of pixels; upright: turned as its EXIF data says."""
    require("PIL", why="reading images")
    from PIL import Image

    if isinstance(raw, (str, Path)):
        path = path_of(raw, "image")
        if is_folder(path):
            raise BadInput(
                f"{str(path)!r} is a folder: name an image in it, or list them, sorted(Path(…).glob('*.jpg'))."
            )
        if not is_file(path):
            if isinstance(raw, str) and "://" in raw:
                raise BadInput(f"{raw!r} is an address, and nothing is downloaded here: pass the path of a file.")
            raise BadInput(f"no image at {str(path)!r}: the file does not exist.")
        failure = f"{str(path)!r} cannot be read as an image"
        with reading(failure, "Open it in another program and save it again."), Image.open(path) as image:
            image.load()
            return _rgb(image, f"{str(path)!r}")
    if isinstance(raw, np.ndarray):
        raw = Image.fromarray(_shades(raw))
    if not isinstance(raw, Image.Image):
        raise BadInput(f"expected a PIL image, a path or a NumPy array, got {type(raw).__name__}.")
    if not raw.width or not raw.height:
        raise BadInput(f"the image has {raw.width}×{raw.height} pixels: it is empty.")
    with reading("the image cannot be read", "Open it again from its file, and keep it open."):
        return _rgb(raw, "the image")


def _rgb(image: Any, name: str) -> Any:
    """Convert an image to RGB with 8 bits per colour, upright; Pillow would clip pixels of 16 bits at 255."""
    require("PIL", why="reading images")
    from PIL import Image, ImageOps

    of_16_bits = image.mode.startswith("I;16") or (image.mode == "I" and getattr(image, "format", None) == "PNG")
    with suppress(SyntaxError):  # raised by Pillow where EXIF data is broken: the picture is taken as it is
        image = ImageOps.exif_transpose(image)  # phones store photos as the sensor saw them
    if of_16_bits:
        numbers = np.asarray(image).astype(np.float64) / 257  # 65535 is white
        return Image.fromarray(np.rint(numbers).clip(0, 255).astype(np.uint8)).convert("RGB")
    if image.mode in {"F", "I"}:
        numbers = np.asarray(image)
        raise BadInput(
            f"{name} has one number per pixel, from {numbers.min():g} to {numbers.max():g}, and it is not known which "
            "of them is black and which is white. Scale them to 0…255: array = numpy.asarray(image), then "
            "PIL.Image.fromarray(((array - black) / (white - black) * 255).clip(0, 255).astype('uint8'))."
        )
    if image.mode not in {"RGB", "L", "RGBA", "P", "1", "LA", "CMYK", "YCbCr", "HSV", "RGBX", "PA"}:
        raise BadInput(f"{name} has the colour mode {image.mode!r}, which is not supported: convert it to RGB.")
    return image.convert("RGB")


def _shades(array: Array) -> Array:
    """Return an array as uint8 (height, width) or (height, width, 3 or 4); raise if its layout is ambiguous."""
    shape = " × ".join(map(str, array.shape))
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        raise BadInput(
            f"the array is {shape}, and an image is height × width × colours. If the colours come first, pass "
            "array.transpose(1, 2, 0). Pass the output of an image processor as the model's own tensor, "
            "{'pixel_values': torch.from_numpy(array)[None]}."
        )
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or not array.size:
        raise BadInput(
            f"the array is {shape or 'a single number'}: an image is height × width × 3, or height × width in greys; "
            "several of one size are inputs × height × width × 3."
        )
    array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if array.dtype == np.uint8:
        if array.max() == 1:  # what .astype('uint8') makes of floats from 0 to 1: a picture that is black throughout
            raise BadInput(
                "the array contains only 0 and 1, and in uint8 white is 255: pass floats from 0 to 1, or multiply a "
                "mask by 255."
            )
        return array
    low, high = (float(end) for end in (array.min(), array.max())) if array.dtype.kind in "biuf" else (np.nan, np.nan)
    if array.dtype.kind != "f":
        convert = "array.astype('uint8')"
        if low < 0 or high > 255:  # uint8 would count these from 0 again
            convert = "array / 65535 if that is white"
        elif high <= 1:  # as uint8 these would be black
            convert = "array.astype('float32')"
        raise BadInput(
            f"the array holds {array.dtype} numbers{'' if np.isnan(low) else f' from {low:g} to {high:g}'}: pixels are "
            f"uint8, 0 (black) to 255 (white), or floats from 0 to 1. Convert them, e.g. {convert}."
        )
    if not (np.isfinite(low) and np.isfinite(high)):
        raise BadInput("the array contains NaN or infinity: fill those pixels first.")
    if low < 0 or high > 1:
        raise BadInput(
            f"the array contains floats from {low:g} to {high:g}, and 0 is read as black, 1 as white: scale them, e.g. "
            "array / 255. If they are normalised for a model, pass them as the model's own tensor."
        )
    shades: Array = np.rint(array * 255).astype(np.uint8)
    return shades


def resized(values_RC: Array, size: tuple[int, int] | None, interpolation: str = "bilinear") -> Array:
    """(R, C) or (R, C, channels) → (height, width, …)."""
    if interpolation not in INTERPOLATIONS:
        raise UnknownName("interpolation", interpolation, INTERPOLATIONS)
    if size is None:
        return values_RC
    if len(size) != 2 or min(size) < 1:
        raise BadInput(f"size={size!r}: two whole numbers of at least 1, height and width.")
    for axis, length in enumerate(size):
        count = values_RC.shape[axis]
        # Centres of the new cells in units of the old ones; beyond the outer centres the border value holds.
        centres = (np.arange(length) + 0.5) * count / length - 0.5
        if interpolation == "nearest":
            values_RC = np.take(values_RC, np.clip(np.floor(centres + 0.5), 0, count - 1).astype(int), axis)
            continue
        low = np.clip(np.floor(centres), 0, count - 1).astype(int)
        high = np.minimum(low + 1, count - 1)
        shape = [1] * values_RC.ndim
        shape[axis] = length
        part = np.clip(centres - low, 0, 1).reshape(shape).astype(np.float32)
        values_RC = np.take(values_RC, low, axis) * (1 - part) + np.take(values_RC, high, axis) * part
    return values_RC


def jpeg_uri(pixels: Array) -> str:
    """uint8 (height, width, 3) as a small JPEG in a data URI."""
    require("PIL", why="writing images")
    from PIL import Image

    image, written = Image.fromarray(pixels), BytesIO()
    image.thumbnail((LONGEST, LONGEST))
    image.save(written, "JPEG", quality=85)
    return JPEG + b64encode(written.getvalue()).decode()


def pixels_of_uri(uri: str) -> Array | None:
    """Decode a data URI of ``jpeg_uri`` to uint8 (height, width, 3); return None for anything else."""
    try:
        from PIL import Image

        with Image.open(BytesIO(b64decode(uri.removeprefix(JPEG), validate=True)), formats=("JPEG",)) as image:
            return None if max(image.size) > LARGEST else np.asarray(image.convert("RGB"))
    except Exception:  # a picture that cannot be read is left out: the scores are there without it
        return None
