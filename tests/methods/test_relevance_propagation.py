"""attn_lrp, cp_lrp and transformer_attribution against their twins and the laws of relevance."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import whyformer as wf
from tests.methods.properties import TARGET, close, explained, half_precision_is_finite, model_of
from tests.models import CASES
from tests.models.case import randint, randn, seeded
from tests.models.others import OTHERS
from tests.models.torch_nn import EncoderClassifier
from tests.references.attn_lrp import AttnLRP, relevance
from tests.references.differentiable import double
from tests.references.eager_attention import one_input, reported
from tests.references.transformer_attribution import transformer_attribution, walked
from tests.support.language import shared, tokenizer
from tests.support.released import experts_at_once
from whyformer.errors import NotOffered
from whyformer.run.traced import TracedBatch

BOTH = pytest.mark.parametrize("method", ["attn_lrp", "cp_lrp"])


def test_the_twin_gives_values_half_of_what_attention_got() -> None:
    """The rules as published: the value branch of each attention carries exactly half."""
    single = one_input(CASES["bert"].inputs(), 0)
    _, net, found = relevance("bert", model_of("bert", True), single, TARGET, AttnLRP())
    for weights in net.attention:
        (mixed,) = [node for node in found if weights in node.parents]
        close(found[mixed.parents[1]].sum(), found[mixed].sum() / 2, 1e-9)


VARIANTS = [{"method": "transformer_attribution", "variant": v} for v in ("full", "rollout", "last_layer", "lrp")]
LRP: list[dict[str, str]] = [{"method": "attn_lrp"}, {"method": "cp_lrp"}]


# Conservation


@pytest.mark.parametrize("name", ["llama_gqa", "gemma2", "phi3"])
def test_cp_lrp_conserves_without_biases(name: str) -> None:
    for found in explained(name, method="cp_lrp"):
        scale = float(np.abs(found.scores).sum())
        assert abs(found.scores.sum() - found.value) <= 1e-5 * scale
        assert found.checks["conservation_error"] <= 1e-5 * scale
    # AttnLRP does not: its softmax rule takes relevance away.
    assert max(e.checks["conservation_error_relative"] for e in explained(name, method="attn_lrp")) > 1e-3


@pytest.mark.parametrize("name", ["bert", "vit", "rtdl_ft_transformer", "visual_bert", "mixtral"])
def test_cp_lrp_conserves_at_the_tokens_once_biases_are_zero(name: str) -> None:
    """The router of experts is taken as given; text and image in one sequence are read at the tokens."""
    case = (CASES | OTHERS)[name]
    model = without_biases(case.build(case.implementations[0]))
    for found in wf.explain(model, case.inputs(), method="cp_lrp", at="tokens", target=TARGET):
        assert abs(found.scores.sum() - found.value) <= 1e-5 * np.abs(found.scores).sum()
        assert not any("no relevance rule" in words for words in found.warnings)
        assert name != "visual_bert" or set(found.units.stream) == {"text", "image"}


class GroupNormalised(nn.Module):
    """Patches, a norm over groups of channels, and attention over the patches (as in MobileViT v2 and Wav2Vec2)."""

    def __init__(self) -> None:
        super().__init__()
        self.patches, self.norms = nn.Conv2d(3, 8, 4, 4), nn.ModuleList([nn.GroupNorm(2, 8), nn.GroupNorm(1, 8)])
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, pixel_values: Tensor) -> Tensor:
        x = nn.functional.gelu(self.norms[0](self.patches(pixel_values))).flatten(2)
        tokens = self.norms[1](x).transpose(1, 2)
        return self.head((x.transpose(1, 2) + self.attention(tokens, tokens, tokens, need_weights=False)[0]).mean(1))


@pytest.mark.parametrize("method", ["attn_lrp", "cp_lrp"])
def test_group_norm_has_a_rule_and_keeps_relevance(method: str) -> None:
    model = without_biases(seeded(GroupNormalised))
    for found in wf.explain(model, (randn(2, 3, 16, 16),), method=method, target=1):
        assert found.warnings == ()
        if method == "cp_lrp":
            assert abs(found.scores.sum() - found.value) <= 1e-5 * np.abs(found.scores).sum()


@torch.no_grad()
def without_biases(model: nn.Module, *others: str) -> nn.Module:
    """The model with all biases zero, and the parameters whose names contain one of ``others``."""
    for name, parameter in model.named_parameters():
        if name.endswith("bias") or any(part in name for part in others):
            parameter.zero_()
    return model


def total_at_logits(logits: Tensor, scalar: Any) -> float:
    """Σ_j z_j ∂s/∂z_j: what the scores share out where s is made of logits."""
    logits = logits.detach().double().requires_grad_()
    (gradient,) = torch.autograd.grad(scalar(logits), logits)
    return (logits.detach() * gradient).sum().item()


SCALARS = {
    "logit": lambda z: z[TARGET],
    "probability": lambda z: z.softmax(0)[TARGET],
    "log_probability": lambda z: z.log_softmax(0)[TARGET],
    "log_odds": lambda z: z.softmax(0)[TARGET].logit(),
}


@pytest.mark.parametrize("scalar", SCALARS)
def test_conservation_is_measured_from_the_logits(scalar: str) -> None:
    case = CASES["llama"]
    model = case.build("sdpa")
    for row, found in enumerate(wf.explain(model, case.inputs(), method="cp_lrp", target=TARGET, scalar=scalar)):
        start = total_at_logits(model(**one_input(case.inputs(), row)).logits.flatten(0, -2)[-1], SCALARS[scalar])
        missing = abs(found.scores.sum() - start)
        scale = float(np.abs(found.scores).sum())
        assert found.checks["conservation_error"] == pytest.approx(missing, abs=1e-5 * scale)
        assert found.checks["conservation_error_relative"] == pytest.approx(
            missing / abs(start), abs=1e-4 * scale / abs(start)
        )
        assert not found.warnings
        assert found.checks["conservation_error"] <= 1e-5 * scale


@pytest.mark.parametrize("scalar", ["log_probability", "probability", "log_odds"])
def test_a_whole_answer_is_shared_out_from_its_logits(scalar: str) -> None:
    """The log-probability is computed by this library: its functions need no rule, and nothing of R is missing."""
    lm, ids = shared("llama"), lambda text: list(tokenizer()(text)["input_ids"])
    with shared.handed_back():
        prompt, answer = "the capital of france is", "paris and the dog"
        ask = {"processor": tokenizer(), "span": True, "scalar": scalar}
        found = wf.explain(lm, (prompt, answer), method="cp_lrp", **ask)
        tokens, count = torch.tensor([ids(prompt) + ids(answer)]), len(ids(answer))
        logits = lm(input_ids=tokens).logits[0, -count - 1 : -1]

        def said(z: Tensor) -> Tensor:
            total = z.log_softmax(1).gather(1, torch.tensor(ids(answer))[:, None]).sum()
            return {"log_probability": total, "probability": total.exp(), "log_odds": total.exp().logit()}[scalar]

        start = total_at_logits(logits, said)
        assert found.value == pytest.approx(said(logits.detach().double()).item(), rel=1e-4)
        assert found.scores.sum() == pytest.approx(start, abs=1e-5 * float(np.abs(found.scores).sum()))
        assert found.checks["conservation_error"] <= 1e-5 * np.abs(found.scores).sum()
        assert not found.warnings
        for method in ("attn_lrp", "transformer_attribution"):
            assert not wf.explain(lm, (prompt, answer), method=method, **ask).warnings


class T5Classifier(nn.Module):
    """An encoder of T5 under a head: python RMSNorm, no biases, gated or plain MLP."""

    def __init__(self, act: str) -> None:
        super().__init__()
        from transformers import T5Config, T5EncoderModel

        sizes = {"vocab_size": 100, "d_model": 32, "d_kv": 8, "d_ff": 64, "num_layers": 2, "num_heads": 4}
        self.encoder = T5EncoderModel(T5Config(**sizes, feed_forward_proj=act, relative_attention_num_buckets=8))
        self.head = nn.Linear(32, 3, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state[:, 0])


@pytest.mark.parametrize("act", ["relu", "gated-gelu"])
def test_t5_encoder(act: str) -> None:
    model, inputs = seeded(lambda: T5Classifier(act)), CASES["bert"].inputs()
    for found in wf.explain(model, inputs, method="cp_lrp", target=TARGET):
        assert abs(found.scores.sum() - found.value) <= 1e-5 * np.abs(found.scores).sum()
    for found in wf.explain(model, inputs, method="attn_lrp", target=TARGET):
        assert np.isfinite(found.scores).all()
        assert not found.warnings


class Mixer(nn.Module):
    """Linear, with a constant map of the positions in the place of attention."""

    def __init__(self, hidden: bool, first: Callable[[Tensor], Tensor] | None = None) -> None:
        super().__init__()
        self.hidden, self.first = hidden, first
        self.q, self.k, self.v = (nn.Linear(8, 8) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = x if self.first is None else self.first(x)
        scores = self.q(x) @ self.k(x).transpose(1, 2)
        own = torch.eye(x.shape[1], dtype=torch.bool)
        weights = scores.masked_fill(~own, -torch.inf).softmax(-1) if self.hidden else own.float()
        return self.head((x + weights @ self.v(x)).sum(1))


def test_a_linear_model_with_identity_attention_is_input_times_gradient() -> None:
    x = (randn(2, 5, 8, seed=3),)
    for model, method in ((Mixer(hidden=False), "attn_lrp"), (Mixer(hidden=True), "cp_lrp")):
        found = wf.explain(model, x, method=method, target=1)
        plain = wf.explain(model, x, method="input_x_gradient", target=1)
        for one, other in zip(found, plain, strict=True):
            close(one.scores, other.scores)


# What it reads, and where


def test_tables_are_read_at_the_tokens() -> None:
    found = explained("rtdl_ft_transformer", method="attn_lrp")
    for default, tokens in zip(found, explained("rtdl_ft_transformer", method="attn_lrp", at="tokens"), strict=True):
        assert np.array_equal(default.scores, tokens.scores)
        assert len(default.scores) == 8 and default.detail.shape == (8, 32)
    with pytest.raises(NotOffered, match="at='tokens'"):
        explained("rtdl_ft_transformer", method="attn_lrp", at="input")


@pytest.mark.parametrize("how", [LRP[0] | {"at": "tokens"}, VARIANTS[0], VARIANTS[3]], ids=str)
def test_as_many_inputs_as_positions_and_heads(how: dict[str, str]) -> None:
    ids = randint(5, 100, 4, 4, seed=4)
    together = explained("bert", {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, **how)
    for row, found in enumerate(together):
        one = {"input_ids": ids[row : row + 1], "attention_mask": torch.ones(1, 4, dtype=torch.long)}
        close(found.scores, explained("bert", one, **how)[0].scores)


def test_functions_without_a_rule_are_named() -> None:
    (found,) = wf.explain(Mixer(True, torch.exp), (randn(1, 5, 8),), method="attn_lrp", target=1)
    assert any("no relevance rule for exp" in w for w in found.warnings)


@torch.jit.script
def scripted_gelu(x: Tensor) -> Tensor:
    return x * 0.5 * (1.0 + torch.tanh(0.79788456 * x * (1.0 + 0.044715 * x * x)))


@torch.jit.script
def scripted_sum(x: Tensor, y: Tensor) -> Tensor:
    return x + 0.5 * y.transpose(0, 1).transpose(0, 1)


@pytest.mark.parametrize("method", ["attn_lrp", "cp_lrp", "transformer_attribution"])
def test_functions_that_no_mode_sees_are_named(method: str) -> None:
    class Scripted(nn.TransformerEncoderLayer):
        def forward(self, src: Tensor, *args: Any, **kwargs: Any) -> Tensor:
            return scripted_sum(src, super().forward(src, *args, **kwargs))

    def model() -> nn.Module:
        classifier = EncoderClassifier(norm_first=True)
        layer = Scripted(32, 4, 64, activation=scripted_gelu, batch_first=True, norm_first=True)
        classifier.encoder.layers = nn.ModuleList([layer])
        return classifier

    (found,) = wf.explain(seeded(model), CASES["nn_transformer_encoder"].inputs(), method=method, target=1)[:1]
    (warning,) = [w for w in found.warnings if "no relevance rule" in w]
    assert "tanh" in warning and "TorchScript" in warning
    # A sum's gradient is its rule where gradients are changed, and is none where they are relevances.
    assert ("add" in warning) == (method == "transformer_attribution")


@pytest.mark.parametrize("method", ["attn_lrp", "cp_lrp", "transformer_attribution"])
def test_an_activation_with_a_backward_of_its_own_has_the_rule_of_the_one_that_it_equals(method: str) -> None:
    """Bloom's GELU is a torch.autograd.Function, inside of which no rule applies."""
    case = OTHERS["bloom"]
    model, plain = case.build("eager"), case.build("eager")
    for block in plain.transformer.h:
        block.mlp.gelu_impl = nn.GELU(approximate="tanh")
    results = [wf.explain(each, case.inputs(), method=method, target=TARGET) for each in (model, plain)]
    for one, other in zip(*results, strict=True):
        close(one.scores, other.scores)
        assert not any("no relevance rule" in warning for warning in one.warnings)
    assert "forward" not in vars(model.transformer.h[0].mlp.gelu_impl)


