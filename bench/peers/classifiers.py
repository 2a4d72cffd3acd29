"""Questions to captum, shap, transformers-interpret, interpreto and shapiq: a sentence and a text classifier."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from bench.peers.questions import Question, ours

LABEL = 1  # positive


def captum_integrated_gradients(model: Any, tokenizer: Any, text: str) -> Any:
    from captum.attr import LayerIntegratedGradients  # type: ignore[import-not-found]

    ids = tokenizer(text, return_tensors="pt").to(model.device)["input_ids"]
    masked = torch.full_like(ids, tokenizer.mask_token_id)
    method = LayerIntegratedGradients(lambda ids: model(ids).logits, model.get_input_embeddings())

    def call() -> Any:
        return method.attribute(ids, baselines=masked, target=LABEL, n_steps=50).sum(-1)[0]

    return call


def captum_saliency(model: Any, tokenizer: Any, text: str) -> Any:
    from captum.attr import Saliency

    ids = tokenizer(text, return_tensors="pt").to(model.device)["input_ids"]
    method = Saliency(lambda vectors: model(inputs_embeds=vectors).logits)

    def call() -> Any:
        return method.attribute(model.get_input_embeddings()(ids).detach(), target=LABEL).norm(dim=-1)[0]

    return call


def captum_input_x_gradient(model: Any, tokenizer: Any, text: str) -> Any:
    from captum.attr import InputXGradient

    ids = tokenizer(text, return_tensors="pt").to(model.device)["input_ids"]
    method = InputXGradient(lambda vectors: model(inputs_embeds=vectors).logits)

    def call() -> Any:
        return method.attribute(model.get_input_embeddings()(ids).detach(), target=LABEL).sum(-1)[0]

    return call


def captum_ablation(model: Any, tokenizer: Any, text: str) -> Any:
    from captum.attr import FeatureAblation

    ids = tokenizer(text, return_tensors="pt").to(model.device)["input_ids"]
    method = FeatureAblation(lambda ids: model(ids).logits)

    def call() -> Any:
        with torch.no_grad():
            found = method.attribute(ids, baselines=tokenizer.mask_token_id, target=LABEL, perturbations_per_eval=16)
        return found[0]

    return call


def captum_lime(model: Any, tokenizer: Any, text: str) -> Any:
    from captum.attr import KernelShap

    ids = tokenizer(text, return_tensors="pt").to(model.device)["input_ids"]
    groups = torch.arange(ids.shape[1], device=ids.device)[None].clamp(max=ids.shape[1] - 2)
    groups[0, -1] = 0  # [CLS] and [SEP] are one feature
    method = KernelShap(lambda ids: model(ids).logits)

    def call() -> Any:
        masked = torch.full_like(ids, tokenizer.mask_token_id)
        masked[0, 0], masked[0, -1] = ids[0, 0], ids[0, -1]
        how = {"baselines": masked, "feature_mask": groups, "perturbations_per_eval": 16}
        with torch.no_grad():
            return method.attribute(ids, target=LABEL, n_samples=512, **how)[0][1:-1]

    return call


def shap_exact(model: Any, tokenizer: Any, text: str) -> Any:
    import shap  # type: ignore[import-untyped]

    ids = np.array(tokenizer(text)["input_ids"])

    @torch.no_grad()
    def predict(kept: Any) -> Any:
        kept = np.concatenate([np.ones((len(kept), 1)), kept, np.ones((len(kept), 1))], 1) > 0
        masked = torch.tensor(np.where(kept, ids, tokenizer.mask_token_id), device=model.device)
        return torch.cat([model(part).logits[:, LABEL] for part in masked.split(64)]).cpu().numpy()

    method = shap.ExactExplainer(predict, np.zeros((1, len(ids) - 2)))

    def call() -> Any:
        return method(np.ones((1, len(ids) - 2))).values[0]

    return call


def shap_partition(model: Any, tokenizer: Any, text: str) -> Any:
    import shap
    from transformers import pipeline

    pipe = pipeline("text-classification", model=model, tokenizer=tokenizer, top_k=None, device=model.device)
    method = shap.Explainer(pipe, silent=True)

    def call() -> Any:
        return method([text], max_evals=256).values[0][1:-1, LABEL]

    return call


def interpret_integrated_gradients(model: Any, tokenizer: Any, text: str) -> Any:
    from transformers_interpret import SequenceClassificationExplainer  # type: ignore[import-not-found]

    method = SequenceClassificationExplainer(model, tokenizer)

    def call() -> Any:
        return [score for _, score in method(text, index=LABEL)]

    return call


def interpreto_occlusion(model: Any, tokenizer: Any, text: str) -> Any:
    from interpreto import Granularity, Occlusion  # type: ignore[import-not-found]

    method = Occlusion(model, tokenizer, batch_size=16, granularity=Granularity.TOKEN)

    def call() -> Any:
        return method(text, targets=torch.tensor([LABEL]))[0].attributions[0]

    return call


def interpreto_kernel_shap(model: Any, tokenizer: Any, text: str) -> Any:
    from interpreto import Granularity, KernelShap

    method = KernelShap(model, tokenizer, batch_size=64, granularity=Granularity.TOKEN, n_perturbations=512)

    def call() -> Any:
        return method(text, targets=torch.tensor([LABEL]))[0].attributions[0]

    return call


def interpreto_saliency(model: Any, tokenizer: Any, text: str) -> Any:
    from interpreto import Granularity, Saliency

    method = Saliency(model, tokenizer, granularity=Granularity.TOKEN, input_x_gradient=False)

    def call() -> Any:
        return method(text, targets=torch.tensor([LABEL]))[0].attributions[0]

    return call


def our_token_saliency(model: Any, tokenizer: Any, text: str) -> Any:
    import whyformer as wf

    def call() -> Any:
        why = wf.explain(model, text, tokenizer, method="saliency", scalar="logit", norm="l1", target=LABEL)
        return why.scores[1:-1] / model.config.hidden_size

    return call


def shapiq_exact(model: Any, tokenizer: Any, text: str) -> Any:
    import shapiq  # type: ignore[import-not-found]

    ids = np.array(tokenizer(text)["input_ids"])

    @torch.no_grad()
    def game(kept: Any) -> Any:
        kept = np.pad(kept.astype(bool), ((0, 0), (1, 1)), constant_values=True)
        masked = torch.tensor(np.where(kept, ids, tokenizer.mask_token_id), device=model.device)
        return torch.cat([model(part).logits[:, LABEL] for part in masked.split(64)]).cpu().numpy()

    def call() -> Any:
        return shapiq.ExactComputer(game, len(ids) - 2)("SV").get_n_order_values(1)

    return call


EXACT: dict[str, Any] = {"subject": "sentence", "timed": "larger, sentence"}
LOGIT: dict[str, Any] = {"target": LABEL, "scalar": "logit"}
SAMPLED = "512 random sets there, all 512 sets here"
TREE = "another tree of words; with shap's tree the difference is 9e-8"
TYPE = "the last [SEP] has token type 1 there; with that type the difference is 7e-8"


def words(why: Any) -> Any:
    return why.scores[1:-1]


our_exact_shap = ours(words, method="shap", algorithm="exact", replace="mask", **LOGIT)
our_tree = ours(words, method="shap", algorithm="partition", evaluations=256, scalar="probability", target=LABEL)
our_path = ours(method="integrated_gradients", steps=50, **LOGIT)
our_gradients = ours(
    lambda why: why.scores / np.linalg.norm(why.scores),
    method="integrated_gradients", baseline="pad", keep_special=True, scalar="probability", target=LABEL,
)  # fmt: skip

QUESTIONS: dict[str, list[Question]] = {
    "captum": [
        Question("integrated gradients, 50 points", theirs=captum_integrated_gradients, ours=our_path, **EXACT),
        Question("saliency", theirs=captum_saliency, ours=ours(method="saliency", **LOGIT), **EXACT),
        Question(
            "input × gradient", theirs=captum_input_x_gradient, ours=ours(method="input_x_gradient", **LOGIT), **EXACT
        ),
        Question(
            "ablation of tokens",
            theirs=captum_ablation,
            ours=ours(method="occlusion", replace="mask", **LOGIT),
            **EXACT,
        ),
        Question("Shapley values, 512 sets", theirs=captum_lime, ours=our_exact_shap, differs=SAMPLED, **EXACT),
    ],
    "shap": [
        Question("Shapley values, exact", theirs=shap_exact, ours=our_exact_shap, **EXACT),
        Question("Shapley values, partition", theirs=shap_partition, ours=our_tree, differs=TREE, **EXACT),
    ],
    "transformers-interpret": [
        Question(
            "integrated gradients", theirs=interpret_integrated_gradients, ours=our_gradients, differs=TYPE, **EXACT
        ),
    ],
    "interpreto": [
        Question("occlusion", theirs=interpreto_occlusion, ours=ours(words, method="occlusion", **LOGIT), **EXACT),
        Question("saliency", theirs=interpreto_saliency, ours=our_token_saliency, **EXACT),
        Question("Kernel SHAP, 512 sets", theirs=interpreto_kernel_shap, ours=our_exact_shap, differs=SAMPLED, **EXACT),
    ],
    "shapiq": [Question("Shapley values, exact", theirs=shapiq_exact, ours=our_exact_shap, **EXACT)],
}
