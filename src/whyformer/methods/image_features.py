"""Methods on the feature maps of an image model: grad_cam and vit_cx."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from whyformer.engines.gradient.feature_maps import FeatureMap, feature_map
from whyformer.engines.perturbation.variants import with_pictures
from whyformer.errors import BadInput, require
from whyformer.inputs.image import patch_index, patch_masks
from whyformer.parameters import Count, OneOf, Place, Share, Weight
from whyformer.registry import Passes, method, one_backward
from whyformer.run import Attribution, Run
from whyformer.targets import scalar_of


@one_backward(
    paper="Selvaraju et al. 2017, arXiv:1610.02391; on ViT: Gildenblat 2021, github.com/jacobgil/pytorch-grad-cam",
    needs={"input_gradients"},
    works=True,
    signed=False,
    meaning="feature maps of one layer, weighted by their mean gradient",
)
def grad_cam(run: Run, *, layer: Place | str | None = None) -> Attribution:
    """Sum the feature maps of one layer, each channel weighted by its mean gradient over the image.

    map = ReLU(Σ_c w_c F_c), w_c = mean over the patches of ∂s/∂F_c; special tokens are excluded. ``layer``: None is the
    input of the last attention (after its norm), the last layer whose patches still reach a [CLS] token; a number is
    the input of that attention; a name is the output of that module. If the layer's grid is coarser than the patches
    (Swin), the map is interpolated.

    Misleads when: a channel helps at one place and harms at another (it has one weight), or all evidence is negative
    (the map is empty).
    """
    features = feature_map(run, layer, grad=True, method="grad_cam")
    assert features.gradient_BPD is not None
    weight_BD = features.gradient_BPD.mean(1)
    # NOTE[DIFF] pytorch-grad-cam scales the map to [0, 1], twice; the ranking is the same, and so is the shape.
    map_BP = torch.einsum("bd,bpd->bp", weight_BD, features.values_BPD).clamp(min=0)
    return Attribution(over_units(run, map_BP, features))


def over_units(run: Run, map_BP: Tensor, features: FeatureMap) -> Tensor:
    """Return (B, N) scores of the units from maps over the features' grid; 0 for special tokens."""
    scores_BN = map_BP.new_zeros(run.keep_BN.shape)
    for row, units in enumerate(run.units):
        image = features.laid_out(map_BP[row][:, None], row)
        assert units.grid is not None
        if image.shape[1:] != units.grid:
            image = F.interpolate(image[None], size=units.grid, mode="bilinear", align_corners=False)[0]
        real = run.keep_BN[row].nonzero()[:, 0]
        patches = real[~torch.tensor(units.special, device=real.device)]
        scores_BN[row, patches] = image.flatten()
    return scores_BN


REDRAWN = 8  # masks that are run with a second noise if draws=1, to estimate the error


def _cost(units: int, masks: int = 128, draws: int = 1, noise: float = 0.1, **options: object) -> Passes:
    again = min(masks, REDRAWN) if draws == 1 and noise > 0 else 0
    return 1 + 2 * (masks * draws + again), 0


