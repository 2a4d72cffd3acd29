"""Padding: what a model hides by itself, and whether its head reads any."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from whyformer.borrow import known_about, modules_of
from whyformer.capture.intercept import module_names
from whyformer.capture.record import observe
from whyformer.capture.roles import Observe
from whyformer.errors import BadInput
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.output import Output
from whyformer.study.facts import Study
from whyformer.study.readout import readout_rows

HIDDEN = 1e-4  # of a row's attention: what a mask leaves over
READS_PADDING = (
    "the head reads {place} of each input, which is padding here (the mask hides it), so that no row of attention that "
    "belongs to the input feeds it. Pad on the {other} side, or give inputs one by one, without padding."
)


def hidden_padding(modality: Modality, batch: Batch) -> Batch:
    """Find padding that a home-made model masks by itself (``ids == 0`` in its forward), where no mask was passed.

    A candidate is a run of the embedding's padding index at either end; it is padding if nobody attends to it.
    """
    if not modality.padding_in_doubt:
        return batch
    if not modality.embeds or any("mask" in name for name in batch.tensors):
        main = batch.tensors.get(modality.main)
        doubtful = [  # what attention_mask and padding masks mean is agreed upon
            name
            for name, mask in batch.tensors.items()
            if name.endswith("mask") and name != "attention_mask" and "padding" not in name
            if main is not None and mask.shape == main.shape[:2]
        ]
        return _right_way_round(modality, batch, doubtful) if doubtful else batch
    if surely_unpadded(modality, batch, padding_index(modality)):
        return batch
    candidates = _padding_runs(modality, batch.tensors[modality.main])
    rows = candidates.any(1).nonzero()[:, 0].tolist()
    if not rows:
        return batch
    facts = known_about(modality.model)
    if "hides padding" not in facts:
        one = replace(batch.select([rows[0]]), raw=())  # whatever of it is explained later
        output = Output(modality, one)  # before it is observed: it may have to try the model out
        record = observe(partial(output.logits, one), Observe(1, module_names(modality.model)))
        maps = [site.attention_BHQK[0] for site in record.sites if site.attention_BHQK.shape[-1] == candidates.shape[1]]
        columns = [attention_HQK[:, :, candidates[rows[0]]] for attention_HQK in maps]
        facts["hides padding"] = bool(columns) and all(not c.any() for c in columns)
    return replace(batch, keep_BN=~candidates) if facts["hides padding"] else batch


def _right_way_round(modality: Modality, batch: Batch, doubtful: list[str]) -> Batch:
    """A home-made mask may mean "hide" by True, as torch's own do: then nobody attends to what was taken for real."""
    keep_BN = batch.keep_BN
    if keep_BN is None and not modality.embeds:
        keep_BN = modality.keep(batch, batch.tensors[modality.main].shape[1], None)
    if keep_BN is None:
        return batch
    rows = (keep_BN.any(1) & ~keep_BN.all(1)).nonzero()[:, 0].tolist()  # where it hides something, but not all
    facts = known_about(modality.model)
    key = ("True hides", *doubtful)
    if key not in facts and rows:
        one, keep_N = replace(batch.select([rows[0]]), raw=()), keep_BN[rows[0]]
        output = Output(modality, one)  # before it is observed: it may have to try the model out
        record = observe(partial(output.logits, one), Observe(1, module_names(modality.model)))
        maps = [site.attention_BHQK[0] for site in record.sites if site.attention_BHQK.shape[-1] == len(keep_N)]
        attended = [m[:, :, keep_N].any() for m in maps]
        facts[key] = bool(maps) and not any(attended) and all(m[:, :, ~keep_N].any() for m in maps)
    if not facts.get(key):
        return batch
    if batch.raw:  # the mask was made of a text by us: it is the mask that was wrong, not what is real
        return batch.with_tensors(**{name: ~batch.tensors[name].bool() for name in doubtful})
    return replace(batch, keep_BN=~keep_BN)


def surely_unpadded(modality: Modality, batch: Batch, index: int | None) -> bool:
    """No row begins or ends with a padding index, where what is known about the inputs says so without asking a GPU."""
    length = batch.tensors[modality.main].shape[1]
    rows: list[list[int]] = [facts.get("ids", []) if isinstance(facts, dict) else [] for facts in batch.encodings]
    known = len(rows) == batch.size and all(len(row) == length for row in rows)
    return index is None or (known and not any(index in (row[0], row[-1]) for row in rows))


def padding_index(modality: Modality) -> int | None:
    """The token that the model's embedding takes for padding, if it says so."""
    tables = (m for m in modules_of(modality.model) if isinstance(m, nn.Embedding) and m.padding_idx is not None)
    table = next(tables, None)
    return None if table is None else int(table.padding_idx or 0)


def _padding_runs(modality: Modality, ids_BN: Tensor) -> Tensor:
    """(B, N) the runs of padding indices at the start and end of each row."""
    index = padding_index(modality)
    if index is None:
        return torch.zeros_like(ids_BN, dtype=torch.bool)
    pad = torch.eq(ids_BN, index).int()
    return (pad.cumprod(1) + pad.flip(1).cumprod(1).flip(1)).bool()


def reads_padding(row: int, first: bool) -> str:
    """What stands against a head that reads this row; first: it reads at the beginning."""
    place, other = (f"position {row}", "right") if first else ("the last position", "left")
    return READS_PADDING.format(place=place, other=other)


def require_real_rows(modality: Modality, batch: Batch, keep_BN: Tensor, study: Study) -> int:
    """Refuse a head that reads a fixed end of its rows where that is padding; how many passes it took to know.

    Which it is, the first row or the first real one, an input without padding does not tell. Asked once per model.
    """
    assert study.readout is not None
    first, last, facts = study.readout.kind != "last", study.sites[-1], known_about(modality.model)
    padded = (~keep_BN[:, 0 if first else -1]).nonzero()[:, 0].tolist()
    asked = ("reads real rows", first)
    if not padded or asked in facts or study.readout.kind == "mean" or last.queries != last.keys:
        return 0
    one = batch.select(padded[:1])
    names, output = module_names(modality.model), Output(modality, one)
    rows = readout_rows(partial(output.logits, one), names, len(study.sites) - 1).rows
    if rows and not keep_BN[padded[0], rows].any():
        raise BadInput(reads_padding(rows[0], first))
    facts[asked] = True
    return 1
