"""Activation maximisation: an input made to drive one unit of the model as high as it goes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whyformer.borrow import borrowed, refuse_without_gradients
from whyformer.concepts.canvas import Canvas, checkerboard, shaken, total_variation
from whyformer.concepts.maximized import Maximized
from whyformer.concepts.soft_text import maximized_text
from whyformer.concepts.unit import Unit
from whyformer.errors import BadInput, one_of
from whyformer.explainer import Explainer
from whyformer.progress import tracker
from whyformer.study import study_of
from whyformer.subjects.base import Batch, Subject

OPTIMIZERS = ("adam", "gradient")


def activation_maximization(
    model: Any,
    unit: Any,
    *,
    processor: Any = None,
    steps: int = 256,
    lr: float = 0.05,
    l2: float = 0.0,
    tv: float = 0.1,
    jitter: float | None = None,
    scale: float = 0.1,
    fourier: bool = True,
    bounded: bool = True,
    optimizer: str = "adam",
    size: tuple[int, int] | None = None,
    length: int = 8,
    norm: float = 1.0,
    seed: int = 0,
    progress: bool | None = None,
) -> Maximized:
    """Which input does a unit like best?

    Images: max_x f(T(x)) − l2·mean x² − tv·TV(x), with a new random T each step (``jitter`` pixels, default one
    patch, and ``scale``). x is made of waves that fall off with 1/f (``fourier``) and kept between black and
    white (``bounded``).
    Text: max_E f(E) − norm·mean (‖e‖/‖typical e‖ − 1)² over ``length`` soft embeddings, then the nearest tokens;
    ``value`` is that of the tokens, and often far below what the soft embeddings reached.

    unit: a class (name or index), ("neuron", layer, index), ("token", layer, position, index) or ("layer", layer).
    optimizer: "adam", or "gradient" for plain gradient steps.

    Misleads when: taken for what the model sees in real inputs. Most maxima lie far from the data, depend on the
    penalties and the seed, and show one of many things that drive a unit.
    """
    _check(steps, lr, optimizer, {"l2": l2, "tv": tv, "jitter": jitter or 0, "scale": scale, "norm": norm})
    explainer = Explainer(model, processor)
    track = tracker(progress)
    draw = torch.Generator().manual_seed(seed)
    with borrowed(explainer.model), torch.enable_grad():
        refuse_without_gradients(explainer.model, "activation_maximization")
        if getattr(explainer.model, "main_input_name", "") == "input_ids":
            settings = {"steps": steps, "lr": lr, "length": length, "norm": norm, "seed": seed, "optimizer": optimizer}
            return maximized_text(explainer, unit, settings, draw, track, stepper)
        subject, batch, grid = _blank(explainer, size)
        pixels = batch.tensors[subject.main]
        shape = tuple(pixels.shape[1:])
        patch = max(shape[1] // grid[0], shape[2] // grid[1])
        jitter = float(patch) if jitter is None else jitter
        canvas = Canvas(shape, pixels, _colours(explainer, shape[0]) if bounded else None, fourier, draw)  # type: ignore[arg-type]
        step = stepper(canvas.parameters, optimizer, lr)
        history: list[float] = []
        with Unit(subject, batch, unit) as sought:
            start = float(sought.value(_with(subject, batch, canvas.image().detach())).detach())
            for _ in track(range(steps), "maximising"):
                image = canvas.image()
                value = sought.value(_with(subject, batch, shaken(image, jitter, scale, draw)))
                step(value - l2 * image.square().mean() - tv * total_variation(image))
                history.append(float(value.detach()))
            image = canvas.image().detach()
            final = float(sought.value(_with(subject, batch, image)).detach())
    options: dict[str, Any] = {"steps": steps, "lr": lr, "l2": l2, "tv": tv, "jitter": jitter, "scale": scale}
    options |= {"fourier": fourier, "bounded": bounded, "optimizer": optimizer, "seed": seed}
    return Maximized(
        unit=sought.name,
        value=final,
        history=tuple(history),
        image=_bytes(explainer, image[0], bounded),
        checkerboard=checkerboard(image, grid),
        start=start,
        options=options,
        warnings=_warnings(jitter, patch, start, final),
        model=type(explainer.model).__name__,
    )


def stepper(parameters: Tensor, optimizer: str, lr: float) -> Any:
    """A function that takes one step up."""
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    rule = kind([parameters], lr=lr, maximize=True)

    def step(objective: Tensor) -> None:
        if not objective.requires_grad:
            raise BadInput("this unit does not depend on the input: there is nothing to maximise.")
        (parameters.grad,) = torch.autograd.grad(objective, parameters)
        rule.step()

    return step


def _check(steps: int, lr: float, optimizer: str, weights: dict[str, float]) -> None:
    one_of("optimizer", optimizer, OPTIMIZERS)
    if not isinstance(steps, int) or steps < 1:
        raise BadInput(f"steps={steps!r}: a whole number of at least 1.")
    if not lr > 0:
        raise BadInput(f"lr={lr!r}: a number above 0.")
    for name, value in weights.items():
        if value < 0:
            raise BadInput(f"{name}={value!r}: 0 or more.")
    if weights["scale"] >= 1:
        raise BadInput(f"scale={weights['scale']!r}: below 1; 0.1 means 10 % larger or smaller.")


def _blank(explainer: Explainer, size: tuple[int, int] | None) -> tuple[Subject, Batch, tuple[int, int]]:
    """A grey image of the model's size, and its grid of patches."""
    config = getattr(explainer.model, "config", None)
    if size is None:
        size = getattr(config, "image_size", None)
    if size is None:
        raise BadInput("the model does not say how large its images are: give size=(height, width).")
    height, width = (size, size) if isinstance(size, int) else size
    channels = getattr(config, "num_channels", 3)
    subject, batch, _ = explainer.prepare(torch.zeros(1, channels, height, width))
    with torch.no_grad():
        study = study_of(subject, batch)[0]
    return subject, batch, study.grid or (1, 1)


def _with(subject: Subject, batch: Batch, image: Tensor) -> Batch:
    return batch.with_tensors(**{subject.main: image})


def _colours(explainer: Explainer, channels: int) -> tuple[Any, Any]:
    """Mean and deviation by which the processor normalises; without one, the usual ±1."""
    processor = getattr(explainer.processor, "image_processor", explainer.processor)
    if processor is not None and not getattr(processor, "do_normalize", True):
        return [0.0] * channels, [1.0] * channels
    mean, std = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    return mean or [0.5] * channels, std or [0.5] * channels


def _bytes(explainer: Explainer, image: Tensor, bounded: bool) -> Any:
    from whyformer.views.pixels import to_pixels

    values = image.float().cpu()
    if bounded:
        mean, std = (torch.tensor(c).view(-1, 1, 1) for c in _colours(explainer, len(values)))
        values = (values * std + mean).clamp(0, 1)
        return to_pixels((values * 255).round().byte().movedim(0, -1).numpy())
    low, high = values.min(), values.max()
    scaled = (values - low) / (high - low).clamp(min=1e-12)
    return to_pixels((scaled * 255).round().byte().movedim(0, -1).numpy())


def _warnings(jitter: float, patch: int, start: float, final: float) -> tuple[str, ...]:
    found = []
    if jitter < patch / 2:
        found.append(f"jitter={jitter:g} is less than half a patch ({patch} pixels): expect a grid in the picture.")
    if final <= start:
        found.append("the unit is no higher than at the start: more steps, another lr, or smaller penalties may help.")
    return tuple(found)
