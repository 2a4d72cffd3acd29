"""Games over one input: the model's outputs for variants in which some parts are masked, each of them run once."""

from __future__ import annotations

import warnings
import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.engines.perturbation.players import leave_one_out
from whyformer.engines.perturbation.variants import Filled, Variants
from whyformer.errors import ModelFailed, NotOffered, one_of
from whyformer.files import append_to, private_folder, writing
from whyformer.inputs.batch import Batch
from whyformer.inputs.tokens import places, spoken_at
from whyformer.loan.borrow import fact, known_about, modules_of
from whyformer.loan.digests import Undescribed, digest
from whyformer.run import Run
from whyformer.shapes import Array

# Variants of a prompt share its beginning: a language model has read that once, and goes on from there.

SHORTEST = 8  # tokens that are worth keeping
BY_LENGTH = ("dynamic", "longrope")  # rotary embeddings whose angles depend on the length of the whole text
TOLERANCE = 1e-3  # of the largest logit, by which a continued text may differ from one that is read as a whole


class Prefix:
    """Cache of a language model's keys and values for one input, for variants that begin like it.

    The cache can be cut at any token only if every layer holds keys and values of every token. A model whose layers
    keep another state (Mamba, linear attention, convolutions), that rejects the cache, or that returns other logits
    when it continues from it, reads variants as a whole.
    """

    def __init__(self, run: Run, row: int) -> None:
        self.run, self.row = run, row
        self.reused = self.read = 0  # tokens
        self._memory: list[tuple[Tensor, Tensor]] | None = None
        parameters = run.modality.read.parameters
        one = run.batch.select([row])
        self.offered = (
            run.output.causal
            and {"past_key_values", "use_cache", "attention_mask"} <= parameters.keys()
            and one.keep_BN is not None
            and set(one.tensors) <= {run.modality.main, "attention_mask"}
            and not run.modality.read.joint
            and known_about(run.modality.model).get("goes on", True)
        )
        if self.offered:
            assert one.keep_BN is not None
            self.ids = one.tensors[run.modality.main][0][one.keep_BN[0]]

    @property
    def share(self) -> float:
        """Return the share of the tokens of variants that were not read again."""
        return self.reused / max(self.read, 1)

    def logits(self, batch: Batch) -> Tensor:
        """Return (M, C) logits of variants of the input, as ``run.forward`` does."""
        run = self.run
        length = self._shared_length(batch) if self.offered else 0
        self.read += batch.size * run.modality.place.length(batch)
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
        """Return (M, C) logits by full passes, from now on."""
        known_about(self.run.modality.model)["goes on"] = self.offered = False
        return self.run.forward(batch, [self.row] * batch.size)

    def _shared_length(self, batch: Batch) -> int:
        """Return how many tokens all variants begin with, before the first position that is explained."""
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
        """Return (M, C) logits from the cached beginning; None where the model has no cache that can be cut."""
        from transformers import DynamicCache

        run, output = self.run, self.run.output
        if self._memory is None:
            self._memory = self._read()
        if not self._memory:
            return None
        memory = DynamicCache()  # of the first tokens, once per variant
        for number, (keys, values) in enumerate(self._memory):
            memory.update(*(t[:, :, :length].expand(batch.size, -1, -1, -1) for t in (keys, values)), number)
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

    def _read(self) -> list[tuple[Tensor, Tensor]]:
        """Return keys and values of the input by layer; none where a layer keeps another state."""
        from transformers import DynamicCache

        run = self.run
        one = {run.modality.main: self.ids[None], "attention_mask": torch.ones_like(self.ids[None])}
        keep = {"logits_to_keep": 1} if "logits_to_keep" in run.modality.read.parameters else {}
        cache = DynamicCache()
        run.setup_forwards += 1
        try:
            run.modality.read.call(Batch(one), use_cache=True, past_key_values=cache, **keep)
        except ModelFailed:
            return []
        memory: list[Any] = [(getattr(layer, "keys", None), getattr(layer, "values", None)) for layer in cache.layers]
        cut = [isinstance(t, Tensor) and t.ndim == 4 and t.shape[2] == len(self.ids) for pair in memory for t in pair]
        return memory if all(cut) else []


@fact
def _rotates_by_length(model: nn.Module) -> bool:
    """Return whether keys of a token depend on the length of its text, so that a shorter text needs other keys."""
    types = [getattr(module, "rope_type", None) for module in modules_of(model)]
    each = [kind for kinds in types for kind in (kinds.values() if isinstance(kinds, dict) else [kinds])]
    return any(kind in BY_LENGTH for kind in each)


# The first two columns of what is said. The third: is the target still predicted. A fourth, for detectors: has another
# query taken the object over; for learning: the logit of the second most likely class.
VALUES = ("probability", "logit")
COLUMNS = 3


