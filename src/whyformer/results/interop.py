"""Convert results for pandas, shap, Captum and Quantus."""

from __future__ import annotations

import random
import sys
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from whyformer.errors import BadInput, reading, require
from whyformer.parameters import checked
from whyformer.results.result import EXPLANATION, Result
from whyformer.shapes import Array

if TYPE_CHECKING:
    import pandas

    DataFrame: TypeAlias = pandas.DataFrame
else:
    DataFrame = Any  # pandas is an extra


def dataframe(data: Any, columns: list[str] | None = None) -> DataFrame:
    """Return a DataFrame from rows (dicts, or tuples with ``columns``) or from columns by name; pandas is an extra."""
    require("pandas", why="to_frame()")
    import pandas as pd

    return pd.DataFrame(data, columns=columns)


def below(frames: Sequence[DataFrame]) -> DataFrame:
    """Return frames below each other, with rows numbered anew."""
    require("pandas", why="to_frame()")
    import pandas as pd

    return pd.concat(frames, ignore_index=True) if frames else pd.DataFrame()


@checked
def to_shap(explanations: Any) -> Any:
    """Convert one explanation, or several as rows, to a ``shap.Explanation``, for shap's plots.

    values: the scores; base_values: the value at the baseline, 0 if the method has none; data and feature_names: the
    labels of the units; for tables, the values and names of the columns. Rows may differ in length.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> explanations = wf.explain(model, ["I like the movie", "A great film"], tokenizer)
    >>> wf.to_shap(explanations).values
    """
    shap = shap_package("to_shap")
    if _is_explanation(explanations):
        return shap.Explanation(
            values=explanations.scores.astype(np.float64),
            base_values=_base(explanations),
            data=_data(explanations),
            feature_names=_labels(explanations),
            output_names=None,
        )
    rows = _listed(explanations, "to_shap")
    one_table = all(e.units.values is not None for e in rows) and len({e.units.labels for e in rows}) == 1
    return shap.Explanation(
        values=_ragged([e.scores.astype(np.float64) for e in rows]),
        base_values=np.array([_base(e) for e in rows]),
        data=_ragged([_data(e) for e in rows]),
        feature_names=_labels(rows[0]) if one_table else [_labels(e) for e in rows],
    )


def shap_package(why: str) -> Any:
    """Return the shap library, imported without its warnings about itself."""
    require("shap", why=why)
    if "shap" in sys.modules:
        return sys.modules["shap"]
    drawn, numbers = random.getstate(), np.random.get_state()  # some of what it imports draws or seeds them
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import shap
    finally:
        random.setstate(drawn)
        np.random.set_state(numbers)
    return shap


@checked
def to_captum(explanations: Any, inputs: Tensor | None = None, mask: Tensor | None = None) -> Tensor:
    """Return scores in the shape of the model's input, as Captum's ``attribute`` does; float32, on the CPU.

    inputs: the input of the model, (B, N) token ids or columns, (B, N, E) vectors or (B, C, H, W) pixels. Without it,
    (B, N) with zeros after shorter inputs, and (B, 1, H, W) for images. mask: (B, N), 0 at padding
    (``attention_mask``); required for padded inputs, because padding has no score.

    The score of a patch is divided evenly among its pixels and channels, that of a token among the elements of its
    vector, unless the method has scores for them (``detail``). Special tokens of images (CLS) have no pixels, and are
    left out.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> wf.to_captum(wf.explain(model, ["I like the movie", "So boring"], tokenizer)).shape
    """
    rows = _explanations(explanations, "to_captum")
    images = [e.units.grid is not None for e in rows]
    if any(images) != all(images):
        raise BadInput("to_captum takes explanations of one kind: either all are of images, or none.")
    if inputs is not None and inputs.ndim == 0:
        raise BadInput("inputs is a tensor without axes: give the tensor that was explained, one row per explanation.")
    if inputs is not None and len(inputs) != len(rows):
        raise BadInput(f"{len(rows)} explanations and {len(inputs)} inputs: give the tensor that was explained.")
    return _pixel_shares(rows, inputs) if all(images) else _position_shares(rows, inputs, mask)


@checked
def to_quantus(explanations: Any, inputs: Tensor, mask: Tensor | None = None) -> dict[str, Array]:
    """Return the arrays for metrics of Quantus: ``metric(model=model, **to_quantus(explanations, pixel_values))``.

    x_batch: ``inputs``; y_batch: (B,) the explained classes; a_batch: scores with as many axes as x_batch,
    (B, 1, H, W) for images, else as returned by ``to_captum``.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> tensors = tokenizer(["I like the movie", "What a dull book"], return_tensors="pt")
    >>> wf.to_quantus(wf.explain(model, dict(tensors)), tensors["input_ids"])["a_batch"].shape
    """
    rows = _explanations(explanations, "to_quantus")
    if contrasts := [e.target for e in rows if e.target.versus is not None]:
        raise BadInput(f"Quantus takes one class per input, and {contrasts[0]} was explained: explain one class.")
    shares = to_captum(rows, inputs, mask)
    if shares.ndim == 4:
        shares = shares.sum(1, keepdim=True)
    classes = np.array([e.target.index for e in rows], dtype=np.int64)
    return {"x_batch": inputs.detach().cpu().numpy(), "y_batch": classes, "a_batch": shares.numpy()}


