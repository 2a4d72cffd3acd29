"""Names of other libraries: the error names the nearest method or metric here."""

from __future__ import annotations

import pytest

from whyformer.errors import METHODS_ELSEWHERE, METRICS_ELSEWHERE, UnknownName, spelling
from whyformer.registry import get_method, get_metric, list_methods, list_metrics

SPELLED = {  # the same letters: ours is meant
    "grad_cam": ("gradcam", "GradCAM", "grad-cam", "Grad CAM"),
    "grad_sam": ("grad-sam", "GradSAM"),
    "integrated_gradients": ("integrated-gradients", "IntegratedGradients", "integrated gradients"),
    "attention_rollout": ("attention-rollout", "AttentionRollout"),
    "input_x_gradient": ("input*gradient", "input × gradient", "InputXGradient"),
    "smooth_grad": ("smoothgrad", "SmoothGrad"),
    "raw_attention": ("raw attention",),
    "value_zeroing": ("value zeroing", "ValueZeroing"),
    "decompx": ("DecompX",),
    "attn_lrp": ("AttnLRP",),
    "saliency": ("Saliency",),
}
ELSEWHERE = {  # another name of the same thing, or the nearest one
    "shap": ("lime", "LIME", "kernelshap", "kernel_shap", "KernelExplainer", "partition", "PartitionExplainer"),
    "integrated_gradients": ("IG", "ig", "LayerIntegratedGradients", "deeplift", "DeepLift", "gradient_shap"),
    "attn_lrp": ("lrp", "LRP"),
    "attention_rollout": ("rollout",),
    "generic_attention": ("chefer",),
    "transformer_attribution": ("transformer-explainability",),
    "saliency": ("saliency maps", "vanilla gradient"),
    "occlusion": ("feature_ablation", "FeatureAblation", "leave-one-out", "token occlusion"),
    "raw_attention": ("attention", "bertviz", "attention weights"),
    "alti": ("alti+",),
    "value_norms": ("GlobEnc",),
}


def pairs(table: dict[str, tuple[str, ...]]) -> list[tuple[str, str]]:
    return [(ours, name) for ours, names in table.items() for name in names]


@pytest.mark.parametrize(("ours", "name"), pairs(SPELLED))
def test_another_spelling_names_one_method(ours: str, name: str) -> None:
    with pytest.raises(UnknownName) as refused:
        get_method(name)
    assert str(refused.value).startswith(f"unknown method {name!r}. Did you mean {ours!r}? Known: ")


@pytest.mark.parametrize(("ours", "name"), pairs(ELSEWHERE))
def test_the_name_of_another_library_names_the_nearest(ours: str, name: str) -> None:
    with pytest.raises(UnknownName) as refused:
        get_method(name)
    assert str(refused.value).startswith(f"unknown method {name!r}. Nearest here: {ours!r} (")


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("MoRF", "Nearest here: 'aopc'"),
        ("pixel flipping", "Nearest here: 'aopc'"),
        ("sensitivity_max", "Nearest here: 'max_sensitivity'"),
        ("Max-Sensitivity", "Did you mean 'max_sensitivity'?"),
        ("gini", "Nearest here: 'sparsity'"),
        ("comprehensivenes", "Did you mean 'comprehensiveness'"),
    ],
)
def test_metrics_too(name: str, words: str) -> None:
    with pytest.raises(UnknownName, match="unknown metric") as refused:
        get_metric(name)
    assert words in str(refused.value)


@pytest.mark.parametrize(("table", "known"), [(METHODS_ELSEWHERE, list_methods()), (METRICS_ELSEWHERE, list_metrics())])
def test_the_tables_lead_to_what_is_registered(table: dict[str, tuple[str, str]], known: dict[str, object]) -> None:
    assert {ours for ours, _ in table.values()} <= set(known)
    assert all(name == spelling(name) for name in table), "written as names are compared"
    assert not set(table) & {spelling(name) for name in known}, "ours come first, so these would never be found"