class Game:
    """Cache of the model's outputs for variants of one input: each variant is run once.

    say: (M, P) present parts → (M, columns): probability and logit of the target, and whether it is the prediction;
    more where ``columns`` says so, or one number alone (:func:`game_of_scores`).
    batches: which rows of (M, P) go through the model together.
    whole: what is said of the input with all of its parts, where that is known. prefix: what their beginning saved.
    """

    def __init__(
        self,
        parts: int,
        say: Callable[[Array], Array],
        *,
        batches: Callable[[Array], Sequence[Sequence[int]]] | None = None,
        store: VariantStore | None = None,
        draws: int = 1,
        columns: int = COLUMNS,
        whole: Sequence[float] | None = None,
        prefix: Prefix | None = None,
    ) -> None:
        self.parts, self.draws, self.columns, self.prefix = parts, draws, columns, prefix
        self.forwards = 0  # variants that were run now, not read from the store
        self._say = say
        self._batches = batches or (lambda present_MP: [range(len(present_MP))])
        self._store = store
        self._known: dict[bytes, Array] = store.load() if store is not None else {}
        if whole is not None:
            self._known[np.ones(parts, dtype=bool).tobytes()] = np.array(whole)

    def ask(self, present_MP: Array) -> Array:
        """Return (M, columns) the outputs for each variant; only new ones are run, batch by batch."""
        present_MP = np.ascontiguousarray(present_MP, dtype=bool)
        missing = self.unknown(present_MP)
        for rows in self._batches(missing) if len(missing) else ():
            part = missing[list(rows)]
            self.tell(part, np.asarray(self._say(part), dtype=float))
        return np.array([self._known[row.tobytes()] for row in present_MP]).reshape(len(present_MP), self.columns)

    def unknown(self, present_MP: Array) -> Array:
        """Return the variants that were not run yet, each once."""
        rows = {row.tobytes(): row for row in np.ascontiguousarray(present_MP, dtype=bool)}
        new = [row for key, row in rows.items() if key not in self._known]
        return np.stack(new) if new else np.zeros((0, self.parts), dtype=bool)

    def tell(self, present_MP: Array, said: Array) -> None:
        """Store the outputs (M, columns) for variants that were run just now."""
        self.forwards += len(present_MP) * self.draws
        if self._store is not None:  # written at once: what is interrupted goes on from here
            self._store.append(present_MP, said)
        self._known |= {row.tobytes(): values for row, values in zip(present_MP, said, strict=True)}

    @property
    def said(self) -> Array:
        """Return (N, columns) all outputs so far."""
        return np.array(list(self._known.values())).reshape(len(self._known), self.columns)

    def scores(self, present_MP: Array) -> Array:
        """Return (M,) the first column: the explained value in a game of scores."""
        return self.ask(present_MP)[:, 0]

    def values(self, present_MP: Array, value: str = "probability") -> Array:
        """Return (M,) the probability or logit of the target."""
        one_of("value", value, VALUES)
        return self.ask(present_MP)[:, VALUES.index(value)]

    def stays(self, present_MP: Array) -> Array:
        """Return (M,) 1 where the target is (still) the prediction."""
        stays_M: Array = self.ask(present_MP)[:, 2]
        if np.isnan(stays_M).any():
            raise NotOffered(
                "an answer that is explained as a whole is no decision that could flip: use metrics of its "
                "log-probability (deletion, aopc), not positive_perturbation or negative_perturbation."
            )
        return stays_M

    def whole(self, value: str = "probability") -> float:
        return float(self.values(np.ones((1, self.parts), dtype=bool), value)[0])

    def empty(self, value: str = "probability") -> float:
        """Return the value for the variant with all parts masked."""
        return float(self.values(np.zeros((1, self.parts), dtype=bool), value)[0])

    def drops(self, value: str = "probability") -> Array:
        """Return (P,) how much the value falls without each part: leave-one-out."""
        values = self.values(leave_one_out(self.parts), value)
        return values[0] - values[1:]

    def second_differences(self, pairs_M2: Array) -> Array:
        """Return (M,) how much more two parts do together than each alone, the mean with none and all of the others."""
        either = np.zeros((len(pairs_M2), 4, self.parts), dtype=bool)  # neither, the first, the second, both
        rows = np.arange(len(pairs_M2))
        for place, at in ((0, (1, 3)), (1, (2, 3))):
            for column in at:
                either[rows, column, pairs_M2[:, place]] = True
        flat = either.reshape(-1, self.parts)
        said = self.scores(np.concatenate([flat, ~flat])).reshape(2, -1, 4)
        second: Array = (said @ np.array([1.0, -1.0, -1.0, 1.0])).mean(0)  # the same signs seen from all of them
        return second


