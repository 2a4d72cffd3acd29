"""One input with only some of its parts there: what the model says then, each variant asked of the model once."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, one_of

# From scores to an order of the parts, and from there to which parts are present as more and more of them go.


Array = np.ndarray[Any, Any]

FRACTIONS = tuple(i / 20 for i in range(21))  # 0, 5, …, 100 %


def order_of(scores_P: Array) -> Array:
    """Parts from the highest to the lowest score; ties keep their order."""
    return np.argsort(-np.asarray(scores_P, dtype=float), kind="stable")


def count_of(fraction: float, parts: int) -> int:
    """How many parts a fraction is: rounded up, so that any fraction above 0 is at least one."""
    return min(parts, math.ceil(fraction * parts - 1e-9))


def _first(order: Array, fractions: Sequence[float]) -> Array:
    """(F, P) the first parts of an order."""
    parts = len(order)
    chosen = np.zeros((len(fractions), parts), dtype=bool)
    for row, fraction in enumerate(fractions):
        chosen[row, order[: count_of(fraction, parts)]] = True
    return chosen


def without_top(scores_P: Array, fractions: Sequence[float] = FRACTIONS) -> Array:
    """(F, P) what is present when the highest scores are taken away (most relevant first)."""
    return ~_first(order_of(scores_P), fractions)


def without_bottom(scores_P: Array, fractions: Sequence[float] = FRACTIONS) -> Array:
    """(F, P) what is present when the lowest scores are taken away (least relevant first)."""
    return ~_first(order_of(scores_P)[::-1], fractions)


def only_top(scores_P: Array, fractions: Sequence[float] = FRACTIONS) -> Array:
    """(F, P) what is present when nothing but the highest scores is kept."""
    return _first(order_of(scores_P), fractions)


def leave_one_out(parts: int) -> Array:
    """(P + 1, P) everything, then everything without part 0, 1, …"""
    return np.concatenate([np.ones((1, parts), dtype=bool), ~np.eye(parts, dtype=bool)])


def random_sets(parts: int, sets: int, share: float | None, seed: int) -> Array:
    """(M, P) random sets of parts that go (True), the same for every method; of one size, or (None) of any."""
    generator = np.random.default_rng([seed, parts])
    gone = np.zeros((sets, parts), dtype=bool)
    for row in gone:
        size = int(generator.integers(1, parts + 1)) if share is None else max(1, count_of(share, parts))
        row[generator.permutation(parts)[:size]] = True
    return gone


def area(values_F: Array, fractions: Sequence[float]) -> float:
    """Area under a curve by trapezoids, divided by the width of its range."""
    x = np.asarray(fractions, dtype=float)
    if len(x) == 1:
        return float(values_F[0])
    widths = np.diff(x)
    return float((widths * (values_F[1:] + values_F[:-1]) / 2).sum() / (x[-1] - x[0]))


# One input with only some of its parts kept: what the model says then, each variant asked of the model once.


# The first two columns of what is said. The third: is the target still predicted. A fourth, for detectors: has another
# query taken the object over.
VALUES = ("probability", "logit")
COLUMNS = 3


class Game:
    """Every method and metric asks the same game, so a variant that two of them need is run once.

    say: (M, P) present parts → (M, 3): probability and logit of the target, and whether it is the prediction; more
    columns where ``columns`` says so.
    batches: which rows of (M, P) go through the model together.
    """

    def __init__(
        self,
        parts: int,
        say: Callable[[Array], Array],
        *,
        batches: Callable[[Array], Sequence[Sequence[int]]] | None = None,
        store: Store | None = None,
        draws: int = 1,
        columns: int = COLUMNS,
    ) -> None:
        self.parts, self.draws, self.columns = parts, draws, columns
        self.forwards = 0  # variants that were run now, not read from the store
        self._say = say
        self._batches = batches or (lambda present_MP: [range(len(present_MP))])
        self._store = store
        self._known: dict[bytes, Array] = store.load() if store is not None else {}

    def ask(self, present_MP: Array) -> Array:
        """(M, columns) what the model says of each variant; only new ones are run, batch by batch."""
        present_MP = np.ascontiguousarray(present_MP, dtype=bool)
        keys = [row.tobytes() for row in present_MP]
        new = list({key: i for i, key in enumerate(keys) if key not in self._known}.values())
        if new:
            missing = present_MP[new]
            for rows in self._batches(missing):
                part = missing[list(rows)]
                said = np.asarray(self._say(part), dtype=float)
                self.forwards += len(part) * self.draws
                if self._store is not None:  # written at once: what is interrupted goes on from here
                    self._store.append(part, said)
                self._known |= {row.tobytes(): values for row, values in zip(part, said, strict=True)}
        return np.array([self._known[key] for key in keys]).reshape(len(keys), self.columns)

    @property
    def said(self) -> Array:
        """(N, columns) everything that was said so far."""
        return np.array(list(self._known.values())).reshape(len(self._known), self.columns)

    def values(self, present_MP: Array, value: str = "probability") -> Array:
        """(M,) probability or logit of the target."""
        one_of("value", value, VALUES)
        return self.ask(present_MP)[:, VALUES.index(value)]

    def stays(self, present_MP: Array) -> Array:
        """(M,) 1 where the target is (still) the prediction."""
        return self.ask(present_MP)[:, 2]

    def whole(self, value: str = "probability") -> float:
        return float(self.values(np.ones((1, self.parts), dtype=bool), value)[0])

    def empty(self, value: str = "probability") -> float:
        """Nothing but what cannot be taken away."""
        return float(self.values(np.zeros((1, self.parts), dtype=bool), value)[0])

    def drops(self, value: str = "probability") -> Array:
        """(P,) how much the value falls without each part: leave-one-out."""
        values = self.values(leave_one_out(self.parts), value)
        return values[0] - values[1:]


# What the model said of the variants of an input, on disk: appended as it comes, so that a stopped job goes on.


Part = bytes | str | int | float | Tensor | Array | None  # what a name can be made of

FORMAT = b"whyformer variants 1"


class Store:
    """One file per input, of records of one size: which parts were present (bits), and a few numbers."""

    def __init__(self, path: Path, parts: int, columns: int = COLUMNS) -> None:
        self.path, self.parts = path, parts
        self.record = np.dtype([("present", "u1", ((parts + 7) // 8,)), ("said", "<f8", (columns,))])

    def load(self) -> dict[bytes, Array]:
        """What is there; half a record at the end (a job killed while writing) is cut off."""
        if not self.path.is_file():
            return {}
        data = self.path.read_bytes()
        whole = len(data) // self.record.itemsize * self.record.itemsize
        if whole < len(data):
            with self.path.open("r+b") as file:
                file.truncate(whole)
        records = np.frombuffer(data[:whole], self.record)
        present = np.unpackbits(records["present"], axis=1, count=self.parts).astype(bool)
        return {row.tobytes(): np.array(said) for row, said in zip(present, records["said"], strict=True)}

    def append(self, present_MP: Array, said_MX: Array) -> None:
        records = np.zeros(len(present_MP), self.record)
        records["present"] = np.packbits(present_MP, axis=1)
        records["said"] = said_MX
        with self.path.open("ab") as file:
            file.write(records.tobytes())


def folder_of(cache: str | Path | None) -> Path | None:
    """The folder of a cache, made if it is not there."""
    if cache is None:
        return None
    folder = Path(cache)
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"cache={str(cache)!r} is a file: give the folder that results are kept in.")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def digest(*parts: Part) -> str:
    """A name for these contents."""
    found = hashlib.blake2b(FORMAT, digest_size=16)
    for part in parts:
        data = _bytes(part)
        found.update(len(data).to_bytes(8, "little"))
        found.update(data)
    return found.hexdigest()


def _bytes(part: Part) -> bytes:
    if isinstance(part, bytes):
        return part
    if isinstance(part, Tensor):
        flat = part.detach().cpu().contiguous().flatten()
        # Viewed as bytes: numpy has no bfloat16.
        return f"{part.dtype}{tuple(part.shape)}".encode() + flat.view(torch.uint8).numpy().tobytes()
    if isinstance(part, np.ndarray):
        return f"{part.dtype}{part.shape}".encode() + part.tobytes()
    return repr(part).encode()


def weights_digest(model: nn.Module) -> str:
    """A name for the model as it is now: every weight and buffer counts."""
    return digest(*_named(model))


def _named(model: nn.Module) -> Iterable[str | Tensor]:
    yield type(model).__name__
    for name, tensor in model.state_dict().items():
        if isinstance(tensor, Tensor):
            yield name
            yield tensor
