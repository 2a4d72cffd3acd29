"""Grad-CAM on the patches of a vision transformer."""

from __future__ import annotations

import torch
from torch import Tensor

from whyformer.engines.gradient.feature_maps import FeatureMap, feature_map
from whyformer.parameters import Place
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run


@method(
    paper="Selvaraju et al. 2017, arXiv:1610.02391; on ViT: Gildenblat 2021, github.com/jacobgil/pytorch-grad-cam",
    needs={"input_gradients"},
    cost=constant(1, 1),
    cost_text="1 forward + 1 backward",
    signed=False,
    class_specific=True,
    specificity="gradient",
)
def grad_cam(run: Run, *, layer: Place | str | None = None) -> Attribution:
    """Feature maps of one layer, each weighted by how much the score gains from it on average over the image.

    map = ReLU(Σ_c w_c F_c), w_c = mean over the patches of ∂s/∂F_c; special tokens are left out. ``layer``: None is
    the input of the last attention (the norm before it included), the last place whose patches can still reach a
    [CLS] token; a number is the input of that attention; a name is the output of that module. Where the layer's grid
    is coarser than the patches (Swin), the map is interpolated.

    Misleads when: one weight per channel is too little, since a channel can help in one place and harm in another; and
    where all the evidence is negative the map is empty.
    """
    features = feature_map(run, layer, grad=True, method="grad_cam")
    assert features.gradient_BPD is not None
    weight_BD = features.gradient_BPD.mean(1)
    # NOTE[DIFF] pytorch-grad-cam scales the map to [0, 1], twice; the ranking is the same, and so is the shape.
    map_BP = torch.einsum("bd,bpd->bp", weight_BD, features.values_BPD).clamp(min=0)
    return Attribution(over_units(run, map_BP, features))


def over_units(run: Run, map_BP: Tensor, features: FeatureMap) -> Tensor:
    """(B, N) maps over the features' grid as scores of the units; 0 for special tokens."""
    scores_BN = map_BP.new_zeros(run.keep_BN.shape)
    for row, units in enumerate(run.units):
        image = features.laid_out(map_BP[row][:, None], row)
        assert units.grid is not None
        if image.shape[1:] != units.grid:
            size = units.grid
            image = torch.nn.functional.interpolate(image[None], size=size, mode="bilinear", align_corners=False)[0]
        real = run.keep_BN[row].nonzero()[:, 0]
        patches = real[~torch.tensor(units.special, device=real.device)]
        scores_BN[row, patches] = image.flatten()
    return scores_BN
