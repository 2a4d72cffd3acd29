"""Variants of a prompt share its beginning: a language model has read that once, and goes on from there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.borrow import known_about, modules_of
from whyformer.errors import ModelFailed
from whyformer.inputs.batch import Batch
from whyformer.inputs.language import places, spoken_at
from whyformer.run import Run

SHORTEST = 8  # tokens that are worth keeping
BY_LENGTH = ("dynamic", "longrope")  # rotary embeddings whose angles depend on the length of the whole text
TOLERANCE = 1e-3  # of the largest logit, by which a continued text may differ from one that is read as a whole


class Prefix:
    """What a language model remembers of one input (its keys and values), for the variants that begin like it.

    The cache can be cut at any token only if every layer holds keys and values of every token. A model whose layers
    keep another state (Mamba, linear attention, convolutions), that rejects the cache, or that returns other logits
    when it continues from it, reads variants as a whole.
    """

    def __init__(self, run: Run, row: int) -> None:
        self.run, self.row = run, row
        self.reused = self.read = 0  # tokens
        self._memory: list[tuple[Tensor, Tensor]] | None = None
        parameters = run.modality.parameters
        one = run.batch.select([row])
        self.offered = (
            run.output.causal
            and {"past_key_values", "use_cache", "attention_mask"} <= parameters.keys()
            and one.keep_BN is not None
            and set(one.tensors) <= {run.modality.main, "attention_mask"}
            and not run.modality.multi_input
            and known_about(run.modality.model).get("goes on", True)
        )
        if self.offered:
            assert one.keep_BN is not None
            self.ids = one.tensors[run.modality.main][0][one.keep_BN[0]]

    @property
    def share(self) -> float:
        """How much of what the variants hold was not read again."""
        return self.reused / max(self.read, 1)

    def logits(self, batch: Batch) -> Tensor:
        """(M, C) of variants of the input, as ``run.forward`` has them."""
        run = self.run
        length = self._shared_length(batch) if self.offered else 0
        self.read += batch.size * run.modality.length(batch)
        if length < SHORTEST:
            return run.forward(batch, [self.row] * batch.size)
        logits = self._continued(batch, length)
        if logits is None:
            return self._refused(batch)
        known = known_about(run.modality.model)
        if "goes on" not in known:
            whole = run.output.logits(batch.select([0])).float()
            run.setup_forwards += 1
            # The probability of an answer may be as small as it likes.
            least = 0 if batch.answers and run.scalar == "probability" else 1
            if (whole - logits[:1].float()).abs().max() > TOLERANCE * whole.abs().max().clamp(min=least):
                return self._refused(batch)
            known["goes on"] = True
        self.reused += batch.size * length
        return logits

    def _refused(self, batch: Batch) -> Tensor:
        """(M, C) by full passes, from now on."""
        known_about(self.run.modality.model)["goes on"] = self.offered = False
        return self.run.forward(batch, [self.row] * batch.size)

    def _shared_length(self, batch: Batch) -> int:
        """Tokens that all variants begin with, before the first that something is asked after."""
        keep, mask = batch.keep_BN, batch.tensors.get("attention_mask")
        if keep is None or not bool(keep.all()) or (mask is not None and not bool(mask.all())):
            return 0
        ids = batch.tensors[self.run.modality.main]
        if ids.shape[1] != len(self.ids) and _rotates_by_length(self.run.modality.model):
            return 0
        width = min(ids.shape[1], len(self.ids))
        same_N = (ids[:, :width] == self.ids[:width]).all(0)
        asked = min(min(row) for row in spoken_at(batch)) if batch.answers else min(places(batch))
        return min(int(same_N.cumprod(0).sum()), asked)

    @torch.no_grad()
    def _continued(self, batch: Batch, length: int) -> Tensor | None:
        """(M, C) from the cached beginning; None where the model has no cache that can be cut."""
        run, output = self.run, self.run.output
        memory = self._remembered(batch.size, length)
        if memory is None:
            return None
        ids = batch.tensors[run.modality.main]
        rest = replace(
            batch,
            tensors={run.modality.main: ids[:, length:], "attention_mask": torch.ones_like(ids)},
            keep_BN=torch.ones_like(ids[:, length:], dtype=torch.bool),
            positions=tuple(p - length for p in batch.positions),
            answers=tuple(answer.moved(-length) for answer in batch.answers),
        )
        before = dict(output.extra)
        output.extra = before | {"use_cache": True, "past_key_values": memory}
        try:
            logits = output.logits(rest)
        except ModelFailed:  # a full pass decides whether the inputs or the cache are at fault
            return None
        finally:
            output.extra = before
        run.count([self.row] * batch.size)
        return logits

    def _remembered(self, copies: int, length: int) -> Any:
        """Keys and values of the first tokens, once per variant; None where the cache cannot be cut."""
        from transformers import DynamicCache

        if self._memory is None:
            self._memory = self._read()
        if not self._memory:
            return None
        memory = DynamicCache()
        for number, (keys, values) in enumerate(self._memory):
            repeated = (t[:, :, :length].expand(copies, -1, -1, -1) for t in (keys, values))
            memory.update(*repeated, number)
        return memory

    def _read(self) -> list[tuple[Tensor, Tensor]]:
        """Keys and values of the input, layer by layer; none where a layer keeps anything else."""
        from transformers import DynamicCache

        run = self.run
        one = {run.modality.main: self.ids[None], "attention_mask": torch.ones_like(self.ids[None])}
        keep = {"logits_to_keep": 1} if "logits_to_keep" in run.modality.parameters else {}
        cache = DynamicCache()
        run.setup_forwards += 1
        try:
            run.modality.call(Batch(one), use_cache=True, past_key_values=cache, **keep)
        except ModelFailed:
            return []
        memory: list[Any] = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
        cut = [isinstance(t, Tensor) and t.ndim == 4 and t.shape[2] == len(self.ids) for pair in memory for t in pair]
        return memory if all(cut) else []


def _rotates_by_length(model: nn.Module) -> bool:
    """Keys of the same token differ between texts of different lengths, so a shorter text needs other keys."""
    known = known_about(model)
    if "rotates by length" not in known:
        types = [getattr(module, "rope_type", None) for module in modules_of(model)]
        each = [kind for kinds in types for kind in (kinds.values() if isinstance(kinds, dict) else [kinds])]
        known["rotates by length"] = any(kind in BY_LENGTH for kind in each)
    return bool(known["rotates by length"])
