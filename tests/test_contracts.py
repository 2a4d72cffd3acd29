"""What every method promises on every model: batch = singles, padding changes nothing, same seed same scores,
the model comes back as it was, and the declared cost is the counted cost. New methods and cases join by themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

import whyformer as wf
from tests.methods import properties
from tests.methods.properties import near as close
from tests.models import CASES, Case, model_of
from whyformer.choices import BACKWARD
from whyformer.errors import BadInput, NotOffered, NotOverUnits
from whyformer.registry import Method

ROOT = Path(__file__).parent.parent
METHODS = wf.list_methods()
MODELS = ["bert", "vit", "gpt2", "llama", "modernbert", "beit", "nn_transformer_encoder", "rtdl_ft_transformer"]
# Options that make slow methods quick on tiny models without changing what is tested.
QUICK: dict[str, dict[str, Any]] = {"integrated_gradients": {"steps": 3}, "smooth_grad": {"samples": 3}}
DRAWING = {"random", "shap", "smooth_grad", "vit_cx"}  # same seed, same scores: asked on every model
PAIRS = [(m, c) for m in METHODS for c in MODELS]
EACH = pytest.mark.parametrize(("method", "name"), PAIRS, ids=[f"{m}-{c}" for m, c in PAIRS])


def explained(case: Case, model: torch.nn.Module, inputs: Any, method: str) -> list[wf.Explanation] | None:
    """The explanations, or None where the method says plainly that it does not fit (tested elsewhere)."""
    try:
        return wf.explain(model, inputs, method=method, target=1, **QUICK.get(method, {}))
    except (NotOffered, NotOverUnits) as refusal:
        assert len(str(refusal)) > 40, "a refusal has to say why and what to do"
        return None


def single(inputs: Any, row: int) -> Any:
    if isinstance(inputs, dict):
        return {k: v[row : row + 1] for k, v in inputs.items()}
    return tuple(v[row : row + 1] for v in inputs)


def cropped(inputs: Any, row: int, length: int) -> Any:
    """One row without its padding."""
    one = single(inputs, row)
    keep = {k: v[:, :length] if v.ndim == 2 else v for k, v in one.items()} if isinstance(one, dict) else None
    return keep if keep is not None else tuple(v[:, :length] if v.ndim == 2 else v for v in one)


@EACH
def test_contract(method: str, name: str) -> None:
    case = CASES[name]
    model = model_of(name)
    inputs = case.inputs()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    batch = explained(case, model, inputs, method)
    if batch is None:
        return
    entry = METHODS[method]
    check_result(batch, entry)
    turn = list(METHODS).index(method) + MODELS.index(name)
    if method in DRAWING or turn % 3 == 0:  # each model and each method
        again = explained(case, model, inputs, method)
        assert again is not None
        for one, other in zip(batch, again, strict=True):
            assert np.array_equal(one.scores, other.scores), "same inputs, same seed, other scores"
    # Padding makes two rows; where there is none, one of them in turn.
    rows = range(len(batch)) if case.units == "tokens" else [turn % len(batch)]
    for row in rows:
        together = batch[row]
        padded = case.units == "tokens" and len(together.scores) < len(batch[0].scores)
        by_itself = cropped(inputs, row, len(together.scores)) if padded else single(inputs, row)
        alone = explained(case, model, by_itself, method)
        assert alone is not None
        close(together.scores, alone[0].scores)
    for key, value in model.state_dict().items():
        assert torch.equal(value, before[key])


def check_result(batch: list[wf.Explanation], entry: Method, scalar: str = "centred") -> None:
    for explanation in batch:
        scores = explanation.scores
        assert scores.dtype == np.float32
        assert scores.shape == (len(explanation.units),)
        assert np.isfinite(scores).all()
        if not entry.signed:
            assert (scores >= 0).all()
        options = explanation.options
        counted = (explanation.cost.forwards, explanation.cost.backwards)
        declared = entry.cost(len(scores), **options)
        assert entry.works or counted == declared or (entry.at_most and max(np.subtract(counted, declared)) <= 0)
        assert explanation.target.index == 1
        assert explanation.scalar == options.get("score", scalar)  # vit_cx is of the probability, and says so


class Counted(TorchDispatchMode):
    """Multiply-adds by torch's formulas; its own counter has hooks on modules, under which some gradients raise."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in flop_registry:
            self.total += flop_registry[func.overloadpacket](*args, **(kwargs or {}), out_val=out)
        return out


