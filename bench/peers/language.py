"""Questions to inseq, LXT, FlashTrace and bertviz: a prompt and a language model, or its attention."""

from __future__ import annotations

from typing import Any

import torch

from bench.peers.questions import Question, ours


def inseq_input_x_gradient(model: Any, tokenizer: Any, prompt: str) -> Any:
    import inseq  # type: ignore[import-not-found]

    method = inseq.load_model(model, "input_x_gradient", tokenizer=tokenizer)

    def call() -> Any:
        how = {"generation_args": {"max_new_tokens": 1}, "show_progress": False, "attributed_fn": "logit"}
        return method.attribute(prompt, **how).sequence_attributions[0].target_attributions[:-1, 0].sum(-1)

    return call


def inseq_saliency(model: Any, tokenizer: Any, prompt: str) -> Any:
    import inseq

    method = inseq.load_model(model, "saliency", tokenizer=tokenizer)

    def call() -> Any:
        how = {"generation_args": {"max_new_tokens": 1}, "show_progress": False, "attributed_fn": "logit"}
        return method.attribute(prompt, **how).sequence_attributions[0].target_attributions[:-1, 0].norm(dim=-1)

    return call


def inseq_attention(model: Any, tokenizer: Any, prompt: str) -> Any:
    import inseq

    model.set_attn_implementation("eager")
    method = inseq.load_model(model, "attention", tokenizer=tokenizer)

    def call() -> Any:
        out = method.attribute(prompt, generation_args={"max_new_tokens": 1}, show_progress=False)
        return out.sequence_attributions[0].target_attributions[:-1, 0].mean((-2, -1))

    return call


def lxt_attn_lrp(model: Any, tokenizer: Any, prompt: str) -> Any:
    from lxt.efficient import monkey_patch  # type: ignore[import-not-found]
    from transformers.models.llama import modeling_llama

    monkey_patch(modeling_llama)
    model.requires_grad_(False)
    ids = tokenizer(prompt, return_tensors="pt").to(model.device)["input_ids"]

    def call() -> Any:
        vectors = model.get_input_embeddings()(ids).requires_grad_()
        logits = model(inputs_embeds=vectors, use_cache=False).logits
        logits[0, -1].max().backward()
        return (vectors * vectors.grad).sum(-1)[0]

    return call


def flashtrace_answer(model: Any, tokenizer: Any, prompt: str) -> Any:
    from flashtrace import FlashTrace  # type: ignore[import-not-found]

    model.set_attn_implementation("eager")
    tracer = FlashTrace(model, tokenizer)

    def call() -> Any:
        return tracer.trace(prompt=prompt, target=" Paris", output_span=(0, 0), hops=1).scores

    return call


def bertviz_attention(model: Any, tokenizer: Any, text: str) -> Any:
    from bertviz import head_view  # type: ignore[import-not-found]

    model.set_attn_implementation("eager")
    inputs = tokenizer(text, return_tensors="pt").to(model.device)

    def call() -> Any:
        with torch.no_grad():
            attention = model(**inputs, output_attentions=True).attentions
        head_view(attention, tokenizer.convert_ids_to_tokens(inputs["input_ids"][0]), html_action="return")
        return torch.stack(attention)

    return call


def our_record(model: Any, tokenizer: Any, text: str) -> Any:
    import whyformer as wf
    from whyformer.views import heads_grid

    explainer = wf.Explainer(model, tokenizer)

    def call() -> Any:
        record = explainer.record(text)
        heads_grid(record).to_html()
        return torch.stack([site.attention_BHQK for site in record.sites])

    return call


FLOWS = "FlashTrace shares out norms of attention outputs, attn_lrp propagates relevance"
OUR_LRP, OUR_PRODUCT, OUR_SLOPE = (
    ours(method=method, scalar="logit") for method in ("attn_lrp", "input_x_gradient", "saliency")
)
OUR_MEAN = ours(method="raw_attention", scalar="logit", layers="mean")

QUESTIONS: dict[str, list[Question]] = {
    "inseq": [
        Question("input × gradient", "prompt", theirs=inseq_input_x_gradient, ours=OUR_PRODUCT),
        Question("saliency", "prompt", theirs=inseq_saliency, ours=OUR_SLOPE),
        Question("attention, mean", "prompt", theirs=inseq_attention, ours=OUR_MEAN),
    ],
    "lxt": [Question("AttnLRP", "prompt", theirs=lxt_attn_lrp, ours=OUR_LRP, patches=True)],
    "flashtrace": [Question("sources of an answer", "prompt", theirs=flashtrace_answer, ours=OUR_LRP, differs=FLOWS)],
    "bertviz": [
        Question(
            "attention and its picture", "sentence", theirs=bertviz_attention, ours=our_record, timed="larger, sentence"
        ),
    ],
}
