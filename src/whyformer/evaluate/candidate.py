"""Candidate: a method with its options, its explanations of all inputs and their cost; Trial: what a metric gets."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from whyformer.capture.leaves import ShiftEmbedding
from whyformer.engines.perturbation.game import cached_file
from whyformer.errors import BadInput, WhyformerError
from whyformer.evaluate.games import Games
from whyformer.inputs.modalities import are_tensors
from whyformer.loan.fingerprint import is_library
from whyformer.registry import CLASSES, get_method, list_methods
from whyformer.results.codec import is_whole, read_piece, write_piece
from whyformer.results.types import Explanation
from whyformer.run import Run
from whyformer.shapes import Array

if TYPE_CHECKING:
    from whyformer.engines.perturbation.game import Game
    from whyformer.evaluate.soft_game import SoftGame
    from whyformer.results.types import Units


@dataclass(frozen=True, eq=False)
class Trial:
    """One explanation of one input, and all that a metric reads. Parts: units that can be masked, no special tokens."""

    scores_P: Array
    game: Game
    signed: bool = False
    seed: int = 0  # of what metrics draw: the same for all methods, another for every input
    units: Units | None = None
    parts: Array | None = None  # which units the parts are
    explanation: Explanation | None = None  # all that the method returned, special tokens included
    rationale_P: Array | None = None  # what people marked
    region: Array | None = None  # (height, width) where the object is
    again: Callable[[int, float], Array] | None = None  # (draw, radius) → scores of the input with a little noise
    surrogate: Game | None = None  # the same input, asked of a copy that was fine-tuned on masked inputs
    soft: SoftGame | None = None  # the input with numbers of its parts erased one by one

    def heat(self) -> Array:
        """(height, width) scores laid over the image, interpolated; not below zero."""
        from whyformer.files.image_file import resized

        units = self.units
        assert units is not None and units.grid is not None
        scores = np.asarray(self.scores_P, dtype=float)
        if self.parts is not None:  # patches among tokens of a text, and those that are held, which have no score
            scores_U = np.zeros(len(units))
            scores_U[self.parts] = scores
            streams = {"image"} if len(set(units.stream)) > 1 else set(units.stream)
            patches = [not special and s in streams for special, s in zip(units.special, units.stream, strict=True)]
            scores = scores_U[patches]
        heat: Array = resized(scores.reshape(units.grid), units.image_size)
        return np.clip(heat, 0, None)


@dataclass(frozen=True, eq=False)
class Candidate:
    """A method with its options. Once evaluated, its explanation of every input, or the reason why it has none."""

    method: str
    options: dict[str, Any] = field(default_factory=dict)
    signed: bool = False
    cost_class: str = CLASSES[0]
    explanations: tuple[Explanation, ...] = ()
    forwards: float = float("nan")
    backwards: float = float("nan")
    seconds: float = float("nan")  # per input
    peak_bytes: int | None = None  # of the call that explained all inputs
    failure: str = ""

    @property
    def name(self) -> str:
        """For example ``raw_attention(layers=mean)``."""
        inside = ", ".join(f"{k}={v}" for k, v in self.options.items())
        return f"{self.method}({inside})" if inside else self.method


def wanted(methods: str | Mapping[str, Any] | Sequence[str | Mapping[str, Any]] | None) -> list[Candidate]:
    """Methods to run: names, or {"method": name, option: value, …}. None is every method but the floor."""
    if methods is None:
        return [Candidate(name) for name in list_methods() if name != "random"]
    if isinstance(methods, (str, Mapping)):
        methods = [methods]
    candidates = []
    for one in methods:
        options = {} if isinstance(one, str) else {k: v for k, v in one.items() if k != "method"}
        name = one if isinstance(one, str) else one.get("method")
        if name is None:
            raise BadInput(f"{one!r} names no method: write {{'method': 'raw_attention', 'layers': 'mean'}}.")
        method = get_method(name)
        method.checked(options)
        candidates.append(Candidate(method.name, options))
    if len({e.name for e in candidates}) != len(candidates):
        raise BadInput(f"a method is named twice: {', '.join(e.name for e in candidates)}.")
    return candidates


def evaluated(candidate: Candidate, games: Games, scalar: str, whole: int = 0) -> Candidate:
    """Explain all inputs by one method, or return why it cannot. whole: so many, the first, keep their maps."""
    settings: dict[str, Any] = {"method": candidate.method, "scalar": scalar, "seed": games.seed}
    settings |= games.asked | games.options_of(candidate.method, candidate.options)
    path = _path(settings, games, whole)
    if path is not None and is_whole(path):
        return dataclasses.replace(read_piece(Candidate, path), options=candidate.options)
    settings |= {"target": games.wanted_targets, "batch_size": games.batch_size, "progress": False}
    try:
        explanations = games.explainer.explain(games.inputs, **settings)
    except WhyformerError as reason:
        return dataclasses.replace(candidate, failure=str(reason))
    except Exception as error:  # one broken method must not lose the others
        return dataclasses.replace(candidate, failure=f"failed: {type(error).__name__}: {error}")
    # All maps would take too much memory.
    kept = [e if i < whole else e.replace(matrix=None, layers=None, detail=None) for i, e in enumerate(explanations)]
    done = dataclasses.replace(
        candidate,
        explanations=tuple(kept),
        signed=explanations[0].signed,
        forwards=float(np.mean([e.cost.forwards for e in explanations])),
        backwards=float(np.mean([e.cost.backwards for e in explanations])),
        seconds=float(np.mean([e.cost.seconds for e in explanations])),
        peak_bytes=max(e.cost.peak_bytes for e in explanations) or None,  # 0: the system does not tell
    )
    if path is not None:
        write_piece(dataclasses.replace(done, options={}), path)  # options are in the name of the file
    return done


def other_games(games: Games, candidates: Sequence[Candidate]) -> list[str]:
    """Return a warning for each method whose own hold differs from that of the evaluation."""
    remarks = []
    for candidate in candidates:
        held = games.held_by(candidate.options["hold"]) if "hold" in candidate.options else games.held_U
        if any((a != b).any() for a, b in zip(held, games.held_U, strict=True)):
            remarks.append(
                f"{candidate.name} holds other parts than those that are held in the evaluation: pass the same "
                "hold=… to both."
            )
    return remarks


def explains_one(candidate: Candidate, games: Games) -> bool:
    """Whether a method runs here, tried on the shortest input."""
    number = int(np.argmin([len(u) for u in games.units]))
    settings: dict[str, Any] = {"scalar": games.scalar, "seed": games.seed, "progress": False, **games.asked}
    settings["target"] = None if games.wanted_targets is None else [games.targets[number]]
    options = games.options_of(candidate.method, candidate.options)
    try:
        games.explainer.explain(one_input(games.inputs, number), method=candidate.method, **settings, **options)
    except Exception:  # an unexpected failure means that it does not run, either
        return False
    return True


def one_input(inputs: Any, number: int) -> Any:
    """One of the inputs, as a list, table or batch of one."""
    if hasattr(inputs, "iloc"):
        return inputs.iloc[[number]]
    if not are_tensors(inputs):
        return [inputs[number]]
    if isinstance(inputs, Mapping):
        return {k: _row(v, number) for k, v in inputs.items()}
    return tuple(_row(v, number) for v in inputs) if isinstance(inputs, (tuple, list)) else _row(inputs, number)


def _row(value: Any, number: int) -> Any:
    return value[number : number + 1] if getattr(value, "ndim", 0) else value


# On disk, so that a stopped comparison does not begin again


def _path(settings: Mapping[str, Any], games: Games, whole: int) -> Path | None:
    """Return the file of a method's explanations. settings: what ``explain`` gets besides inputs and targets."""
    if games.folder is None:
        return None
    formula = get_method(settings["method"]).run  # of a method of the user's own, the code may change
    code = None if is_library(formula.__module__) else formula
    contents = {"question": games.question, "how": settings, "whole": whole, "code": code, "targets": games.targets}
    return cached_file(games.folder, "scores.json", **contents, inputs=games.batch.contents())


