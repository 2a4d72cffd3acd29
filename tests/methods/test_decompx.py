"""decompx against its twin, the golden numbers, and what must hold on any model."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

import whyformer as wf
from tests.methods.properties import FAMILY, close, explained, golden, meets_golden
from tests.references.decompx import RULES
from whyformer.capture.decompose import shares as decompose_shares
from whyformer.capture.decompose.rules import Decompose, Stack
from whyformer.capture.decompose.shares import BIAS_RULES, Shares
from whyformer.capture.intercept import current_path
from whyformer.loan.borrow import module_names

METHOD = {"method": "decompx"}
COMPLETE = (
    *FAMILY,
    *("gpt2_cls", "llama_cls", "llama_gqa", "roberta", "albert", "deberta_v2", "modernbert", "xlnet", "gemma2", "opt"),
    *("beit", "dinov2", "nn_transformer_encoder_seq_first", "timm_unfused", "einsum", "folded_heads", "looped_heads"),
    *("rtdl_ft_transformer", "lucidrains_ft_transformer"),
)


def test_the_twin_has_every_rule() -> None:
    assert RULES == (*BIAS_RULES, None)


GOLDEN = {"absdot": "default", "norm": "bias_norm", "equal": "bias_equal", "abssim": "bias_abssim", None: "no_bias"}


@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("bias", GOLDEN, ids=str)
def test_golden_shares_of_all_logits(bias: str | None, row: int) -> None:
    inputs, length = one_of_golden(row)
    seen: dict[str, Shares] = {}
    role, logits = follow(golden().model, inputs, length, bias, lambda path, _, shares: seen.update({path: shares}))
    meets_golden(role.settled(logits).hold()[:, 0], f"decompx.{GOLDEN[bias]}.logit_shares", row)
    if bias == "absdot":
        pooled = seen["bert.pooler.activation"].hold()[:, 0]
        meets_golden(pooled.norm(dim=-1), "decompx.default.pooler_norm", row)


def one_of_golden(row: int) -> tuple[dict[str, Tensor], int]:
    length = int(golden().inputs["attention_mask"][row].sum())
    return {k: v[row : row + 1, :length] for k, v in golden().inputs.items()}, length


class Reporting(Decompose):
    """Hands every tensor that has shares to ``watch``."""

    watch: Any = None

    def _put(self, tensor: Any, shares: Any) -> None:
        super()._put(tensor, shares)
        if isinstance(tensor, Tensor) and shares is not None and self.watch is not None:
            self.watch(current_path(self.names), tensor, shares)


@torch.no_grad()
def follow(
    model: nn.Module, inputs: dict[str, Tensor], length: int, bias: str | None, watch: Any
) -> tuple[Decompose, Tensor]:
    """Run a model in the decomposing role, outside of an explanation."""
    paths = [name for name, _ in model.named_modules() if name.endswith(("attention.self", "self_attn"))]
    model.requires_grad_(False)
    role = Reporting(module_names(model), Stack.of(model, paths), length, bias)
    role.watch = watch
    with role:
        return role, model(**inputs).logits


@pytest.mark.parametrize("name", COMPLETE)
def test_shares_add_up_to_the_logit(name: str) -> None:
    for found in explained(name, **METHOD):
        assert found.scores.sum() == pytest.approx(found.value, abs=1e-4)
        assert found.checks["completeness_error"] < 1e-4
        assert found.base == 0


def test_without_biases_they_do_not() -> None:
    found = explained("bert", **METHOD, bias=None)[0]
    assert found.checks["completeness_error"] > 0.01
    assert found.checks["completeness_error"] == pytest.approx(abs(found.scores.sum() - found.value), abs=1e-5)


def test_memory_stays_below_the_wide_middle(monkeypatch: pytest.MonkeyPatch) -> None:
    """128 tokens: no tensor has N²·4d numbers, or more than the stream of hidden states, N²·d."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 128}
    model = BertForSequenceClassification(BertConfig(vocab_size=50, **sizes)).eval()
    ids = torch.randint(5, 50, (1, 128), generator=torch.Generator().manual_seed(0))
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    (whole,) = wf.explain(model, inputs, target=1, **METHOD)
    monkeypatch.setattr(decompose_shares, "BUDGET", 2**15)
    with Largest() as largest:
        (found,) = wf.explain(model, inputs, target=1, **METHOD)
    close(found.scores, whole.scores)
    assert largest.numbers <= 128 * 128 * 32
    assert found.checks["completeness_error"] < 1e-4


def test_work_grows_with_the_layers_and_no_faster() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    ids = torch.arange(5, 11)[None]
    calls = []
    for layers in (3, 6):
        sizes = {"hidden_size": 16, "num_attention_heads": 2, "intermediate_size": 32, "num_hidden_layers": layers}
        model = LlamaForCausalLM(LlamaConfig(vocab_size=20, **sizes)).eval()
        with Largest() as counted:
            wf.explain(model, {"input_ids": ids}, target=1, **METHOD)
        calls.append(counted.calls)
    assert calls[1] < 2.1 * calls[0]


class Largest(TorchDispatchMode):
    """The largest tensor that is made, and how many calls there were."""

    numbers = 0
    calls = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self.calls += 1
        if isinstance(out, Tensor) and not out._is_view():
            self.numbers = max(self.numbers, out.untyped_storage().nbytes() // out.element_size())
        return out
