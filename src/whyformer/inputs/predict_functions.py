"""Functions from texts, images or rows to probabilities (``predict_proba``): called from outside, so only masked."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, ModelFailed, NonFinite, WhyformerError, listed, reading, require, shown
from whyformer.files import jpeg_uri, open_image
from whyformer.inputs.base import Modality, Read
from whyformer.inputs.batch import Batch, Raw, are_tensors
from whyformer.inputs.decoding import Decoding
from whyformer.inputs.image import ImageMask, ImagePlace, ImageRead
from whyformer.inputs.prompt import AskedModel, Prompt, PromptMask, PromptPlace, PromptRead, named
from whyformer.inputs.table import TableMask, TableMean, TablePlace, TableRead
from whyformer.inputs.table_schema import Table
from whyformer.inputs.units import spans_of
from whyformer.shapes import Array

KIND = "function"  # the name by which a default method is chosen
TAKES = (
    "a function of inputs takes texts, images (PIL, or arrays of rows × columns × channels), or rows of a table: "
    "a DataFrame, an array of numbers, or any with processor=wf.Table(numerical=[…], categorical={…}, reference=rows). "
    "For tensors, pass a torch.nn.Module; to explain answers to prompts, a function of (prompts, answers), such as "
    "wf.CompletionServer(url)."
)


class AskedFunction(AskedModel):
    """A module without weights around the function: several inputs as they were given → (B, C) numbers."""

    def __init__(self, says: Any, identity: str) -> None:
        super().__init__(says, identity)
        self.exact = nn.Parameter(torch.empty(0, dtype=torch.float64), requires_grad=False)  # numbers keep their digits
        names = getattr(says, "classes_", getattr(getattr(says, "__self__", None), "classes_", None))
        with reading("the names of classes (classes_) cannot be read", "Give texts or numbers."):
            self.names = () if names is None else tuple(map(str, names))
        self.table: Table | None = None  # of the last rows, and the labels of their DataFrame; None: they were arrays
        self.labels: list[Any] | None = None

    def forward(self, inputs: Any) -> Tensor:  # type: ignore[override]
        name, count, function = named(self.says), len(inputs), cast("Callable[[Any], Any]", self.says)
        try:
            said = function(inputs)
            numbers: Array = np.asarray(said.detach().cpu() if isinstance(said, Tensor) else said, dtype=float)
        except WhyformerError:
            raise
        except Exception as error:
            raise ModelFailed(
                f"{name} raised {type(error).__name__}: {error}, when it was called with a {type(inputs).__name__} of "
                f"{count} (as {shown(inputs[0]) if isinstance(inputs, list) else getattr(inputs, 'shape', '')}). Call "
                "it directly on a list of inputs: it returns one row of numbers for each."
            ) from error
        numbers = numbers[:, None] if numbers.ndim == 1 else numbers
        if numbers.ndim != 2 or len(numbers) != count or not numbers.size:
            raise BadInput(
                f"{name} returned numbers of shape {numbers.shape} for {count} inputs: one row is expected for each, a "
                "number per class."
            )
        if not np.isfinite(numbers).all():
            raise NonFinite(f"{name} returned NaN or infinity: its numbers must be finite.")
        if len(self.names) == 2 and numbers.shape[1] == 1 and (numbers >= 0).all() and (numbers <= 1).all():
            numbers = np.concatenate([1 - numbers, numbers], 1)  # the probability of the second of two classes
        if self.names and numbers.shape[1] != len(self.names):
            raise BadInput(f"{name} returned {numbers.shape[1]} numbers per input for {len(self.names)} named classes.")
        return torch.from_numpy(numbers)


class FunctionTextRead(PromptRead):
    """One text per input; units are its words, its sentences, or stretches of it."""

    kind = KIND
    model: AskedFunction

    def __init__(self, model: AskedFunction, processor: Any = None) -> None:
        super().__init__(model, processor)
        self.classes, self.samples = model.names, 0

    allowed = Read.allowed

    def _prompt(self, text: Raw, decoding: Decoding, size: str | Sequence[Any]) -> Prompt:
        if not isinstance(text, str):
            raise BadInput(f"the input is {shown(text)}, and the first is a text: {TAKES}")
        spans = tuple(spans_of(text, size))
        if not spans:
            raise BadInput(f"the text {shown(text)} has no words: give at least one.")
        return Prompt(text, "", spans, words=size == "word")

    def call(self, batch: Batch, **extra: Any) -> Any:
        variants = zip(batch.tensors["prompt"].tolist(), batch.tensors[self.main].tolist(), strict=True)
        return self.model([self.model.question(*variant)[0] for variant in variants])


FunctionText = Modality.of(FunctionTextRead, PromptPlace, PromptMask)


class FunctionImageRead(ImageRead):
    """One image per input, as the function takes it: PIL images in a list, arrays in one array."""

    kind = KIND
    opaque = True

    def __init__(self, model: AskedFunction, processor: Any = None) -> None:
        if processor is not None:
            raise BadInput("processor= is for models: a function gets the images as they are. Omit it.")
        super().__init__(model)
        self.classes = model.names
        self.dtype: Any = None  # of arrays; None: PIL images

    def encode(self, raw: Sequence[Raw]) -> Batch:
        arrays = isinstance(raw[0], np.ndarray)
        images = list(raw) if arrays else [open_image(one) for one in raw]
        pixels = [np.asarray(image) for image in images]
        alike = len({(one.shape, one.dtype) for one in pixels}) == 1
        if not alike or pixels[0].ndim != 3 or any(isinstance(one, np.ndarray) != arrays for one in raw):
            sizes = ", ".join(str(one.shape) for one in pixels[:4])
            raise BadInput(f"images of one kind and size are expected, rows × columns × channels, not {sizes}.")
        self.dtype = pixels[0].dtype if arrays else None
        tensor = torch.from_numpy(np.stack(pixels).astype(float)).permute(0, 3, 1, 2)
        return Batch({self.main: self.move(tensor)}, raw=tuple(images), warnings=((),) * len(images))

    def call(self, batch: Batch, **extra: Any) -> Any:
        pixels, dtype = batch.tensors[self.main].permute(0, 2, 3, 1).numpy(), self.dtype or np.dtype(np.uint8)
        pixels = (np.rint(pixels) if dtype.kind in "iu" else pixels).astype(dtype)
        if self.dtype is not None:
            return self.model(pixels)
        require("PIL", why="a function of images")
        from PIL import Image

        return self.model([Image.fromarray(image) for image in pixels])


class FunctionImagePlace(ImagePlace):
    """Squares of the picture, drawn as it is."""

    def picture(self, batch: Batch, row: int) -> str | None:
        pixels = np.asarray(batch.raw[row])
        drawn = pixels.dtype == np.uint8 and pixels.shape[-1] == 3
        return jpeg_uri(pixels) if drawn else super().picture(batch, row)


FunctionImage = Modality.of(FunctionImageRead, FunctionImagePlace, ImageMask)


class FunctionTableRead(TableRead):
    """One row of a table per input; the function gets a DataFrame where rows had names, else an array."""

    opaque = True
    mixes_rows = False
    model: AskedFunction
    precision = torch.float64

    def __init__(self, model: AskedFunction, table: Table, inputs: Any) -> None:
        if table.preprocess is not None:
            raise BadInput("a function gets rows as they are: omit preprocess= of Table, and do that in the function.")
        model.names = table.classes or model.names
        super().__init__(model, table)
        first = inputs[0] if isinstance(inputs, list) and inputs else inputs
        names = columns_of(first)
        if names is not None:
            model.labels = [label for label in names if str(label) in table.columns]
        elif not isinstance(first, Mapping):
            model.labels = None
        elif model.table is None:  # otherwise these may be rows that were given before, read already
            model.labels = list(table.columns)
        model.table = table

    @property
    def kind(self) -> str:
        """A function of rows has no maps, unlike other models of tables."""
        return KIND

    def _fit(self) -> None:
        self.classes = self.model.names

    def call_alone(self, batch: Batch) -> Any:
        table, columns = self.table, dict[str, Array]()
        for name in table.columns:
            kind, at = self.where(name)
            values = batch.tensors[kind][:, at].numpy()
            if name in table.categorical:
                values = np.array([table.categorical[name][code - table.first_code] for code in values.tolist()])
            columns[name] = values
        if self.model.labels is not None:
            require("pandas", why="a function of rows with names")
            import pandas

            return self.model(pandas.DataFrame({label: columns[str(label)] for label in self.model.labels}))
        plain = all(values.dtype.kind in "fiub" for values in columns.values())
        arrays = [values if plain else values.astype(object) for values in columns.values()]
        return self.model(np.stack(arrays, 1))


FunctionTable = Modality.of(FunctionTableRead, TablePlace, TableMask, TableMean)


def modality_of_function(model: AskedFunction, processor: Any, inputs: Any) -> Modality:
    """Return the modality of a function for these inputs: texts, images or rows of a table."""
    if isinstance(inputs, list) and not inputs:
        raise BadInput("the list of inputs is empty: give at least one.")
    if processor is None and are_tensors(inputs):
        processor = model.table
    if isinstance(processor, Table):
        return FunctionTable(model, processor, inputs)
    first = inputs[0] if isinstance(inputs, (list, tuple)) and inputs else inputs
    image = isinstance(first, Path) or type(first).__module__.startswith("PIL.") or getattr(first, "ndim", 0) == 3
    if isinstance(first, str) and not isinstance(inputs, tuple):
        return FunctionText(model, processor)
    if image and not isinstance(first, Tensor):
        return FunctionImage(model, processor)
    columns = columns_of(first)
    if isinstance(first, np.ndarray) and processor is None and first.ndim in (1, 2) and first.dtype.kind in "fiu":
        return FunctionTable(model, Table(numerical=[f"column {i}" for i in range(first.shape[-1])]), inputs)
    if columns is not None and processor is None:
        return FunctionTable(model, _numerical(first, columns), inputs)
    raise BadInput(f"the inputs are {shown(inputs)}: {TAKES}")


def columns_of(rows: Any) -> Any:
    """Return the names of columns of a DataFrame, or of a row of it (a Series); None for anything else."""
    if isinstance(rows, Mapping) or not hasattr(rows, "to_dict"):
        return None
    return rows.columns if hasattr(rows, "columns") else rows.index


def _numerical(rows: Any, columns: Any) -> Table:
    """Describe a DataFrame or a row of it; raise for columns that are no numbers, whose categories are not known."""
    kinds = {str(name): np.asarray(rows[name]) for name in columns}
    texts = [name for name, values in kinds.items() if not np.issubdtype(np.asarray(values.tolist()).dtype, np.number)]
    if texts:
        raise BadInput(
            f"{listed(texts[:8], 'and')} hold no numbers, and their categories are not known: pass "
            "processor=wf.Table(numerical=[…], categorical={name: categories}, reference=rows)."
        )
    return Table(numerical=list(kinds))