def saved_by_prefix(games: Sequence[Game | None]) -> dict[str, Tensor]:
    """Return the check "prefix_reused": the share of tokens of variants that were not read again, where any was."""
    shares = [0.0 if g is None or g.prefix is None else g.prefix.share for g in games]
    return {"prefix_reused": torch.tensor(shares)} if any(shares) else {}


def game_of_scores(run: Run, row: int, variants: Variants, parts: int, whole_first: bool = False) -> Game:
    """Return the game whose one output for a variant is the explained value.

    whole_first: the first variant is the input as it is, which then needs no pass of its own.
    """
    prefix = Prefix(run, row)
    together = whole_first and not prefix.offered and run.waits and isinstance(variants, Filled) and variants.draws == 1
    batches: Callable[[Array], Sequence[Sequence[int]]] = partial(variants.batches, size=run.batch_size)
    if run.batch.size == 1:  # of several inputs each is a step
        batches = lambda present_MP: run.track(variants.batches(present_MP, run.batch_size), "masking")  # noqa: E731
    return Game(
        parts,
        partial(_score, run, row, variants, prefix, together),
        batches=batches,
        draws=variants.draws,
        columns=1,
        whole=None if together else [float(run.value_B[row])],
        prefix=prefix,
    )


def _score(run: Run, row: int, variants: Variants, prefix: Prefix, together: bool, present_MP: Array) -> Array:
    """Return (M, 1) the mean explained value over draws."""
    batches = [variants.batch(present_MP, draw) for draw in range(variants.draws)]
    shorter = prefix.logits if prefix.offered else None
    first = together and bool(present_MP[0].all())
    drawn = [run.score(batch, row, shorter, first).double().cpu().numpy() for batch in batches]
    return variants.mean(drawn)[:, None]


# On disk: what was said is appended as it comes, so that a stopped job goes on.


class VariantStore:
    """One file per input, of records of one size: which parts were present (bits), a few numbers, and a checksum."""

    def __init__(self, path: Path, parts: int, columns: int = COLUMNS) -> None:
        self.path, self.parts = path, parts
        self.record = np.dtype(
            [("present", "u1", ((parts + 7) // 8,)), ("said", "<f8", (columns,)), ("checksum", "<u4")]
        )

    def load(self) -> dict[bytes, Array]:
        """Return the whole records; half a record (a job killed while writing) and changed bytes are left out."""
        if not self.path.is_file():
            return {}
        data = self.path.read_bytes()
        size = self.record.itemsize
        starts, at = [], 0
        while at + size <= len(data):
            if self._checksum(data[at : at + size - 4]) == int.from_bytes(data[at + size - 4 : at + size], "little"):
                starts.append(at)
                at += size
            else:  # whole records may follow damaged ones
                at += 1
        # The file stays as it is: another process may be adding to it.
        records = np.frombuffer(b"".join(data[at : at + size] for at in starts), self.record)
        present = np.unpackbits(records["present"], axis=1, count=self.parts).astype(bool)
        return {row.tobytes(): np.array(said) for row, said in zip(present, records["said"], strict=True)}

    def append(self, present_MP: Array, said_MX: Array) -> None:
        records = np.zeros(len(present_MP), self.record)
        records["present"] = np.packbits(present_MP, axis=1)
        records["said"] = said_MX
        for number, record in enumerate(records):
            records["checksum"][number] = self._checksum(record.tobytes()[:-4])
        with writing(self.path), append_to(self.path) as file:
            file.write(records.tobytes())

    def _checksum(self, record: bytes) -> int:
        return zlib.crc32(record, zlib.crc32(self.path.name.encode()))


def cache_of(cache: str | Path | None, question: Callable[[], Any]) -> tuple[Path | None, str]:
    """The folder of a cache, made if it is not there, and a name for all that its files depend on.

    Where no name can be found, there is no folder either: nothing is read from it, or written.
    """
    if cache is None:
        return None, ""
    folder = private_folder(cache, "cache")
    name = _name_of(f"cache={str(folder)!r} is not used", question=question())
    return (None, "") if name is None else (folder, name)


def cached_file(folder: Path, suffix: str, **contents: Any) -> Path | None:
    """The file of a cache that depends on all of this; None where that cannot be described."""
    name = _name_of(f"cache={str(folder)!r} is not used here", **contents)
    return None if name is None else folder / f"{name}.{suffix}"


def _name_of(trouble: str, **contents: Any) -> str | None:
    try:
        return digest(**contents)
    except Undescribed as reason:
        warnings.warn(f"{trouble}: {reason}", RuntimeWarning, stacklevel=4)
        return None
