"""Several streams at once: the numbers of all their entries side by side, as one row per input."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import Annotated

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.leaves import BeforeAttention, Entrance, Traced, as_leaf
from whyformer.capture.lookups import SwapEmbeddings
from whyformer.engines.gradient.feature_maps import smoothed
from whyformer.engines.gradient.input_space import InputSpace, SingleInput, TokensAndColumns, entering, lifted
from whyformer.errors import BadInput, Misplaced, NotOffered, UnknownName
from whyformer.inputs.batch import Batch
from whyformer.inputs.stream_inputs import Baseline, StreamInput, require_taken
from whyformer.loan.spread import SavedBytes
from whyformer.parameters import OneOf
from whyformer.run import Run, require_undisturbed
from whyformer.study.interference import INPUT_SLOPES
from whyformer.study.streams import slices


class MultiStream(InputSpace):
    """``inputs`` is (B, F): the numbers of every entry, flattened, one entry after the other."""

    def __init__(
        self,
        run: Run,
        stream_inputs: Sequence[StreamInput],
        numbers: Sequence[Tensor],
        point_bytes: int,
        gradient: Tensor | None,
    ) -> None:
        super().__init__(run, torch.cat([n.detach().flatten(1) for n in numbers], 1), point_bytes, gradient)
        self.stream_inputs = stream_inputs
        self.smooths = any(e.smooths for e in stream_inputs)
        self.shapes = [n.shape[1:] for n in numbers]
        self.dtypes = [n.dtype for n in numbers]

    def split(self, points: Tensor) -> list[Tensor]:
        """(B, F) → the numbers of each entry in their own shape."""
        parts = points.split([shape.numel() for shape in self.shapes], 1)
        return [part.reshape(-1, *shape) for part, shape in zip(parts, self.shapes, strict=True)]

    # Passes

    def logits(self, batch: Batch, points: Tensor) -> Tensor:
        floats, swaps = {}, []
        for stream_input, numbers, dtype in zip(self.stream_inputs, self.split(points), self.dtypes, strict=True):
            swap = stream_input.swap(batch, partial(lambda embedding, _: embedding.clone(), numbers.to(dtype)))
            if swap is None:
                floats[stream_input.name] = numbers.to(dtype)
            else:
                swaps.append(swap)
        with SwapEmbeddings(swaps):
            return self.run.output.logits(batch.with_tensors(**floats))

    def start(self, baseline: Baseline | Mapping[str, Baseline], keep_special: bool | Sequence[int]) -> Tensor:
        """(B, F) where a path to the inputs starts: ``baseline`` in the streams that have it, else their default."""
        each = self._baselines(baseline)
        if keep_special and all(e.floats(self.run.batch) is not None for e in self.stream_inputs):
            raise NotOffered("keep_special is for tokens of a text; this model reads none.")
        parts = []
        for stream_input, numbers in zip(self.stream_inputs, self.split(self.inputs), strict=True):
            parts.append(stream_input.start(numbers, each[stream_input.stream], keep_special).flatten(1))
        return torch.cat(parts, 1)

    def _baselines(self, baseline: Baseline | Mapping[str, Baseline]) -> dict[str, Baseline]:
        streams = [stream_input.stream for stream_input in self.stream_inputs]
        if isinstance(baseline, (Tensor, np.ndarray, float)):
            raise BadInput(
                "one tensor cannot be the baseline of several streams: give one for each, "
                f"baseline={{{', '.join(f'{s!r}: …' for s in streams)}}}; streams left out take their default."
            )
        if isinstance(baseline, Mapping):
            for stream, start in baseline.items():
                if stream not in streams:
                    raise UnknownName("stream", stream, streams)
                if not isinstance(start, (Tensor, np.ndarray, float)) and start is not None:
                    require_taken([e for e in self.stream_inputs if e.stream == stream], start)
            return {stream: baseline.get(stream) for stream in streams}
        if baseline is not None:
            require_taken(self.stream_inputs, baseline)
        return {e.stream: baseline if e.takes(baseline) else None for e in self.stream_inputs}

    # Units

    def per_unit(self, detail: Tensor, largest: bool = False) -> Tensor:
        scores = detail.new_zeros(self.run.keep_BN.shape)
        for stream_input, numbers in zip(self.stream_inputs, self.split(detail), strict=True):
            for row in range(len(scores)):
                part = scores[row, stream_input.positions]
                part[self.run.keep_BN[row, stream_input.positions]] += stream_input.per_unit(row, numbers[row], largest)
        return scores

    def real(self, row: int) -> Tensor:
        return torch.cat([
            stream_input.counted(row, numbers[row]).expand_as(numbers[row]).flatten()
            for stream_input, numbers in zip(self.stream_inputs, self.split(self.inputs), strict=True)
        ])  # fmt: skip

    def spread(self, row: int) -> Tensor:
        """One number for each kept one: every stream has its own scale."""
        spreads = []
        for stream_input, numbers in zip(self.stream_inputs, self.split(self.inputs), strict=True):
            real = numbers[row].double()[stream_input.counted(row, numbers[row]).expand_as(numbers[row])]
            if len(real):
                spreads.append(
                    (real.std(correction=0) if stream_input.vectors else real.max() - real.min()).expand_as(real)
                )
        return torch.cat(spreads).cpu()

    def smoothed(self, detail: Tensor, patch_smoothing: float) -> Tensor:
        self.check_smoothing(patch_smoothing)
        if not patch_smoothing:
            return detail
        parts = self.split(detail)
        for i, stream_input in enumerate(self.stream_inputs):
            if stream_input.smooths:
                rows, columns = self.run.units[0].grid or (1, 1)
                height, width = self.run.units[0].image_size or parts[i].shape[-2:]
                parts[i] = smoothed(parts[i], (patch_smoothing * height / rows, patch_smoothing * width / columns))
        return torch.cat([part.flatten(1) for part in parts], 1)


def stream_place(run: Run, gradient: bool) -> MultiStream:
    """All entries of a batch, by one forward pass; ``gradient``: and one backward pass."""
    if run.multi_stream:
        layout = slices(run.stream_sizes)
    elif not run.modality.read.embeds:  # a detector whose queries stand among its patches, or attend to none of them
        layout = {run.modality.stream: slice(0, run.length)}
    else:
        tokens = run.batch.tensors[run.modality.main].shape[1]
        rest = run.length - tokens
        layout = slices({"image": rest, "text": tokens} if run.study.front else {"text": tokens, "image": rest})
        layout = layout if rest else {run.modality.stream: slice(0, tokens)}  # images are among the tokens
    stream_inputs: list[StreamInput] = []  # positions that the model brings itself have none
    for stream in layout:
        stream_inputs += run.modality.part(stream, run.batch)[0].mask.stream_inputs(stream, layout, run, run.modality)
    if not stream_inputs:
        raise NotOffered("none of the model's streams is made of numbers or words.")
    leaves: dict[int, Tensor] = {}

    def leaf(number: int, tensor: Tensor) -> Tensor:
        leaves[number] = as_leaf(tensor)
        return leaves[number].clone()  # a leaf itself must not be written into, and some models do that

    tensors = {i: stream_input.floats(run.batch) for i, stream_input in enumerate(stream_inputs)}
    floats = {stream_inputs[i].name: leaf(i, tensor) for i, tensor in tensors.items() if tensor is not None}
    swaps = {i: stream_input.swap(run.batch, partial(leaf, i)) for i, stream_input in enumerate(stream_inputs)}
    looked_up = {i: swap for i, swap in swaps.items() if swap is not None}
    with SavedBytes(run.modality.model) as saved, torch.enable_grad():
        with SwapEmbeddings(list(looked_up.values())):
            logits = run.output.logits(run.batch.with_tensors(**floats))
        require_undisturbed(run, logits, graph=True)
        values_B = run.scalars(logits)
    run.forwards_B += 1
    for i, swap in looked_up.items():
        if swap.weight_used is None:
            raise NotOffered(
                f"the word embedding of the {stream_inputs[i].stream!r} stream was not found: its ids never pass "
                "torch's embedding lookup."
            )
        stream_inputs[i].weight = swap.weight_used.detach()
    numbers = [leaves[i] for i in range(len(stream_inputs))]
    slopes, due = None, INPUT_SLOPES not in run.study.undisturbed
    if gradient or due:
        trace = Traced(values_B, logits, numbers, BeforeAttention(run.batch.size, run.length))
        each = run.differentiated(trace, numbers) if gradient else trace.gradients(numbers)
        slopes = torch.cat([lifted(g).flatten(1) for g in each], 1)
    space = MultiStream(
        run, stream_inputs, numbers, max(1, saved.total // run.batch.size), slopes if gradient else None
    )
    if due and slopes is not None:
        space.require_slopes(slopes)
    run.notes.update(run.study.warnings)
    return space


# Which place an option names.

PLACES = ("input", "word_embeddings", "embeddings", "tokens")
Where = Annotated[str, OneOf(*PLACES)] | None
SAME = {"word_embeddings": "input", "tokens": "embeddings"}  # other names of the same places


def gradient_space(run: Run, at: str | None, gradient: bool = False) -> InputSpace:
    """Return the place that ``at`` names, by one forward pass; ``gradient``: and one backward pass.

    "input": word embeddings, pixels or floats, of all streams at once. "embeddings": the vectors that enter the first
    block. None: the input, except where it is not one tensor, or its steps are not the model's positions.
    """
    wanted = None if at is None else SAME.get(at, at)
    if run.multi_stream and wanted == "embeddings":
        raise NotOffered(
            "at='embeddings' is the entrance to the first block, and each stream of this model has one of its own. Use "
            "at='input': the word embeddings, pixels and vectors of all streams together."
        )
    if run.multi_stream or (run.modality.read.joint and wanted != "embeddings"):
        return stream_place(run, gradient)
    text = run.modality.read.embeds
    if run.attended is not None and not (text or run.modality.place.pixels) and wanted != "input":
        if set(run.attended.units[0].labels) & entering(run):
            return _with_columns(run, run.attended, gradient)
        wanted = "input"  # what enters the first block belongs to no unit
    if (
        (wanted == "input" or not run.study.sites)
        and wanted != "embeddings"
        and len(run.modality.mask.arguments(run)) > 1
    ):
        return stream_place(run, gradient)
    elsewhere = not (text or run.modality.place.pixels) or (
        text and run.study.extra > 0
    )  # the input may not be the place
    # What the graph keeps is only asked for if other points follow.
    saved = None if gradient else SavedBytes(run.modality.model)
    with saved or nullcontext():
        trace = run.traced(None, entrance=wanted == "embeddings" or (wanted is None and elsewhere))
    first = trace.leaves[0]
    # Is the input no single tensor, or are its entries not the units (raw audio, video)?
    if text or run.modality.place.pixels:
        several = text and run.study.extra > 0
    else:
        several = run.modality.read.has_categories or len(trace.leaves) > 1 or first.ndim < 2 or _no_steps(run, first)
    chosen = wanted or ("embeddings" if several else "input")
    _refuse_place(run, trace, chosen)
    leaf_count = 0 if text else sum(any(v is leaf for v in trace.seen.vectors) for leaf in trace.leaves)
    entrance = Entrance.of(trace, leaf_count) if chosen == "embeddings" else None
    whole = first if trace.main is None else trace.main
    inputs = whole if entrance is None else trace.tokens()
    plain = not (text or run.modality.place.pixels or run.modality.place.named_columns)
    if entrance is None and plain and _no_steps(run, inputs):
        raise NotOffered(
            f"the input has {inputs.shape[1]} steps of {inputs[0, 0].numel()} numbers, and the model attends over "
            f"{run.length} positions of its own making: which belongs to which is not known. Use "
            "at='embeddings'."
        )
    due = INPUT_SLOPES not in run.study.undisturbed
    slopes = run.differentiated(trace, [inputs])[0] if gradient else trace.gradients([inputs])[0] if due else None
    if entrance is not None:
        inputs, slopes = trace.batch_first(inputs), None if slopes is None else trace.batch_first(slopes)
    slopes = None if slopes is None else lifted(slopes)
    point_bytes = max(1, saved.total // run.rows_run) if saved else 0
    inputs = inputs.expand(run.batch.size, *inputs.shape[1:])  # of texts that begin alike one was run for all
    space = SingleInput(run, inputs.detach(), entrance, point_bytes, slopes if gradient else None)
    if due and slopes is not None:
        space.require_slopes(slopes)
    run.notes.update(run.study.warnings)
    return space


def _refuse_place(run: Run, trace: Traced, chosen: str) -> None:
    """Raise where gradients at this place would not be those of single units."""
    if chosen == "embeddings" and isinstance(run.study.trouble, Misplaced):
        raise Misplaced(*run.study.trouble.args)
    if chosen == "input" and trace.main is None and len(trace.leaves) > 1:
        raise NotOffered(
            f"at='input' needs one tensor of floats or one of token ids; this input has {len(trace.leaves)} (columns "
            "that are looked up count, too). Use at='embeddings'."
        )
    if chosen == "input" and run.modality.place.reads_beside(run.batch):
        raise NotOffered(
            "at='input' needs one tensor of floats, and units of this input belong to several: use at='embeddings'."
        )


def _with_columns(run: Run, attended: Run, gradient: bool) -> InputSpace:
    """Return the vectors that enter the first block of a table model, with the columns that go around it."""
    before = attended.forwards_B.copy()
    tokens = gradient_space(attended, "embeddings")
    run.setup_forwards += round(float((attended.forwards_B - before).sum()))
    attended.forwards_B[:] = before
    assert isinstance(tokens, SingleInput)
    space = TokensAndColumns(run, tokens)
    if gradient:
        space.gradient = lifted(space.gradient_at(space.inputs, run.batch.explained))
    return space


def _no_steps(run: Run, leaf: Tensor) -> bool:
    """Its second axis does not hold the positions that the model attends over: sound, or the frames of a video."""
    return not run.modality.place.in_steps(leaf, run.batch, run.length)
