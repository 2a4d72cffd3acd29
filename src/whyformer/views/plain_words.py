"""What methods and their own checks say, for readers who know neither: a phrase per method, a sentence per check."""

from __future__ import annotations

from collections.abc import Mapping

# A score, in a few words that follow "how", "what" or "where"; test_plain_words asks for one per method.
MEANINGS: Mapping[str, str] = {
    "alti": "how much of the answer's own position each part makes up, layer by layer",
    "attention_flow": "how much could flow from each part to the answer if attention were pipes",
    "attention_gradcam": "where one layer looks, counting the heads that raise the answer",
    "attention_rollout": "where all layers look, one after the other, whatever the answer",
    "attention_x_gradient": "where the model looked and looking raised the answer",
    "attn_lrp": "what the answer is made of, handed back layer by layer",
    "cp_lrp": "what the answer is made of, handed back through what attention carried",
    "decompx": "what each part adds to the answer when every step is split up exactly",
    "generic_attention": "attention that raised the answer, followed through all layers",
    "grad_cam": "where one layer sees what raises the answer",
    "grad_sam": "where more attention would raise the answer",
    "gradient_rollout": "where all layers look, counting what raises the answer",
    "input_x_gradient": "how strongly the answer leans on each part as it stands",
    "integrated_gradients": "what each part adds on the way from a neutral input to this one",
    "occlusion": "how far the answer falls without the part",
    "random": "nothing: numbers drawn by chance, to compare others with",
    "raw_attention": "where the model looked, whatever the answer",
    "saliency": "where a nudge would change the answer most",
    "shap": "each part's fair share of the answer",
    "smooth_grad": "where a nudge would change the answer most, averaged over noise",
    "transformer_attribution": "attention that carried the answer, followed through all layers",
    "two_ended": "what a part does when all others are there, and when none is",
    "value_norms": "how much each part is added in, layer by layer, whatever the answer",
    "value_x_gradient": "what each part hands on through attention and what the answer makes of it",
    "value_zeroing": "how much changes inside the model when a part hands on nothing",
    "vit_cx": "what is left of the answer when only some image parts are shown",
}

DEFAULT_FOR: Mapping[str, str] = {
    "text": "texts",
    "language": "language models",
    "image": "images",
    "table": "tables",
    "prompt": "models that are only asked",
}

UNMEASURED = "not tested. Every method draws a map, right or wrong; a report tests it (wf.report, or --report FILE)"


def method_words(name: str, default_for: str | None) -> str:
    """generic_attention, the default for texts: attention that raised the answer, followed through all layers"""
    chosen = "" if default_for is None else f", the default for {DEFAULT_FOR.get(default_for, 'such models')}"
    meaning = MEANINGS.get(name, "")
    return f"{name}{chosen}" + (f": {meaning}" if meaning else "")


# What a method knows of its own error: sums that should come out and do not, and what that leaves to read.
_ORDER = "Read which parts come first, not how much each one counts."
_SUMS: Mapping[str, str] = {
    "conservation error": (
        "The scores should add up to the relevance at the model's output, and {amount} is missing ({name} {value}): "
        f"biases and positions, which are no part of the input, hold it. {_ORDER}"
    ),
    "completeness error": (
        "The scores should add up to the change they are shares of, and {amount} is missing ({name} {value}). "
        f"{_ORDER}"
    ),
    "additivity error": (
        "The scores should add up to the change they are shares of, and {amount} is missing ({name} {value}). "
        f"{_ORDER}"
    ),
}
_OTHERS: Mapping[str, str] = {
    "standard error": (
        "The scores come from random draws and would come out differently by about {value}{of} the next time "
        "(standard error): parts whose scores are closer than that are not told apart."
    ),
    "split error": (
        "Sharing the flow among the parts is off by {value}{of} (split error): scores closer than that are not told "
        "apart."
    ),
}


def check_words(name: str, value: str, share: str | None) -> str:
    """A sentence about an error that is large, with its figures."""
    if name in _SUMS:
        amount = value if share is None else f"{share} of it"
        return _SUMS[name].format(amount=amount, name=name, value=value)
    words = _OTHERS.get(name, "The method says that it is off by {value}{of} ({name}).")
    return words.format(value=value, name=name, of="" if share is None else f" ({share} of the largest score)")


# A check that leaves nothing to doubt, in a word or two before its figures.
_SMALL: Mapping[str, str] = {
    "conservation error": "missing from the sum of scores",
    "completeness error": "missing from the sum of scores",
    "additivity error": "missing from the sum of scores",
    "standard error": "would vary by",
    "prefix reused": "share of the text that was not read again",
    "outside units": "score of what is in no unit",
}


def figure_words(name: str, figures: str) -> str:
    """missing from the sum of scores 0.01146 (0.6 %)"""
    return f"{_SMALL.get(name, name)} {figures}"