@pytest.mark.parametrize("method", ["attn_lrp", "cp_lrp", "decompx"])
def test_a_contrast_is_the_difference_of_two_classes(method: str) -> None:
    one, other, contrast = (explained("bert", target=t, method=method)[0].scores for t in (0, 1, (0, 1)))
    assert one.min() < 0 < one.max()
    close(contrast, one - other)


@pytest.mark.parametrize("method", ["attn_lrp", "cp_lrp", "transformer_attribution"])
def test_a_token_whose_embedding_is_zero(method: str) -> None:
    ids = torch.tensor([[11, 0, 12, 0, 13]])  # Llama's padding token, here as a word
    (found,) = explained("llama", {"input_ids": ids, "attention_mask": torch.ones_like(ids)}, method=method)
    assert np.isfinite(found.scores).all() and found.scores.any()
    if method != "transformer_attribution":
        assert not found.scores[[1, 3]].any()


@BOTH
def test_a_model_that_detaches_is_refused(method: str) -> None:
    with pytest.raises(NotOffered, match="differentiable"):
        wf.explain(Mixer(True, torch.detach), (randn(1, 5, 8),), method=method, target=1)


METHOD = {"method": "transformer_attribution"}


def test_relevance_starts_at_the_explained_class_whatever_the_scalar() -> None:
    """Log-odds depend on all logits: their gradient does so, and the seed of relevance is still one-hot."""
    net, relevance = walked("bert", double("bert"), one_input(CASES["bert"].inputs(), 0), TARGET)
    others = [k for k in range(len(net.logits.value)) if k != TARGET]
    shares = dict(zip(others, -net.logits.value[others].softmax(0), strict=True)) | {TARGET: 1.0}
    slopes = {k: reported("bert", 0, k).gradient for k in shares}
    gradient = [sum(float(shares[k]) * slopes[k][layer] for k in shares) for layer in range(len(net.attention))]
    whole = transformer_attribution([relevance[node].numpy() for node in net.attention], gradient)
    close(explained("bert", **METHOD, scalar="log_odds")[0].scores, whole[net.row])
    for variant in ("rollout", "last_layer", "lrp"):
        one, other = (explained("bert", **METHOD, variant=variant, scalar=s)[0] for s in ("logit", "log_odds"))
        close(one.scores, other.scores)
        assert one.value != other.value


