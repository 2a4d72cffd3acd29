"""Pictures: opened as RGB, upright, with errors that say what is wrong; resized; and as text, for pages and files."""

from __future__ import annotations

from base64 import b64decode, b64encode
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.errors import BadInput, UnknownName, reading
from whyformer.extras import require
from whyformer.files.paths import is_file, is_folder, path_of
from whyformer.shapes import Array

INTERPOLATIONS = ("bilinear", "nearest")
JPEG = "data:image/jpeg;base64,"
LONGEST = 448  # pixels of the longer side, as text
LARGEST = 1024  # of what is read back: a file can hold anything


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
        raise BadInput(f"the picture is {raw.width}×{raw.height} pixels: it holds nothing to explain.")
    with reading("the image cannot be read", "Open it again from its file, and keep it open."):
        return _rgb(raw, "the image")


def _rgb(image: Any, name: str) -> Any:
    """In colours of 8 bits, upright. Pillow cuts numbers off at 255 where a pixel has more than 8 bits."""
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
            f"{name} has one number per pixel, from {numbers.min():g} to {numbers.max():g}, and which of them is black "
            "and which is white it does not say. Scale them to 0…255 yourself: array = numpy.asarray(image), then "
            "PIL.Image.fromarray(((array - black) / (white - black) * 255).clip(0, 255).astype('uint8'))."
        )
    if image.mode not in {"RGB", "L", "RGBA", "P", "1", "LA", "CMYK", "YCbCr", "HSV", "RGBX", "PA"}:
        raise BadInput(f"{name} has the colours {image.mode!r}, which are not read: save it as RGB with another tool.")
    return image.convert("RGB")


def _shades(array: Array) -> Array:
    """uint8 (height, width) or (height, width, 3 or 4) of an array, where its numbers and axes leave no doubt."""
    shape = " × ".join(map(str, array.shape))
    if array.ndim == 3 and array.shape[2] not in (1, 3, 4) and array.shape[0] in (1, 3, 4):
        raise BadInput(
            f"the array is {shape}, and a picture is height × width × colours. If the colours come first, pass "
            "array.transpose(1, 2, 0). What an image processor made is no picture any more: pass that as the model's "
            "own tensor, {'pixel_values': torch.from_numpy(array)[None]}."
        )
    if array.ndim not in (2, 3) or (array.ndim == 3 and array.shape[2] not in (1, 3, 4)) or not array.size:
        raise BadInput(
            f"the array is {shape or 'a single number'}: a picture is height × width × 3, or height × width in greys; "
            "several of one size are inputs × height × width × 3."
        )
    array = array[..., 0] if array.ndim == 3 and array.shape[2] == 1 else array
    if array.dtype == np.uint8:
        if array.max() == 1:  # what .astype('uint8') makes of floats from 0 to 1: a picture that is black throughout
            raise BadInput(
                "the array holds no number but 0 and 1, and in uint8 white is 255: pass floats from 0 to 1 as they "
                "are, or multiply a mask by 255."
            )
        return array
    low, high = (float(end) for end in (array.min(), array.max())) if array.dtype.kind in "biuf" else (np.nan, np.nan)
    if array.dtype.kind != "f":
        raise BadInput(
            f"the array holds {array.dtype} numbers{'' if np.isnan(low) else f' from {low:g} to {high:g}'}: pixels are "
            "uint8, 0 (black) to 255 (white), or floats from 0 to 1. Convert them, e.g. array.astype('uint8')."
        )
    if not (np.isfinite(low) and np.isfinite(high)):
        raise BadInput("the array holds NaN or infinity: fill those pixels first.")
    if low < 0 or high > 1:
        raise BadInput(
            f"the array holds floats from {low:g} to {high:g}, and 0 is read as black, 1 as white: scale them, e.g. "
            "array / 255. What was normalised for a model is no picture any more: pass it as the model's own tensor."
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
    """What ``jpeg_uri`` wrote, uint8 (height, width, 3); None for anything else."""
    try:
        from PIL import Image

        with Image.open(BytesIO(b64decode(uri.removeprefix(JPEG), validate=True)), formats=("JPEG",)) as image:
            return None if max(image.size) > LARGEST else np.asarray(image.convert("RGB"))
    except Exception:  # a picture that cannot be read is left out: the scores are there without it
        return None