@method(
    paper="Xie et al. 2023 (IJCAI), arXiv:2211.03064",
    needs={"perturbation"},
    cost=_cost,
    at_most=True,
    cost_text="1 + 2·(clusters·draws + 8) forwards; clusters ≤ masks; the 8 only if draws = 1",
    signed=True,
    class_specific=True,
    meaning="output with only some image regions visible, averaged over masks",
    slow=True,
)
def vit_cx(
    run: Run,
    *,
    noise: Weight = 0.1,
    threshold: Share = 0.1,
    masks: Count = 128,
    layer: Place | str | None = None,
    draws: Count = 1,
    score: Annotated[str, OneOf("probability", "explained")] = "probability",
) -> Attribution:
    """Mask the image with clustered feature maps, and average the output over the masks that show a pixel.

    Features of one layer, upsampled and scaled to [0, 1], are masks; similar ones (cosine distance below ``threshold``,
    complete linkage) are summed and scaled again. With noise Z_i ~ N(0, noise²), for mask M_i: score_i = s(x∘M_i +
    Z_i∘(1-M_i)) - s(x + Z_i∘(1-M_i)) + s(x), and S = 1/n Σ_i score_i·M_i / Σ_k M_k at each pixel (in ``detail``; a
    patch's score is the sum over its pixels). ``masks``: the most clusters; ``layer``: as in ``grad_cam``; ``draws``:
    noise draws per mask. ``checks["standard_error"]`` is the error due to the noise (root mean square over patches),
    from the draws or, with one draw, from 8 masks that are run twice. ``score``: "probability" (the paper; it becomes
    the result's scalar) or "explained" (the requested scalar).

    Misleads when: there are few masks, or masks cover the whole image: scores are then nearly equal. The noise is
    unlike anything the model was trained on.
    """
    require("sklearn", why="vit_cx")  # before any pass
    scalar = run.scalar if score == "explained" else "probability"
    features = feature_map(run, layer, grad=False, method="vit_cx")
    pixels = run.batch.tensors[run.modality.main]
    value_B = scalar_of(run.logits, run.targets, scalar)
    scores_BN = torch.zeros(run.keep_BN.shape, device=run.keep_BN.device)
    maps, errors, counts = [], [], []
    for row in run.track(range(run.batch.size), "vit_cx"):
        size = run.units[row].image_size or tuple(pixels.shape[-2:])
        clusters = cluster_masks(features, row, size, threshold, masks)
        effects = _effects(run, row, pixels[row], clusters, noise, draws, scalar, run.seed)
        maps.append(_spread(effects + value_B[row], clusters).mean(0))
        patches = patch_masks(run.units[row], maps[-1][None])
        scores_BN[row, run.keep_BN[row]] = torch.einsum("uhw,hw->u", patches.to(maps[-1]), maps[-1]).float()
        variance = _noise_variance(run, row, pixels[row], clusters, noise, effects, scalar)
        errors.append(_standard_error(run, row, clusters, variance))
        counts.append(len(clusters))
    checks = {"masks": torch.tensor(counts, dtype=torch.float32), "standard_error": torch.stack(errors)}
    return Attribution(
        scores_BN,
        detail=[saliency.cpu().numpy() for saliency in maps],
        checks=checks,
        explained=(scalar, value_B),
    )


def cluster_masks(features: FeatureMap, row: int, size: tuple[int, ...], threshold: float, limit: int) -> Tensor:
    """Return (n, height, width) masks in [0, 1] of one input, the widest first."""
    maps = F.interpolate(
        features.laid_out(features.values_BPD[row], row)[None], size=size, mode="bilinear", align_corners=False
    )[0]
    scaled = _scaled(maps.flatten(1))
    if not len(scaled):
        raise BadInput(f"{features.name} is constant over the image, so there are no masks: choose another layer.")
    labels = _clusters(scaled, threshold, limit)
    summed = torch.stack([scaled[labels == i].sum(0) for i in range(int(labels.max()) + 1)])
    masks = _scaled(summed)
    if not len(masks):  # the sum of all features is constant
        masks = torch.ones_like(summed[:1])
    # Sorted, so that the noise of a mask does not depend on the order of channels.
    return masks[masks.sum(1).argsort(descending=True, stable=True)].unflatten(1, size)


def _scaled(rows: Tensor) -> Tensor:
    """Scale each row to [0, 1]; drop constant rows."""
    low, high = rows.amin(1, keepdim=True), rows.amax(1, keepdim=True)
    varies = (high > low)[:, 0]
    return ((rows - low) / torch.where(high > low, high - low, 1.0))[varies]