@pytest.mark.parametrize(
    "name",
    ["gpt2", "llama", "modernbert", "gemma2", "dinov2", "looped_heads", "nn_transformer_encoder_seq_first", "einsum"],
)
def test_relevance_is_conserved(name: str) -> None:
    """Seeded with one, one arrives at the tokens, whatever biases the model has."""
    for found in explained(name, **METHOD, variant="lrp"):
        assert found.scores.sum() == pytest.approx(1, abs=1e-4)
        assert not [w for w in found.warnings if "also pools other positions" not in w]  # DINOv2


@experts_at_once
@pytest.mark.parametrize(
    ("name", "ways"), [("mixtral", ("grouped_mm", "eager")), ("gpt_oss", ("eager", "grouped_mm", "batched_mm"))]
)
def test_it_does_not_matter_how_experts_are_multiplied(name: str, ways: tuple[str, ...]) -> None:
    """Experts keep what is seeded; their biases, which gpt_oss has, take no share."""
    case, results = OTHERS[name], []
    for way in ways:
        model = case.build("eager")
        model.set_experts_implementation(way)
        with torch.no_grad():
            for path, parameter in model.named_parameters():
                if path.endswith("proj_bias"):
                    parameter.copy_(randn(*parameter.shape, seed=3))
        results.append(wf.explain(model, case.inputs(), target=TARGET, **METHOD, variant="lrp"))
        for found in results[-1]:
            assert found.scores.sum() == pytest.approx(1, abs=1e-4)
            assert not any("no relevance rule" in w for w in found.warnings)
    for other in results[1:]:
        for one, same in zip(results[0], other, strict=True):
            close(one.scores, same.scores)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision(dtype: torch.dtype) -> None:
    """The relevance pass itself runs in double precision, so it sums to one all the same."""
    for name in ("bert", "llama"):
        for found in half_precision_is_finite(name, dtype, **METHOD, variant="lrp"):
            assert found.scores.sum() == pytest.approx(1, abs=1e-4)


