"""Activation maximisation: optimise an image to maximise the activation of one unit of the model."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer.concepts.reader import Tap, layer_name
from whyformer.engines.gradient.feature_maps import grid_artefact
from whyformer.errors import BadInput, NotOffered
from whyformer.explainer import CoreExplainer
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch
from whyformer.inputs.output import Output
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.loan.borrow import borrowed
from whyformer.parameters import Count, Limits, OneOf, Place, Rate, Seed, Size, Weight, checked
from whyformer.results.codec import UInt8
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.run.session import tracker
from whyformer.study import study_of
from whyformer.targets import resolve_targets
from whyformer.views.head_views import maximized_view
from whyformer.views.view import view_of


class Canvas:
    """Parameters and the image they stand for, (1, C, height, width) in the model's input space."""

    def __init__(
        self, shape: tuple[int, ...], like: Tensor, colours: tuple[Any, Any] | None, fourier: bool, draw: Any
    ) -> None:
        channels, height, width = shape
        self.size, self.colours = (height, width), colours
        self.decay: Tensor | None = None
        if fourier:
            rows, columns = torch.fft.fftfreq(height)[:, None], torch.fft.rfftfreq(width)[None]
            frequency = (rows**2 + columns**2).sqrt().clamp(min=1 / max(height, width))
            # Waves of natural images fall off with 1/f: without it, the finest ones grow fastest.
            self.decay = (0.25 / frequency * (height * width) ** 0.5)[None, :, :, None].to(like)
            shape = (channels, *frequency.shape, 2)
        self.parameters = (torch.randn(shape, generator=draw) * 0.01).to(like).requires_grad_()

    def image(self) -> Tensor:
        values = self.parameters
        if self.decay is not None:
            waves = torch.view_as_complex((values * self.decay).float().contiguous())
            values = torch.fft.irfft2(waves, s=self.size).to(self.parameters.dtype)
        if self.colours is not None:  # between black and white, as the model's processor would hand them over
            mean, std = (torch.as_tensor(c, device=values.device, dtype=values.dtype) for c in self.colours)
            values = (values.sigmoid() - mean.view(-1, 1, 1)) / std.view(-1, 1, 1)
        return values[None]


def shaken(image: Tensor, jitter: float, scale: float, draw: Any) -> Tensor:
    """Return the image moved by up to ``jitter`` pixels and scaled by up to ``scale``; borders are mirrored."""
    if not jitter and not scale:
        return image
    height, width = image.shape[-2:]
    dx, dy, grown = (torch.rand(3, generator=draw) * 2 - 1).tolist()
    zoom = 1 / (1 + scale * grown)
    theta = torch.tensor([[zoom, 0, 2 * jitter * dx / width], [0, zoom, 2 * jitter * dy / height]])
    grid = F.affine_grid(theta[None].to(image), list(image.shape), align_corners=False)
    return F.grid_sample(image, grid, padding_mode="reflection", align_corners=False)


def total_variation(image: Tensor) -> Tensor:
    """Σ |difference of neighbours|, across and down, over pixels and colours."""
    across = (image[..., :, 1:] - image[..., :, :-1]).abs().sum()
    down = (image[..., 1:, :] - image[..., :-1, :]).abs().sum()
    return across + down


def penalties_of(image: Tensor, l2: float, tv: float) -> dict[str, Tensor]:
    """Return the penalties of an image, in units of the activation: sums over pixels and colours."""
    # Sums, not means: a mean over the 12,288 numbers of a small picture leaves λ = 1 without any effect.
    return {"l2·‖x‖²": l2 * image.square().sum(), "tv·TV(x)": tv * total_variation(image)}


