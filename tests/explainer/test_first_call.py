"""What the first explanation of a model takes: passes, counted, and memory, counted in bytes of tensors."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from tests.support.live_bytes import LiveBytes
from whyformer.capture.intercept import module_names
from whyformer.capture.trail import ProjectionSource
from whyformer.study import Study, study_of
from whyformer.study.leak import Marks, Probe, _Isolate, _marks

IDS = {"input_ids": torch.arange(5, 45)[None]}


def bert(layers: int, implementation: str = "sdpa") -> nn.Module:
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=50, hidden_size=64, num_hidden_layers=layers, num_attention_heads=4, intermediate_size=256
    )
    model: nn.Module = BertForSequenceClassification._from_config(config, attn_implementation=implementation)
    return model.eval()


@contextmanager
def counted(model: nn.Module) -> Iterator[list[int]]:
    calls: list[int] = []
    handle = model.register_forward_pre_hook(lambda module, arguments: calls.append(1))
    yield calls
    handle.remove()


def study(model: nn.Module, inputs: Any) -> Study:
    return wf.Explainer(model).study(inputs)


@pytest.mark.parametrize("method", ["attention_rollout", "generic_attention"])
@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "timm_unfused", "folded_heads"])
def test_the_first_call_adds_a_few_passes(name: str, method: str) -> None:
    case = CASES[name]
    model = case.build(case.implementations[0])
    # Sites, the rows that feed the head, the audit (two passes), a plain pass, and by what was found: a second length
    # (texts) or the picture turned around, whether units stand at their positions (pictures, vectors), a measured slope
    # (attention gradients), whether a language model sees later tokens.
    second, placed = name != "folded_heads", name not in {"bert", "gpt2"}
    passes = 1 + 1 + 2 + 1 + second + placed + (name == "gpt2") + (method == "generic_attention")
    with counted(model) as calls:  # one hook for both calls: another one would be another model
        for setup in (passes, 0):
            found = wf.explain(model, case.inputs(), method=method, target=0)
            assert len(calls) == setup + 1 + (setup > 0)  # the plain pass is made in two halves of the batch
            assert found[0].cost.setup_forwards == setup
            calls.clear()
            assert name != "bert" or setup + found[0].cost.backwards <= 8


# A table's columns and the detections of a detector are found by passes of their own, before the study.
STUDIED = ["bert", "gpt2", "xlnet", "modernbert", "vit", "beit", "swin", "nn_transformer_encoder", "timm_unfused"]
STUDIED += ["folded_heads", "lxmert", "clip", "t5", "whisper", "llava"]


@pytest.mark.parametrize("name", STUDIED)
def test_passes_are_counted_as_they_are_run(name: str) -> None:
    """One of each kind; those of the first explanation are counted on every model (study/test_first_explanation.py)."""
    case = CASES[name]
    model = case.build(case.implementations[0])
    with counted(model) as calls:
        found = study(model, case.inputs())
    assert found.forwards == len(calls)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_memory_of_a_study_does_not_grow_with_depth(implementation: str) -> None:
    def peak(model: nn.Module, run: Callable[[], object]) -> int:
        with LiveBytes(model) as live:
            run()
        return live.peak

    shallow, deep = bert(3, implementation), bert(12, implementation)
    assert peak(deep, lambda: study(deep, IDS)) < 1.3 * peak(shallow, lambda: study(shallow, IDS))
    recorded = peak(deep, lambda: wf.explain(deep, IDS, method="attention_rollout", target=0))
    again = bert(12, implementation)
    assert peak(again, lambda: study(again, IDS)) < recorded


@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "timm_unfused", "einsum", "looped_heads"])
def test_nothing_of_a_study_is_alive_afterwards(name: str) -> None:
    case = CASES[name]
    model = case.build(case.implementations[0])
    explainer = wf.Explainer(model)
    modality, batch, _ = explainer.prepare(case.inputs())
    gc.collect()
    gc.disable()  # what only the collector would free counts as alive
    try:
        with explainer.borrowed(), LiveBytes(model) as live:
            study_of(modality, batch)
        left = live.now
    finally:
        gc.enable()
    assert live.peak > 0
    assert left == 0


def test_weights_of_inference_mode_are_studied_without_gradients() -> None:
    with torch.inference_mode():
        model = bert(2)
    with counted(model) as calls:
        found = study(model, IDS)
    assert str(found.readout) == "first position"
    assert found.forwards == len(calls)


class HomeMade(nn.Module):
    """Adds to the result of attention in place (Nystromformer); ``detour`` leaves torch, and the graph, in between."""

    def __init__(self, detour: bool) -> None:
        super().__init__()
        self.detour, self.embed = detour, nn.Embedding(50, 16)
        self.qkv = nn.ModuleList(nn.Linear(16, 48) for _ in range(2))
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embed(input_ids)
        for layer in self.qkv:
            if self.detour:
                x = torch.from_numpy(x.numpy().copy())
            q, k, v = layer(x).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
            out = (q @ k.transpose(-1, -2)).softmax(-1) @ v
            out += v
            x = x + out.transpose(1, 2).flatten(2)
        return self.head(x[:, 0])


def home_made(detour: bool) -> nn.Module:
    torch.manual_seed(0)
    return HomeMade(detour).eval()


def test_a_model_may_write_into_the_result_of_attention() -> None:
    model = home_made(detour=False)
    found = study(model, IDS)
    assert (found.forwards, str(found.readout)) == (5, "first position")


def test_a_model_that_leaves_torch_in_between_is_studied_the_same() -> None:
    expected, found = study(home_made(detour=False), IDS), study(home_made(detour=True), IDS)
    assert found.forwards == expected.forwards
    assert found.readout == expected.readout
    assert len(found.sites) == len(expected.sites) == 2
    assert not found.leak.found


class Forward:
    def __init__(self, model: nn.Module, inputs: dict[str, Tensor]) -> None:
        self.model, self.inputs = model, inputs

    def __call__(self) -> Tensor:
        out = self.model(**self.inputs)
        return out if isinstance(out, Tensor) else out.logits


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_audit_hears_the_changed_position_and_no_other(implementation: str) -> None:
    case = CASES["vit"]
    model = case.build(implementation)
    run = Forward(model, {"pixel_values": case.inputs()["pixel_values"][:1]})  # type: ignore[call-overload]
    names, length = module_names(model), study(model, case.inputs()).sites[0].keys
    plain = list(_marks(run, _Isolate(names, {length})))
    changed = list(_marks(run, _Isolate(names, {length}, Probe(0, 3, {length: {3}}))))
    assert [path for path, _ in plain] == [path for path, _ in changed]
    differing = [set((a != b).nonzero()[:, 0].tolist()) for (_, a), (_, b) in zip(plain, changed, strict=True)]
    first = next(i for i, found in enumerate(differing) if found)
    assert 0 < first < len(differing) / 2
    assert differing[first:] == [{3}] * (len(differing) - first), "what a position hears of itself goes on to the end"


def test_marks_come_back_as_they_were_added() -> None:
    marks = Marks()
    added = [(f"place {i}", torch.full((3 + i % 2,), float(i), dtype=torch.float64)) for i in range(3 * Marks.ROWS)]
    for path, values in added:
        marks.add(path, values)
    assert len(marks) == len(added)
    for (path, values), (want, expected) in zip(marks, added, strict=True):
        assert path == want
        assert torch.equal(values, expected)


def test_a_source_is_not_taken_for_another_at_its_old_address() -> None:
    memory = bytearray(256)
    tensor = torch.frombuffer(memory, dtype=torch.float32)
    address, source = tensor.data_ptr(), ProjectionSource.of(tensor)
    assert ProjectionSource.of(tensor[8:]).storage == source.storage
    del tensor
    other = torch.frombuffer(memory, dtype=torch.float32)
    assert other.data_ptr() == address
    assert ProjectionSource.of(other).storage != source.storage