def siglip() -> nn.Module:
    tower = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    tower |= {"image_size": 32, "patch_size": 8}
    text: dict[str, Any] = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = hf.SiglipConfig(vision_config=tower, text_config=text, num_labels=3)
    return seeded(lambda: hf.SiglipForImageClassification(config)).eval()


IMAGE = {"pixel_values": randn(1, 3, 32, 32)}


def test_patches_share_all_of_the_score() -> None:
    """Of SigLIP, which has no special token: its head attends to the patches."""
    for method in ("attn_lrp", "cp_lrp"):
        result = wf.explain(without_biases(siglip(), "position"), IMAGE, method=method, target=1)[0]
        assert result.units.grid == (4, 4) and len(result.units) == 16
        assert (result.scores != 0).all()
    assert float(result.scores.sum()) == pytest.approx(result.value, rel=1e-3)
    assert result.checks["conservation_error_relative"] < 1e-3


class Pooled(nn.Module):
    """A learned query reads the columns of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.columns, self.query = nn.Parameter(torch.randn(4, 16)), nn.Parameter(torch.randn(1, 1, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.pool, self.head = nn.MultiheadAttention(16, 2, batch_first=True), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        h = self.layer(x[..., None] * self.columns)
        return self.head(self.pool(self.query.expand(len(h), -1, -1), h, h)[0][:, 0])


@BOTH
@pytest.mark.parametrize("zero", range(4))
def test_relevance_of_columns_that_a_query_reads_is_at_its_column(zero: int, method: str) -> None:
    """Input × gradient is zero where the input is."""
    row = torch.where(torch.arange(4) == zero, 0.0, torch.tensor([[1.0, -2.0, 0.5, 1.5]]))
    (found,) = wf.explain(seeded(Pooled), {"x": row}, method=method, target=1)
    assert [bool(score) for score in found.scores] == [i != zero for i in range(4)] + [False]


# Later passes follow a plan: which function meets which rule is known from the first one.


def by_plan(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each trace from now on followed a plan to its end."""
    followed, traced = [], TracedBatch.traced

    def noted(self: TracedBatch, rules: Any, dtype: Any = None, plan: Any = None) -> Any:
        trace = traced(self, rules, dtype, plan)
        followed.append(bool(plan))
        return trace

    monkeypatch.setattr(TracedBatch, "traced", noted)
    return followed