# Explain an input with a little noise on it: pixels, columns, or word embeddings.


def scores_with_noise(games: Games, candidate: Candidate, scalar: str, number: int, draw: int, radius: float) -> Array:
    """(P,) scores of one input with uniform noise of ± radius × the spread of its numbers; NaN where it has none."""
    modality, batch = games.modality, games.batch.select([number])
    generator = torch.Generator().manual_seed(hash((games.seed, number, draw)) % 2**31)

    def noise(shape: Any, like: Tensor, spread: Tensor) -> Tensor:
        uniform = torch.rand(shape, generator=generator).to(device=like.device, dtype=like.dtype) * 2 - 1
        return uniform * radius * spread

    mode: Any = nullcontext()
    table = modality.embedding()
    if table is not None:
        length = batch.tensors[modality.main].shape[1]
        noise_ND = noise((length, table.embedding_dim), table.weight, table.weight.std())
        mode = ShiftEmbedding(table, lambda ids: noise_ND[: ids.shape[-1]])  # the same at a position each time
    else:
        floats = {k: v for k, v in batch.tensors.items() if v.is_floating_point() and "mask" not in k}
        if not floats or modality.embeds:
            return np.full(len(games.parts[number]), np.nan)
        batch = batch.with_tensors(**{k: v + noise(v.shape, v, v.float().std().to(v.dtype)) for k, v in floats.items()})
    method = get_method(candidate.method)
    study = games.run_of(number)[0].study
    run = Run(
        modality, batch, study, target=games.wanted_targets and [games.targets[number]], scalar=scalar, seed=games.seed
    )
    with mode:
        attribution = method.run(run, **method.checked(games.options_of(candidate.method, candidate.options)))
    scores = attribution.scores_BN[0, run.keep_BN[0]].detach().float().cpu().numpy()
    return games.per_part(number, scores)