def _explanations(value: Any, verb: str) -> list[Any]:
    rows = [value] if _is_explanation(value) else _listed(value, verb)
    for e in rows:
        if len(streams := sorted(set(e.units.stream))) > 1:
            raise BadInput(
                f"{verb} supports inputs of one stream, and this explanation has {', '.join(streams)}: select its "
                ".scores by .units.stream."
            )
    return rows


def _listed(value: Any, verb: str) -> list[Any]:
    rows, wanted = [], f"{verb} takes an Explanation or a list of them, and at least one."
    with reading(f"{verb} cannot read what it was given", wanted):
        for each in value if isinstance(value, Iterable) else ():
            if not _is_explanation(each):  # the first that is none: there may be no end of them
                raise BadInput(wanted)
            rows.append(each)
    if not rows:
        raise BadInput(wanted)
    return rows


def _pixel_shares(rows: list[Any], inputs: Tensor | None) -> Tensor:
    sizes = {e.units.image_size or e.units.grid for e in rows}
    if inputs is None and len(sizes) > 1:
        raise BadInput("the images differ in size: pass inputs, the pixels that the model was given.")
    shape = (len(rows), 1, *next(iter(sizes))) if inputs is None else tuple(inputs.shape)
    if len(shape) != 4:
        raise BadInput(f"inputs of images are (batch, channels, height, width), and these have shape {shape}.")
    shares = torch.zeros(shape)
    for row, e in enumerate(rows):
        high, wide = e.units.image_size or e.units.grid
        if high > shape[2] or wide > shape[3]:
            raise BadInput(
                f"the model's input has {high}×{wide} pixels, and inputs have shape {shape}: pass its input."
            )
        if e.detail is not None and e.detail.shape in ((high, wide), (shape[1], high, wide)):
            pixels = e.detail if e.detail.ndim == 3 else e.detail / shape[1]
        else:
            patches = e.heatmap()
            # The patch of each pixel, and among how many it shares its score.
            at = [np.arange(size) * count // size for size, count in zip((high, wide), patches.shape, strict=True)]
            counts = np.outer(*(np.bincount(index) for index in at))
            pixels = (patches / counts / shape[1])[np.ix_(*at)]
        shares[row, :, :high, :wide] = torch.from_numpy(pixels)
    return shares


def _position_shares(rows: list[Any], inputs: Tensor | None, mask: Tensor | None) -> Tensor:
    # A table's [CLS] is no column.
    scores = [e.scores if e.units.values is None else e.scores[~np.array(e.units.special)] for e in rows]
    shape = (len(rows), max(map(len, scores))) if inputs is None else tuple(inputs.shape)
    if len(shape) not in (2, 3):
        raise BadInput(f"inputs are (batch, positions) or (batch, positions, width), and these have shape {shape}.")
    if inputs is not None and mask is None and any(len(each) != shape[1] for each in scores):
        raise BadInput(
            f"inputs have {shape[1]} positions and the explanations {sorted({len(each) for each in scores})}: pass the "
            "tensor that was explained, and mask=attention_mask, which marks padding; explain with units='token'."
        )
    if mask is not None and tuple(mask.shape) != shape[:2]:
        raise BadInput(
            f"mask has shape {tuple(mask.shape)}, and inputs have {shape[:2]} positions: one entry for each."
        )
    shares = torch.zeros(shape)
    for row, (e, each) in enumerate(zip(rows, scores, strict=True)):
        where = torch.arange(shape[1]) < len(each) if mask is None else mask[row].bool().cpu()
        if int(where.sum()) != len(each):
            raise BadInput(f"input {row} has {len(each)} scores, and {int(where.sum())} positions of its mask are 1.")
        entries = each
        if len(shape) == 3:
            finer = e.detail is not None and e.detail.shape == (len(each), shape[2])
            entries = e.detail if finer else (each / shape[2])[:, None].repeat(shape[2], 1)
        shares[row, where] = torch.from_numpy(entries)
    return shares


def _is_explanation(value: Any) -> bool:
    return isinstance(value, Result) and value.what == EXPLANATION


def _base(explanation: Any) -> float:
    return 0.0 if explanation.base is None else float(explanation.base)


def _data(explanation: Any) -> Any:
    """Return the content of each unit: the token, or the value of a column, as a number if it is one."""
    values = explanation.units.values
    return np.array(_labels(explanation) if values is None else [_number(v) for v in values], dtype=object)


def _number(text: str) -> Any:
    try:
        return float(text)
    except ValueError:
        return text


def _labels(explanation: Any) -> list[str]:
    """Tokens with the space that stood before them, so that shap's text plot reads as the text did."""
    units = explanation.units
    if units.spans is None or units.text is None:
        return [str(label) for label in units.labels]
    labels = []
    for label, special, (start, end) in zip(units.labels, units.special, units.spans, strict=True):
        if special or end <= start:
            labels.append(label)
            continue
        space = " " if start > 0 and units.text[start - 1].isspace() else ""
        labels.append(space + units.text[start:end])
    return labels


def _ragged(rows: list[Any]) -> Any:
    if len({len(r) for r in rows}) == 1:
        return np.stack(rows)
    result = np.empty(len(rows), dtype=object)
    result[:] = rows
    return result