def checkerboard(image: Tensor, grid: tuple[int, int]) -> float:
    """Mean squared difference of neighbours across patch borders ÷ inside patches; 1 where the grid cannot be seen."""
    height, width = image.shape[-2:]
    return grid_artefact(image, (height // grid[0], width // grid[1]), of="steps")


@dataclass(frozen=True, eq=False)
class Maximized(Result):
    """The image that maximises a unit's activation, and the history of the optimisation."""

    what: ClassVar[str] = "activation maximization"
    former: ClassVar[tuple[str, ...]] = ("tokens",)  # fields of older files

    unit: str
    value: float  # of the unit, for the image as shown
    history: tuple[float, ...]  # of the unit, step by step (of the changed image)
    image: UInt8  # (height, width, 3) bytes
    checkerboard: float = float("nan")  # difference across patch borders ÷ inside patches; 1: no grid to be seen
    start: float = float("nan")  # the unit's value before the first step
    options: dict[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    model: str = ""
    penalties: dict[str, float] = field(default_factory=dict)  # of the result, in units of the activation

    def to_frame(self) -> DataFrame:
        """Return one row per step."""
        return dataframe({"step": range(len(self.history)), "activation": self.history})


view_of.register(Maximized, maximized_view)


Sought = (
    str
    | Place
    | tuple[Annotated[str, OneOf("neuron")], Place | str, Place]
    | tuple[Annotated[str, OneOf("token")], Place | str, Place, Place]
    | tuple[Annotated[str, OneOf("layer")], Place | str]
)


class Unit:
    """The unit that is maximised; its value can be read while its ``tap`` is open."""

    def __init__(self, modality: Modality, example: Batch, unit: Any) -> None:
        self.modality, self.unit, self.target = modality, unit, -1
        self.tap: Tap | nullcontext[None] = nullcontext()  # nothing is tapped for a class
        if isinstance(unit, tuple):
            study = None if isinstance(unit[1], str) else study_of(modality, example)[0]
            layer = layer_name(modality.model, unit[1], study)
            self.tap = Tap(modality.model, layer)
            place = " ".join(map(str, unit[2:]))
            self.name = f"{unit[0]} {place} of {layer}" if place else f"mean of {layer}"
        else:
            output = Output(modality, example)
            logits_BC = output.logits(example)
            self.target = resolve_targets(unit, logits_BC, output.labels, output.positions, output.token_id)[0].index
            self.name = f"class {output.name(self.target) or self.target}"

    def value(self, batch: Batch) -> Tensor:
        """A single number, differentiable."""
        logits_BC = Output(self.modality, batch).logits(batch)
        if not isinstance(self.tap, Tap):
            return logits_BC[0, self.target]
        activations = self.tap.take()[0]
        if self.unit[0] == "layer":
            return activations.mean()
        *place, index = self.unit[2:]
        try:
            return activations[place[0], index] if place else activations[..., index].mean()
        except IndexError:
            shape = tuple(activations.shape)
            raise BadInput(f"unit={self.unit!r}: {self.tap.name} gives activations of shape {shape}.") from None


OPTIMIZERS = ("adam", "gradient")


COARSE = "jitter={:g} is less than half a patch ({} pixels): the image may show a grid."
STILL = "the activation did not rise: try more steps, another lr, or smaller penalties."


@checked
def activation_maximization(
    model: Any,
    unit: Sought,
    *,
    processor: Any = None,
    tokenizer: Any = None,
    steps: Count = 256,
    lr: Rate = 0.05,
    l2: Weight = 1e-4,
    tv: Weight = 1e-4,
    jitter: Annotated[float, Limits(0, 10**6)] | None = None,
    scale: Annotated[float, Limits(0, 1, open_high=True)] = 0.1,
    fourier: bool = True,
    bounded: bool = True,
    optimizer: Annotated[str, OneOf(*OPTIMIZERS)] = "adam",
    size: Size | None = None,
    seed: Seed = 0,
    progress: bool | None = None,
) -> Maximized:
    """Find the image that maximises the activation of a unit.

    max_x f(T(x)) − l2·‖x‖² − tv·TV(x), with a new random T each step (``jitter`` pixels, default one
    patch, and ``scale``). x is parametrised by Fourier coefficients scaled by 1/f (``fourier``) and clipped between
    black and white (``bounded``). ‖x‖² = Σ x² and TV(x) = Σ |difference of neighbours| are sums over the model's input;
    ``penalties`` of the result has their values. Multiply l2 and tv by ten until the image is clear.

    unit: a class (name or index), ("neuron", layer, index), ("token", layer, position, index) or ("layer", layer).
    optimizer: "adam", or "gradient" for plain gradient steps.

    Misleads when: used to describe the model on real inputs. Most maxima lie far from the data, depend on the penalties
    and the seed, and show one of many patterns that activate a unit.

    >>> model, image_processor = wf.demo.load_pets()
    >>> wf.activation_maximization(model, "cat", processor=image_processor, steps=4).save("cat.png")
    """
    explainer = CoreExplainer(model, processor)
    track = tracker(progress)
    draw = torch.Generator().manual_seed(seed)
    with borrowed(explainer.model), torch.enable_grad():
        refuse_without_gradients(explainer.model, "activation_maximization")
        modality, batch, grid = _blank(explainer, size)
        pixels = batch.tensors[modality.main]
        shape = tuple(pixels.shape[1:])
        patch = max(shape[1] // grid[0], shape[2] // grid[1])
        jitter = float(patch) if jitter is None else jitter
        canvas = Canvas(shape, pixels, _colours(explainer, shape[0]) if bounded else None, fourier, draw)
        step = stepper(canvas.parameters, optimizer, lr)
        history: list[float] = []
        sought = Unit(modality, batch, unit)
        with sought.tap:

            def value_of(image: Tensor) -> Tensor:
                return sought.value(batch.with_tensors(**{modality.main: image}))

            start = float(value_of(canvas.image().detach()).detach())
            for _ in track(range(steps), "maximising"):
                image = canvas.image()
                value = value_of(shaken(image, jitter, scale, draw))
                step(value - sum(penalties_of(image, l2, tv).values()))
                history.append(float(value.detach()))
            image = canvas.image().detach()
            final = float(value_of(image).detach())
    options: dict[str, Any] = {"steps": steps, "lr": lr, "l2": l2, "tv": tv, "jitter": jitter, "scale": scale}
    options |= {"fourier": fourier, "bounded": bounded, "optimizer": optimizer, "seed": seed}
    return Maximized(
        unit=sought.name,
        value=final,
        history=tuple(history),
        image=_bytes(explainer, image[0], bounded),
        checkerboard=checkerboard(image, grid),
        start=start,
        penalties={name: float(cost) for name, cost in penalties_of(image, l2, tv).items()},
        options=options,
        warnings=(*[COARSE.format(jitter, patch)] * (jitter < patch / 2), *[STILL] * (final <= start)),
        model=type(explainer.model).__name__,
    )


def stepper(parameters: Tensor, optimizer: str, lr: float) -> Any:
    """Return a function that takes one step up the gradient of an objective."""
    kind = torch.optim.Adam if optimizer == "adam" else torch.optim.SGD
    rule = kind([parameters], lr=lr, maximize=True)

    def step(objective: Tensor) -> None:
        if not objective.requires_grad:
            raise BadInput("this unit does not depend on the input, so it cannot be maximised.")
        (parameters.grad,) = torch.autograd.grad(objective, parameters)
        rule.step()

    return step


def _blank(explainer: CoreExplainer, size: tuple[int, int] | None) -> tuple[Modality, Batch, tuple[int, int]]:
    """A grey image of the model's size, and its grid of patches."""
    if getattr(explainer.model, "main_input_name", "") == "input_ids":
        raise NotOffered("the model takes texts: activation maximisation optimises the pixels of an image.")
    config = getattr(explainer.model, "config", None)
    if size is None:
        size = getattr(config, "image_size", None)
    if size is None:
        raise BadInput("the image size of the model is not known: give size=(height, width).")
    height, width = (size, size) if isinstance(size, int) else size
    channels = getattr(config, "num_channels", 3)
    modality, batch, _ = explainer.prepare(torch.zeros(1, channels, height, width))
    with torch.no_grad():
        study = study_of(modality, batch)[0]
    return modality, batch, study.grid or (1, 1)


def _colours(explainer: CoreExplainer, channels: int) -> tuple[Any, Any]:
    """Mean and deviation by which the processor normalises; without one, the usual ±1."""
    processor = getattr(explainer.processor, "image_processor", explainer.processor)
    if processor is not None and not getattr(processor, "do_normalize", True):
        return [0.0] * channels, [1.0] * channels
    mean, std = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    return mean or [0.5] * channels, std or [0.5] * channels


def _bytes(explainer: CoreExplainer, image: Tensor, bounded: bool) -> Any:
    from whyformer.views.image_marks import to_pixels

    values = image.float().cpu()
    if bounded:
        mean, std = (torch.tensor(c).view(-1, 1, 1) for c in _colours(explainer, len(values)))
        values = (values * std + mean).clamp(0, 1)
    else:
        low, high = values.min(), values.max()
        values = (values - low) / (high - low).clamp(min=1e-12)
    return to_pixels((values * 255).round().byte().movedim(0, -1).numpy())