@contextmanager
def multiply_adds() -> Iterator[Counted]:
    """Everything that runs inside, with encoders and attention written out: fused ones are not counted on a CPU."""
    with sdpa_kernel(SDPBackend.MATH), BaseTorchFunctionMode(), Counted() as counter:
        yield counter


# A backward counts as a forward. These end before the first products: at the first map (vit and beit put a quarter of
# their few products before it), or without those of queries and keys (cp_lrp).
EARLY = {
    (m, c) for m, c in PAIRS if m == "cp_lrp" or (c in {"vit", "beit"} and "attention_gradients" in METHODS[m].needs)
}


@EACH
def test_estimated_and_reported_cost_are_the_work_that_is_done(method: str, name: str) -> None:
    """In multiply-adds, counted by torch, in units of a forward of the same input; what is a bound says so."""
    how = {"method": method, **QUICK.get(method, {})}
    model, inputs = model_of(name), single(CASES[name].inputs(), 0)
    estimated = wf.estimate(model, inputs, **how)
    if explained(CASES[name], model, inputs, method) is None:  # otherwise, with it all ran that runs once per model
        return
    counted = []
    for each in ({"method": "random"}, how):  # one plain forward, as the library makes it
        wf.explain(model, inputs, target=1, **each)
        with multiply_adds() as work:
            cost = wf.explain(model, inputs, target=1, **each)[0].cost
        counted.append(work.total)
    ratio, told = counted[1] / counted[0], estimated.forwards + BACKWARD * estimated.backwards
    reported = cost.forwards + BACKWARD * cost.backwards
    assert cost.setup_forwards == 0
    assert reported == pytest.approx(ratio, rel=0.1) or ((method, name) in EARLY and 0.7 < ratio / reported < 1)
    assert estimated.at_most == str(estimated).startswith(f"{method}: at most")
    assert told == pytest.approx(reported, rel=0.05) or (estimated.at_most and told > reported)


LEFT = ["bert", "gpt2", "llama", "xlnet"]


@pytest.mark.parametrize("name", LEFT)
@pytest.mark.parametrize("method", METHODS)
def test_left_padding_changes_nothing(method: str, name: str) -> None:
    """The same tokens with padding on the left, positions given so that the model itself does not mind."""
    case = CASES[name]
    model = model_of(name)
    ids = torch.tensor([[11, 12, 13, 14, 15, 16]])
    bare = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    padded = {
        "input_ids": torch.cat([torch.zeros(1, 3, dtype=torch.long), ids], 1),
        "attention_mask": torch.tensor([[0, 0, 0, 1, 1, 1, 1, 1, 1]]),
    }
    if name != "xlnet":  # relative positions need no numbers
        bare["position_ids"] = torch.arange(6)[None]
        padded["position_ids"] = torch.tensor([[0, 0, 0, 0, 1, 2, 3, 4, 5]])
    expected = explained(case, model, bare, method)
    try:
        found = explained(case, model, padded, method)
    except BadInput as refusal:  # its head reads position 0, which is padding now
        assert name == "bert" and "is padding here" in str(refusal)
        return
    if expected is None or found is None:
        assert expected is None and found is None
        return
    if name == "bert":  # explained as it answers, which is from padding
        assert len(found[0].scores) == 6
        assert not wf.list_methods()[method].needs & {"attention", "attention_gradients"}
        return
    close(found[0].scores, expected[0].scores)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("method", ["raw_attention", "generic_attention", "grad_sam", "attn_lrp"])
