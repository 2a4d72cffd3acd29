"""Questions to pytorch-grad-cam, zennit, quantus and captum: a picture and a vision transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bench.peers.questions import Question, ours

LABEL = 0
STEPS = 16
METHOD = "generic_attention"  # whose patches are flipped


def cam_grad_cam(model: Any, pixels: Any) -> Any:
    from pytorch_grad_cam import GradCAM  # type: ignore[import-not-found]
    from pytorch_grad_cam.utils.model_targets import ClassifierOutputTarget  # type: ignore[import-not-found]

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixels: Any) -> Any:
            return self.model(pixels).logits

    side = model.config.image_size // model.config.patch_size

    def patches(features: Any) -> Any:
        return features[:, 1:].transpose(1, 2).reshape(len(features), -1, side, side)

    layer = model.vit.layers[-1].layernorm_before
    method = GradCAM(model=Logits(), target_layers=[layer], reshape_transform=patches)

    def call() -> Any:
        return method(pixels, targets=[ClassifierOutputTarget(LABEL)])[0]

    return call


def zennit_gradient(model: Any, pixels: Any) -> Any:
    from zennit.attribution import Gradient  # type: ignore[import-not-found]

    method = Gradient(lambda pixels: model(pixels).logits)
    chosen = torch.eye(model.config.num_labels, device=pixels.device)[[LABEL]]

    def call() -> Any:
        return (method(pixels.clone().requires_grad_(), chosen)[1] * pixels).sum(1)[0]

    return call


def zennit_lrp(model: Any, pixels: Any) -> Any:
    from zennit.composites import EpsilonPlus  # type: ignore[import-not-found]

    side = model.config.patch_size

    def call() -> Any:
        leaf = pixels.clone().requires_grad_()
        with EpsilonPlus().context(model) as modified:
            (scores,) = torch.autograd.grad(modified(leaf).logits[0, LABEL], leaf)
        return torch.nn.functional.avg_pool2d(scores.sum(1), side)[0] * side**2

    return call


def captum_occlusion(model: Any, pixels: Any) -> Any:
    from captum.attr import FeatureAblation  # type: ignore[import-not-found]

    side, size = model.config.patch_size, model.config.image_size // model.config.patch_size
    patches = torch.arange(size**2, device=pixels.device).reshape(1, 1, size, size)
    patches = patches.repeat_interleave(side, -1).repeat_interleave(side, -2)
    method = FeatureAblation(lambda pixels: model(pixels).logits)

    def call() -> Any:
        with torch.no_grad():
            found = method.attribute(pixels, target=LABEL, feature_mask=patches, perturbations_per_eval=16)
        return found[0, 0, ::side, ::side]

    return call


def quantus_pixel_flipping(model: Any, pixels: Any) -> Any:
    import quantus  # type: ignore[import-not-found]

    import whyformer as wf

    class Logits(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def forward(self, pixels: Any) -> Any:
            return self.model(pixels).logits

    wrapped, area = Logits().eval(), model.config.patch_size**2
    flipping = quantus.PixelFlipping(features_in_step=area, perturb_baseline=0.0, disable_warnings=True)

    def call() -> Any:
        maps = wf.to_quantus(
            wf.explain(model, {"pixel_values": pixels}, method=METHOD, scalar="logit", target=LABEL), pixels
        )
        values = flipping(model=wrapped, device=str(pixels.device), softmax=True, channel_first=True, **maps)[0]
        whole = values[2::3]  # a patch has three channels, flipped one after the other
        return [np.trapezoid(whole) / (len(whole) - 1)]

    return call


def our_deletion(model: Any, pixels: Any) -> Any:
    import whyformer as wf

    count = (model.config.image_size // model.config.patch_size) ** 2
    metrics = {"deletion": {"fractions": [k / count for k in range(1, count + 1)]}}

    def call() -> Any:
        how = {"method": [METHOD], "metric": metrics, "replace": "zero", "target": LABEL}
        return wf.compare(model, {"pixel_values": pixels}, **how).values["deletion"][METHOD]

    return call


def our_grad_cam(model: Any, pixels: Any) -> Any:
    import whyformer as wf

    def call() -> Any:
        why = wf.explain(model, {"pixel_values": pixels}, method="grad_cam", scalar="logit", target=LABEL)[0]
        shown = why.heatmap(size=tuple(pixels.shape[-2:]))
        return (shown - shown.min()) / (shown.max() - shown.min())

    return call


def patches_of(why: Any) -> Any:
    return why.scores[1:]


PICTURE: dict[str, Any] = {"subject": "picture", "timed": "larger, picture"}
NO_RULES = "no rules for attention, LayerNorm and GELU there"
LOGIT: dict[str, Any] = {"scalar": "logit", "target": LABEL}
OUR_PRODUCT = ours(lambda why: why.detail.sum(0), method="input_x_gradient", **LOGIT)
OUR_LRP = ours(patches_of, method="attn_lrp", **LOGIT)
OUR_ABLATION = ours(patches_of, method="occlusion", replace="zero", target=LABEL)

QUESTIONS: dict[str, list[Question]] = {
    "quantus": [Question("pixel flipping, area", theirs=quantus_pixel_flipping, ours=our_deletion, subject="picture")],
    "captum": [Question("ablation of patches", theirs=captum_occlusion, ours=OUR_ABLATION, subject="picture")],
    "pytorch-grad-cam": [Question("Grad-CAM, last layer", theirs=cam_grad_cam, ours=our_grad_cam, **PICTURE)],
    "zennit": [
        Question("pixels × gradient", theirs=zennit_gradient, ours=OUR_PRODUCT, **PICTURE),
        Question("LRP", theirs=zennit_lrp, ours=OUR_LRP, differs=NO_RULES, **PICTURE),
    ],
}
