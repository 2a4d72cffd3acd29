"""What a peer or whyformer refuses: both are tried, and the error is the result. What has no call is a sentence."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

import whyformer as wf
from bench.peers.questions import Attempt
from bench.peers.subjects import SENTENCE, picture, sentence

NO_CALL = "no such call"


def convolutional() -> Any:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, 2)).eval()


def pixels() -> Any:
    return torch.rand(1, 3, 16, 16, generator=torch.Generator().manual_seed(0))


def neox() -> Any:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    torch.manual_seed(0)
    size = {"hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4}
    return GPTNeoXForCausalLM(GPTNeoXConfig(**size, vocab_size=50)).eval()


def ours_of_sentence(**how: Any) -> Any:
    model, tokenizer, text = sentence()
    return wf.explain(model, text, tokenizer, **how)


def captum_of_text() -> Any:
    from captum.attr import Saliency  # type: ignore[import-not-found]

    model, tokenizer, text = sentence()
    return Saliency(lambda ids: model(ids).logits).attribute(
        tokenizer(text, return_tensors="pt")["input_ids"], target=1
    )


def captum_of_convolutions() -> Any:
    from captum.attr import DeepLift

    return DeepLift(convolutional()).attribute(pixels(), target=0)


def shap_of_trees() -> Any:
    import shap  # type: ignore[import-untyped]

    return shap.TreeExplainer(trees()).shap_values(torch.eye(4).numpy())


def trees() -> Any:
    from sklearn.ensemble import GradientBoostingRegressor

    return GradientBoostingRegressor(n_estimators=3, random_state=0).fit(torch.eye(4).numpy(), [0.0, 1.0, 2.0, 3.0])


def inseq_of_classifier() -> Any:
    import inseq  # type: ignore[import-not-found]

    model, tokenizer, text = sentence()
    return inseq.load_model(model, "saliency", tokenizer=tokenizer).attribute(text, show_progress=False)


def lxt_of_neox() -> Any:
    from lxt.efficient import monkey_patch  # type: ignore[import-not-found]
    from transformers.models.gpt_neox import modeling_gpt_neox

    return monkey_patch(modeling_gpt_neox)


def flashtrace_of_neox() -> Any:
    from flashtrace import FlashTrace  # type: ignore[import-not-found]

    tokenizer = sentence()[1]
    model = neox()
    model.set_attn_implementation("eager")
    model.resize_token_embeddings(len(tokenizer))
    return FlashTrace(model, tokenizer).trace(prompt=SENTENCE, target=" great", output_span=(0, 0))


def interpreto_of_picture() -> Any:
    from interpreto import Saliency  # type: ignore[import-not-found]

    model, image = picture()
    return Saliency(model, sentence()[1])(image)


def ours_of_picture() -> Any:
    model, image = picture()
    return wf.explain(model, {"pixel_values": image}, method="saliency")


def interpret_several() -> Any:
    from transformers_interpret import SequenceClassificationExplainer  # type: ignore[import-not-found]

    model, tokenizer, text = sentence()
    return SequenceClassificationExplainer(model, tokenizer)([text, "So boring"])


def ours_several() -> Any:
    model, tokenizer, text = sentence()
    return wf.explain(model, [text, "So boring"], tokenizer, method="saliency")


def bertviz_of_sdpa() -> Any:
    from bertviz import head_view  # type: ignore[import-not-found]

    model, tokenizer, text = sentence()
    inputs = tokenizer(text, return_tensors="pt")
    attention = model(**inputs, output_attentions=True).attentions
    return head_view(attention, tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]), html_action="return")


def ours_of_sdpa() -> Any:
    model, tokenizer, text = sentence()
    return wf.Explainer(model, tokenizer).record(text).sites[0].attention_BHQK


def cam_of(model: Any, layer: Any, image: Any) -> Any:
    from pytorch_grad_cam import GradCAM  # type: ignore[import-not-found]

    return GradCAM(model=model, target_layers=[layer])(image, targets=None)


def cam_of_transformer() -> Any:
    model, image = picture()
    return cam_of(model, model.vit.layers[-1].layernorm_before, image)


def cam_of_convolutions() -> Any:
    model = convolutional()
    return cam_of(model, model[0], pixels())


def shapiq_of_triples() -> Any:
    import shapiq  # type: ignore[import-not-found]

    return shapiq.ExactComputer(lambda kept: kept.prod(1).astype(float), 4)("k-SII", order=3)


def zennit_of_convolutions() -> Any:
    from zennit.attribution import Gradient  # type: ignore[import-not-found]
    from zennit.composites import EpsilonPlus  # type: ignore[import-not-found]

    with Gradient(convolutional(), composite=EpsilonPlus()) as method:
        return method(pixels().requires_grad_(), torch.eye(2)[[0]])


def ours_of_convolutions(method: str) -> Any:
    return wf.explain(convolutional(), pixels(), method=method, target=0)


ATTEMPTS: dict[str, list[Attempt]] = {
    "captum": [
        Attempt("saliency of token ids", captum_of_text, lambda: ours_of_sentence(method="saliency")),
        Attempt("DeepLift, convolutional network", captum_of_convolutions, lambda: ours_of_convolutions("deep_lift")),
    ],
    "shap": [Attempt("boosted trees", shap_of_trees, lambda: wf.explain(trees(), torch.eye(4), method="shap"))],
    "inseq": [Attempt("a classifier", inseq_of_classifier, lambda: ours_of_sentence(method="saliency"))],
    "lxt": [
        Attempt(
            "GPT-NeoX",
            lxt_of_neox,
            lambda: wf.explain(neox(), {"input_ids": torch.tensor([[1, 7, 23]])}, method="attn_lrp"),
        )
    ],
    "interpreto": [Attempt("a picture", interpreto_of_picture, ours_of_picture)],
    "flashtrace": [
        Attempt(
            "GPT-NeoX",
            flashtrace_of_neox,
            lambda: wf.explain(neox(), {"input_ids": torch.tensor([[1, 7, 23]])}, method="attn_lrp"),
        )
    ],
    "context-cite": [Attempt("an answer that others wrote", NO_CALL, "runs")],
    "at2": [Attempt("a model without trained head weights", NO_CALL, "runs")],
    "bertviz": [Attempt("attention of an SDPA model", bertviz_of_sdpa, ours_of_sdpa)],
    "quantus": [Attempt("a sentence", NO_CALL, "runs")],
    "pytorch-grad-cam": [
        Attempt("a transformers model as it is", cam_of_transformer, ours_of_picture),
        Attempt("Grad-CAM, convolutional network", cam_of_convolutions, lambda: ours_of_convolutions("grad_cam")),
    ],
    "transformers-interpret": [Attempt("a list of sentences", interpret_several, ours_several)],
    "shapiq": [Attempt("interactions of three tokens", shapiq_of_triples, NO_CALL)],
    "zennit": [Attempt("LRP, convolutional network", zennit_of_convolutions, lambda: ours_of_convolutions("attn_lrp"))],
}