def test_an_earlier_position_is_counted_without_padding(method: str, name: str) -> None:
    """Beside a longer text, with padding on its left: what is said after the third token is read at the third token."""
    ids = torch.tensor([[11, 12, 13, 14, 15, 16]])
    numbers = torch.arange(6)[None]
    bare = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": numbers}
    left = {key: torch.cat([torch.zeros(1, 3, dtype=torch.long), value], 1) for key, value in bare.items()}
    target = wf.Target(index=1, position=2)
    (alone,), (padded,) = (wf.explain(model_of(name), how, method=method, target=target) for how in (bare, left))
    assert padded.value == pytest.approx(alone.value, abs=1e-5)
    close(padded.scores, alone.scores)
    assert (alone.scores[3:] == 0).all() or method == "attn_lrp"


@pytest.mark.parametrize("name", ["gpt2", "llama", "xlnet"])
def test_a_model_that_is_first_seen_with_padding_on_the_left(name: str) -> None:
    """The row that feeds the head is found among the real positions, and read there in texts without padding."""
    ids = torch.tensor([[11, 12, 13, 14, 15, 16]])
    bare = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if name != "xlnet":
        bare["position_ids"] = torch.arange(6)[None]
    left = {key: torch.cat([torch.zeros(1, 3, dtype=torch.long), value], 1) for key, value in bare.items()}
    fresh, how = CASES[name].build(CASES[name].implementations[0]), {"method": "generic_attention", "target": 1}
    (first,), (then,) = (wf.explain(fresh, inputs, **how) for inputs in (left, bare))
    (alone,) = wf.explain(model_of(name), bare, **how)
    for found in (first, then):
        assert found.readout == alone.readout
        close(found.scores, alone.scores)


# Options with formulas of their own, on these models: neither the batch nor padding changes a score.
TEXTS, TABLE = "bert gpt2 llama", "rtdl_ft_transformer"
OPTIONS: list[tuple[str, dict[str, Any], str]] = [
    ("attention_flow", {"rows": "all"}, TEXTS),
    ("attention_gradcam", {"region": "row"}, f"{TEXTS} vit {TABLE}"),
    ("attention_gradcam", {"region": "row_units"}, f"vit {TABLE}"),
    ("attention_gradcam", {"region": "row", "layer": 0}, TEXTS),
    ("attention_rollout", {"discard": 0.5, "protect_special": True}, TEXTS),
    ("attention_rollout", {"heads": "min"}, "bert gpt2"),
    ("attention_rollout", {"residual": "mixing"}, TEXTS),
    ("attn_lrp", {"at": "tokens"}, TEXTS),
    ("cp_lrp", {"at": "tokens"}, TEXTS),
    ("decompx", {"bias": "equal"}, TEXTS),
    ("gradient_rollout", {"discard": 0.5}, f"{TEXTS} vit {TABLE}"),
    ("input_x_gradient", {}, "swin"),
    ("integrated_gradients", {"steps": 3}, "swin"),
    ("integrated_gradients", {"steps": 3, "at": "embeddings"}, TEXTS),
    ("saliency", {}, "swin"),
    ("saliency", {"at": "embeddings"}, TEXTS),
    ("shap", {"evaluations": 32, "replace": 4}, TEXTS),
    ("shap", {"evaluations": 30, "replace": 4, "guide": "attn_lrp"}, "bert"),
    ("smooth_grad", {"samples": 3, "at": "embeddings"}, TEXTS),
    ("transformer_attribution", {"variant": "rollout"}, f"{TEXTS} vit {TABLE}"),
    ("transformer_attribution", {"variant": "last_layer"}, f"{TEXTS} deberta_v2"),
    ("transformer_attribution", {"variant": "lrp"}, f"{TEXTS} nn_transformer_encoder_seq_first"),
    ("two_ended", {"replace": 4}, TEXTS),
    ("value_norms", {"level": "attn"}, TEXTS),
    ("value_norms", {"weight": "gradient"}, TEXTS),
]


@pytest.mark.parametrize(("method", "options", "names"), OPTIONS, ids=str)
def test_options_know_neither_batch_nor_padding(method: str, options: dict[str, Any], names: str) -> None:
    tolerance = 1e-4 if method in {"attention_gradcam", "shap"} else 1e-5  # slopes of both signs nearly cancel
    for name in names.split():
        properties.batch_is_its_rows(name, tolerance, method=method, **options)
        if "attention_mask" in CASES[name].inputs():
            properties.padding_is_nothing(name, tolerance, method=method, **options)


