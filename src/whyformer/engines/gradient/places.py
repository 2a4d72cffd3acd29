"""Which place an option names."""

from __future__ import annotations

from typing import Annotated

from torch import Tensor
from torch.overrides import BaseTorchFunctionMode

from whyformer.capture.leaves import Entrance
from whyformer.engines.gradient.input_space import InputSpace, SingleInput, lifted
from whyformer.engines.gradient.multi_stream import stream_place
from whyformer.errors import NotOffered
from whyformer.memory import SavedBytes
from whyformer.parameters import OneOf
from whyformer.run import Run
from whyformer.study.slopes import INPUT_SLOPES

PLACES = ("input", "word_embeddings", "embeddings", "tokens")
Where = Annotated[str, OneOf(*PLACES)] | None
SAME = {"word_embeddings": "input", "tokens": "embeddings"}  # other names of the same places


def gradient_space(run: Run, at: str | None, gradient: bool = False) -> InputSpace:
    """The place ``at`` names, by one forward pass; ``gradient``: and one backward pass.

    "input": the word embeddings of a text, the pixels of an image, the floats of a table; with several streams, those
    of all of them at once. "embeddings": the vectors that enter the first block, positions and types included. None:
    the input, except where that is neither one tensor nor several streams (tables with categories), or its steps are
    not the model's positions (raw audio, video).
    """
    wanted = None if at is None else SAME.get(at, at)
    if run.multi_stream and wanted == "embeddings":
        raise NotOffered(
            "at='embeddings' is the entrance to the first block, and each stream of this model has one of its own. Use "
            "at='input': the word embeddings, pixels and vectors of all streams together."
        )
    if run.multi_stream or (run.modality.multi_input and wanted != "embeddings"):
        return stream_place(run, gradient)
    with SavedBytes(run.modality.model) as saved:
        trace = run.traced(BaseTorchFunctionMode())
    chosen = wanted or ("embeddings" if _has_several_inputs(run, trace.leaves) else "input")
    text = run.modality.embeds
    if chosen == "input" and trace.main is None and len(trace.leaves) > 1:
        raise NotOffered(
            f"at='input' needs one tensor of floats or one of token ids; this input has {len(trace.leaves)} (columns "
            "that are looked up count, too). Use at='embeddings'."
        )
    leaf_count = 0 if text else sum(any(v is leaf for v in trace.seen.vectors) for leaf in trace.leaves)
    entrance = Entrance.of(trace, leaf_count) if chosen == "embeddings" else None
    whole = trace.leaves[0] if trace.main is None else trace.main
    inputs = whole if entrance is None else trace.tokens()
    plain = not (text or run.modality.pixels or run.modality.named_columns)
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
    point_bytes = max(1, saved.total // run.rows_run)
    inputs = inputs.expand(run.batch.size, *inputs.shape[1:])  # of texts that begin alike one was run for all
    space = SingleInput(run, inputs.detach(), entrance, point_bytes, slopes if gradient else None)
    if due and slopes is not None:
        space.require_slopes(slopes)
    run.notes.update(run.study.doubts)
    return space


def _has_several_inputs(run: Run, leaves: list[Tensor]) -> bool:
    """The input is no single tensor, or its entries are not the units (raw audio, video)."""
    if run.modality.embeds:
        return run.study.extra > 0
    if run.modality.pixels:
        return False
    if run.modality.has_categories:
        return True
    return len(leaves) > 1 or leaves[0].ndim < 2 or _no_steps(run, leaves[0])


def _no_steps(run: Run, leaf: Tensor) -> bool:
    """Its second axis does not hold the positions that the model attends over: sound, or the frames of a video."""
    return not run.modality.in_steps(leaf, run.batch, run.length)
