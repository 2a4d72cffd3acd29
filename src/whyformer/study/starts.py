"""Where the input's own positions start among those of the attention: the first that changes with its first unit."""

from __future__ import annotations

from torch import Tensor

from whyformer.capture.inputs.embedding import SwapEmbedding
from whyformer.capture.outline import first_values
from whyformer.capture.probe import Readout
from whyformer.study.passes import Passes
from whyformer.subjects.base import Subject
from whyformer.subjects.image import ImageSubject
from whyformer.subjects.text import TextSubject


def text_starts(subject: TextSubject, run: Passes, names: dict[int, str], before_BHKD: Tensor) -> int:
    """The first position of the text, for models that put tokens of their own around it.

    ``before_BHKD`` are the values of the first attention.
    """

    def shift(embedding: Tensor) -> Tensor:
        other = embedding.clone()
        other[:, 0] = shifted(other[:, 0])
        return other

    def forward() -> Tensor:
        with SwapEmbedding(run.one.tensors[subject.main], subject.table(), shift):
            return run()

    return _first_moved(before_BHKD, first_values(forward, names)) or 0


def patches_start(
    subject: Subject,
    run: Passes,
    names: dict[int, str],
    before_BHKD: Tensor,
    grid: tuple[int, int] | None,
    readout: Readout,
) -> int | None:
    """The first patch, where it is in doubt: what the model adds may also come after the patches (YOLOS).

    A single added token is in front if it is the first position that is read, and behind if it is the last.
    """
    if not isinstance(subject, ImageSubject) or grid is None:
        return None
    added = before_BHKD.shape[2] - grid[0] * grid[1]
    if added < 1 or (added == 1 and readout.kind in {"first", "last"}):
        return None
    pixels = run.one.tensors[subject.main]
    rows, columns = pixels.shape[-2] // grid[0], pixels.shape[-1] // grid[1]
    other = pixels.clone()
    other[..., :rows, :columns] = shifted(other[..., :rows, :columns])
    changed = run.one.with_tensors(**{subject.main: other})
    return _first_moved(before_BHKD, first_values(lambda: run(changed), names))


def shifted(values: Tensor) -> Tensor:
    """Other numbers of about the same size."""
    return values * -1.5 + 0.1


def _first_moved(before_BHKD: Tensor, after_BHKD: Tensor) -> int | None:
    moved = (before_BHKD != after_BHKD).any(-1).any(1)[0].nonzero()[:, 0]
    return int(moved[0]) if len(moved) else None