def _clusters(scaled: Tensor, threshold: float, limit: int) -> Tensor:
    """Return (masks,) the cluster of each mask."""
    require("sklearn", why="vit_cx")
    from sklearn.cluster import AgglomerativeClustering

    count = len(scaled)
    if count == 1:
        return torch.zeros(1, dtype=torch.long)
    unit = F.normalize(scaled.double(), dim=1)
    distance = (1 - unit @ unit.T).clamp(min=0).cpu().numpy()
    np.fill_diagonal(distance, 0)

    def grouped(**cut: Any) -> Any:
        return AgglomerativeClustering(metric="precomputed", linkage="complete", **cut).fit_predict(distance)

    labels = grouped(n_clusters=None, distance_threshold=threshold) if threshold > 0 else np.arange(count)
    if labels.max() + 1 > limit:
        labels = grouped(n_clusters=limit)
    return torch.from_numpy(np.asarray(labels, np.int64))


def _effects(
    run: Run, row: int, image: Tensor, masks: Tensor, noise: float, draws: int, scalar: str, seed: int
) -> Tensor:
    """Return (draws, n) s(x∘M + Z∘(1-M)) - s(x + Z∘(1-M)) for every mask; images share batches."""
    values = []
    target = run.targets[row]
    high, wide = masks.shape[-2:]  # less than the tensor's where smaller images were padded
    for chunk in _pictures(run, image[:, :high, :wide], masks, noise, draws, seed):
        logits = run.forward(with_pictures(run, row, chunk), [row] * len(chunk))
        values.append(scalar_of(logits.float(), [target] * len(chunk), scalar))
    left, noisy = torch.cat(values).view(-1, 2).T
    return (left - noisy).view(draws, len(masks))


def _pictures(run: Run, image: Tensor, masks: Tensor, noise: float, draws: int, seed: int) -> Iterator[Tensor]:
    """Yield batches of images: for each draw and mask the masked image, then the image with noise added."""
    source = torch.Generator().manual_seed(seed)  # one per input: scores do not depend on the batch
    waiting: list[Tensor] = []
    for _ in range(draws):
        for mask in masks:
            drawn = (noise * torch.randn(image.shape, generator=source)).to(image)
            weight = mask.to(image)
            rest = drawn * (1 - weight)
            waiting += [image * weight + rest, image + rest]
            while len(waiting) >= run.batch_size:
                yield torch.stack(waiting[: run.batch_size])
                waiting = waiting[run.batch_size :]
    if waiting:
        yield torch.stack(waiting)


def _spread(scores: Tensor, masks: Tensor) -> Tensor:
    """Return (draws, H, W) the mean of the masks weighted by their scores, divided by the cover of each pixel."""
    cover = masks.sum(0)
    total = torch.einsum("ri,ihw->rhw", scores.to(masks.dtype), masks) / len(masks)
    return torch.where(cover > 0, total / torch.where(cover > 0, cover, 1.0), 0.0)


def _noise_variance(
    run: Run, row: int, image: Tensor, masks: Tensor, noise: float, effects: Tensor, scalar: str
) -> Tensor:
    """Return (n,) the variance of each mask's mean effect due to the noise."""
    draws, count = effects.shape
    if noise == 0:
        return effects.new_zeros(count)
    if draws > 1:
        return effects.var(0) / draws
    chosen = torch.linspace(0, count - 1, min(count, REDRAWN)).round().long()
    again = _effects(run, row, image, masks[chosen.to(masks.device)], noise, 1, scalar, run.seed + 1)
    # Half the squared difference of two draws is their variance; few masks are drawn again, so all share one.
    return ((effects[0, chosen.to(effects.device)] - again[0]) ** 2).mean().div(2).expand(count)


def _standard_error(run: Run, row: int, masks: Tensor, variance: Tensor) -> Tensor:
    """Return the root mean square over patches of the error due to the noise."""
    cover = masks.sum(0)
    shares = masks / torch.where(cover > 0, cover, 1.0) / len(masks)  # of each mask's effect that a pixel gets
    index = patch_index(run.units[row].grid or (1, 1), *masks.shape[-2:]).flatten().to(masks.device)
    patches = int(index.max()) + 1
    shares_NP = shares.new_zeros(len(masks), patches).index_add_(1, index, shares.flatten(1))
    return (variance.to(shares) @ shares_NP.square()).mean().sqrt().float()