@BOTH
@pytest.mark.parametrize("name", ["bert", "vit", "llama_gqa", "gpt2"])
def test_a_planned_pass_gives_the_same(name: str, method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = (CASES | OTHERS)[name]
    model = case.build(case.implementations[0])
    explainer = wf.Explainer(model)
    first = explainer.explain(case.inputs(), method=method, target=TARGET)
    others = {k: v if "mask" in k else v.flip(0) for k, v in case.inputs().items()}
    followed = by_plan(monkeypatch)
    again, other = (explainer.explain(inputs, method=method, target=TARGET) for inputs in (case.inputs(), others))
    assert followed == [True, True]
    monkeypatch.setattr(TracedBatch, "plan_rules", lambda *_: None)
    fresh = wf.Explainer(case.build(case.implementations[0])).explain(others, method=method, target=TARGET)
    for found, expected in ((again, first), (other, fresh)):
        for a, b in zip(found, expected, strict=True):
            close(torch.tensor(a.scores), torch.tensor(b.scores), 1e-6)
            assert a.cost.forwards == b.cost.forwards and a.warnings == b.warnings
            np.testing.assert_allclose(a.detail, b.detail, atol=1e-6 * np.abs(b.detail).max())


class Undecided(nn.Module):
    """Another activation for inputs that begin with a large token."""

    def __init__(self) -> None:
        super().__init__()
        self.words, self.first, self.head = nn.Embedding(20, 8), nn.Linear(8, 8), nn.Linear(8, 2)
        self.attend = nn.MultiheadAttention(8, 2, batch_first=True)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.first(self.words(input_ids))
        x = torch.tanh(x) if int(input_ids[0, 0]) > 9 else torch.relu(x)
        return self.head(self.attend(x, x, x)[0].mean(1))


@BOTH
def test_a_model_that_leaves_its_plan_is_followed_again(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = seeded(Undecided).eval()
    small, large = torch.tensor([[3, 4, 5, 6]]), torch.tensor([[13, 4, 5, 6]])
    expected = wf.Explainer(model).explain({"input_ids": large}, method=method, target=TARGET)[0]
    explainer = wf.Explainer(model)
    for _ in range(2):
        explainer.explain({"input_ids": small}, method=method, target=TARGET)
    followed = by_plan(monkeypatch)
    found = explainer.explain({"input_ids": large}, method=method, target=TARGET)[0]
    assert followed == [False]
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)
    assert found.cost.forwards == expected.cost.forwards == 1


class LibraGrad(TorchFunctionMode):
    """Mehri et al. 2024 in their own terms: paths that are not affine are pruned from the backward pass."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ == "softmax":
            return out.detach()  # self-attention: values alone
        if func.__name__ == "gelu":
            return args[0] * torch.special.ndtr(args[0]).detach()  # x · Φ(x): the gate is pruned
        if func.__name__ == "layer_norm":
            x = args[0]
            deviation = (x.var(-1, correction=0, keepdim=True) + kwargs["eps"]).sqrt().detach()
            return (x - x.mean(-1, keepdim=True)) / deviation * kwargs["weight"] + kwargs["bias"]
        return out


def test_input_times_libra_gradient_is_cp_lrp() -> None:
    case = CASES["vit"]
    model, inputs = case.build("eager"), case.inputs()
    pixels = inputs["pixel_values"].clone().requires_grad_()
    with LibraGrad():
        score = model(pixel_values=pixels).logits[:, 1].sum()
    terms = (pixels * torch.autograd.grad(score, pixels)[0]).detach()
    explained = wf.explain(model, inputs, method="cp_lrp", scalar="logit", target=1)
    for one, expected in zip(explained, terms, strict=True):
        assert one.detail is not None
        np.testing.assert_allclose(one.detail, expected.numpy(), atol=1e-5 * float(expected.abs().max()))
