"""Names of methods and metrics in other libraries and papers, and the nearest method or metric here.

Names are compared without case, spaces and punctuation (``spelling``), so "GradCAM" and "grad-cam" need no entry for
``grad_cam``. They are not accepted in place of ours: the error names ours, and results always have one name.
"""

from __future__ import annotations

Nearest = tuple[str, str]  # a name here (with the options that match), and what it does or how it differs

SIGNS = str.maketrans({"*": "x", "×": "x", "+": "plus"})


def spelling(name: str) -> str:
    """Return a name in lower case without spaces and punctuation; "*" is read as "x" and "+" as "plus"."""
    return "".join(character for character in name.lower().translate(SIGNS) if character.isalnum())


def _named(names: str, ours: str, words: str) -> dict[str, Nearest]:
    return dict.fromkeys(names.split(), (ours, words))


METHODS: dict[str, Nearest] = {
    **_named(
        "lime limetext limeimage", "shap", "Shapley values; algorithm='regression' fits masked inputs as LIME does"
    ),
    **_named("kernelshap kernelexplainer", "shap", "Shapley values; algorithm='regression' is Kernel SHAP"),
    **_named("partition partitionshap partitionexplainer owen", "shap", "Shapley values; algorithm='partition'"),
    **_named(
        "permutationshap permutationexplainer samplingexplainer shapleyvaluesampling shapleysampling",
        "shap",
        "Shapley values; algorithm='permutation'",
    ),
    **_named("shapley shapleyvalues exactexplainer shapexplainer", "shap", "Shapley values; exact for few features"),
    **_named(
        "ig integratedgradient pathintegratedgradients layerintegratedgradients",
        "integrated_gradients",
        "of tokens, at the embeddings",
    ),
    **_named(
        "deeplift deepliftshap deepexplainer gradientshap gradientexplainer expectedgradients",
        "integrated_gradients",
        "gradients between a baseline and the input, with the same sum of scores",
    ),
    **_named("lrp layerwiserelevancepropagation", "attn_lrp", "LRP with rules for attention; cp_lrp holds it constant"),
    **_named("rollout", "attention_rollout", "Abnar & Zuidema 2020"),
    **_named("flow", "attention_flow", "Abnar & Zuidema 2020"),
    **_named(
        "chefer cheferetal genericattentionexplainability transformermmexplainability",
        "generic_attention",
        "Chefer et al. 2021, ICCV; transformer_attribution is their method of CVPR 2021",
    ),
    **_named(
        "transformerexplainability transformerinterpretability transformerlrp beyondattention",
        "transformer_attribution",
        "Chefer et al. 2021, CVPR; generic_attention is their method of ICCV 2021",
    ),
    **_named("gradientxinput gradxinput inputtimesgradient gradientinput", "input_x_gradient", "gradient × input"),
    **_named(
        "saliencymap saliencymaps gradient gradients grad vanillagradient vanillagradients simplegradient "
        "guidedbackprop guidedbackpropagation deconvolution deconvnet",
        "saliency",
        "size of the gradient",
    ),
    **_named("smoothgradsquared vargrad noisetunnel", "smooth_grad", "gradients averaged over noisy copies"),
    **_named(
        "featureablation ablation leaveoneout loo erasure occlusionsensitivity slidingwindow tokenocclusion "
        "wordocclusion omission featureocclusion",
        "occlusion",
        "drop in the output when one feature is masked",
    ),
    **_named(
        "attention attentions attentionweights attentionmap attentionmaps selfattention bertviz",
        "raw_attention",
        "attention weights; 'whyformer attention' draws the maps of all heads",
    ),
    **_named("gradcamplusplus guidedgradcam layergradcam scorecam layercam eigencam cam", "grad_cam", "Grad-CAM"),
    **_named("rise", "vit_cx", "outputs of masked images; shap and occlusion mask patches, too"),
    **_named("altiplus altilogit", "alti", "ALTI, of encoders; ALTI+ extends it to decoders"),
    **_named("globenc", "value_norms", "level='enc' and aggregate='rollout', its defaults, are GlobEnc"),
    **_named(
        "attentionnorm attentionnorms vectornorms normbased", "value_norms", "level='attn' is Kobayashi et al. 2020"
    ),
    **_named("attngrad attentiongradient attentiongradients gradientattention", "attention_x_gradient", "one layer"),
    **_named("attattr attentionattribution", "value_x_gradient", "attention attribution at one point of its path"),
}
METRICS: dict[str, Nearest] = {
    **_named("morf pixelflipping regionperturbation", "aopc", "features removed from the highest score down"),
    **_named("lerf", "negative_perturbation", "features removed from the lowest score up"),
    **_named("deletionauc selectivity irof road roar", "deletion", "area under the curve of removed features"),
    **_named("insertionauc", "insertion", "area under the curve of inserted features"),
    **_named("eraser comp", "comprehensiveness", "of ERASER, with sufficiency"),
    **_named("suff", "sufficiency", "of ERASER, with comprehensiveness"),
    **_named("softcomprehensiveness", "pi_soft_nc", "soft normalised comprehensiveness"),
    **_named("softsufficiency", "pi_soft_ns", "soft normalised sufficiency"),
    **_named("faithfulness faithfulnessestimate", "faithfulness_correlation", "or the default set: omit metric="),
    **_named("fidelity fidelityplus", "f_fidelity_plus", "needs surrogate=wf.masked_surrogate(…)"),
    **_named("fidelityminus", "f_fidelity_minus", "needs surrogate=wf.masked_surrogate(…)"),
    **_named("sensitivity sensitivitymax", "max_sensitivity", "largest change of the scores under noise"),
    **_named("gini giniindex sparseness complexity", "sparsity", "Gini index of the sizes of the scores"),
    **_named("efficiency additivity", "completeness", "gap between the sum of the scores and the change in output"),
    **_named("relevancemassaccuracy attributionlocalisation energybasedpointinggame", "relevance_mass", "share inside"),
    **_named("map averageprecision", "mean_average_precision", "of images; of texts: auprc"),
    **_named("iou intersectionoverunion", "iou_otsu", "of images; of texts: iou_f1"),
    **_named("plausibility", "token_f1", "agreement with what people marked; needs rationales=[…]"),
    **_named("lds lineardatamodelingscore", "linear_surrogate", "rank correlation over random halves"),
}