@pytest.mark.parametrize("name", ["gpt2", "llama"])
@pytest.mark.parametrize("method", METHODS)
def test_maps_of_a_causal_model_are_lower_triangular(method: str, name: str) -> None:
    try:
        found = wf.explain(
            model_of(name), CASES[name].inputs(), method=method, target=1, keep_layers=True, **QUICK.get(method, {})
        )
    except NotOffered:
        return
    for explanation in found:
        for maps in (explanation.matrix, explanation.layers):
            assert maps is None or not np.triu(maps, 1).any()


@pytest.mark.parametrize("method", METHODS)
def test_scores_depend_on_the_class_where_that_is_declared(method: str) -> None:
    name = "vit" if method in {"grad_cam", "vit_cx"} else "bert"
    how = {"method": method, **QUICK.get(method, {})}
    one, other = (wf.explain(model_of(name), CASES[name].inputs(), target=t, **how)[0].scores for t in (0, 1))
    assert np.allclose(one, other, rtol=1e-3) != METHODS[method].class_specific


SHORT = [(method, {}, TEXTS) for method in METHODS if method not in {"grad_cam", "vit_cx"}] + [
    ("attention_flow", {"joint": True}, TEXTS),
    ("smooth_grad", {"samples": 1}, TEXTS),
    ("shap", {"keep_special": [11]}, TEXTS),
    ("two_ended", {"keep_special": [11], "replace": 4}, TEXTS),
]


@pytest.mark.parametrize(("method", "options", "names"), [*SHORT, *OPTIONS], ids=str)
def test_one_token_is_finite(method: str, options: dict[str, Any], names: str) -> None:
    for name in {"bert", "llama"}.intersection(names.split()):
        ids = torch.tensor([[11]])
        inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
        (found,) = wf.explain(model_of(name), inputs, method=method, target=1, **options)
        assert found.scores.shape == (1,) and np.isfinite(found.scores).all()


HALF = QUICK | {"attention_gradcam": {"layer": 0}, "shap": {"evaluations": 16}, "vit_cx": {"masks": 4}}
NEAR = {"alti": 0.1, "value_norms": 0.1, "decompx": 0.2}  # of the largest score, where no gradient is rounded


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", METHODS)
def test_half_precision_is_finite(method: str, dtype: torch.dtype) -> None:
    for name in ["vit"] if method in {"grad_cam", "vit_cx"} else ["bert", "llama"]:
        how = {"method": method, **HALF.get(method, {})}
        found = properties.half_precision_is_finite(name, dtype, **how)
        for half, whole in zip(found, properties.explained(name, **how) if method in NEAR else (), strict=False):
            properties.close(half.scores, whole.scores, NEAR[method])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("method", ["two_ended", "occlusion", "value_zeroing", "decompx", "alti", "value_norms"])
def test_errors_in_half_precision_are_how_far_scores_are_off(method: str, dtype: torch.dtype) -> None:
    shares = []
    for name in ["bert", "llama"]:
        case, how = CASES[name], {"method": method, "target": 1}
        halves = wf.explain(case.build(case.implementations[0]).to(dtype), case.inputs(), **how)
        for half, whole in zip(halves, wf.explain(model_of(name), case.inputs(), **how), strict=True):
            assert half.errors is not None and whole.errors is None
            shares.append(np.sqrt(np.square(half.scores - whole.scores).mean()) / half.errors.mean())
            large = half.errors.max() > 0.05 * np.abs(half.scores).max()
            assert large == any("rounding in half precision moves scores" in said for said in half.warnings)
    assert max(shares) < 4 and 0.1 < np.median(shares) < 2


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_method_has_a_twin_a_docs_page_and_a_citation(name: str) -> None:
    missing = [
        str(p.relative_to(ROOT))
        for p in (ROOT / f"tests/references/{name}.py", ROOT / f"docs/methods/{name}.md")
        if not p.is_file()
    ]
    assert not missing, f"{name} lacks {missing}"
    entry = METHODS[name]
    assert entry.paper and entry.cost_text and entry.idea.endswith(".")
    assert "Misleads" in (entry.run.__doc__ or ""), "say when it misleads"
