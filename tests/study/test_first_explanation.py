"""The first explanation of a model: its passes and its memory, both counted, and what each check refuses."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from tests.models.hf import ENCODER, hf
from tests.support.live_bytes import LiveBytes
from whyformer.capture import functions, record
from whyformer.capture.trail import ProjectionSource
from whyformer.errors import CaptureError, NotOffered, PartlyCaptured, WhyformerError
from whyformer.study import study_of

METHOD = "generic_attention"
IDS = {"input_ids": torch.randint(2, 40, (1, 48), generator=torch.Generator().manual_seed(0))}
PICTURE = {"pixel_values": torch.randn(1, 3, 48, 48, generator=torch.Generator().manual_seed(1))}
LAYERS, WIDTH, HEADS = 3, 16, 2


@contextmanager
def counted(model: nn.Module) -> Iterator[list[int]]:
    """The number of rows of each call of the model."""
    calls: list[int] = []

    def count(module: nn.Module, arguments: Any, named: Any) -> None:
        calls.append(next(len(each) for each in (*arguments, *named.values()) if isinstance(each, Tensor)))

    handle = model.register_forward_pre_hook(count, with_kwargs=True)
    yield calls
    handle.remove()


class Model(nn.Module):
    """Torch's own attention over a text or a picture, and one thing that is wrong with it."""

    def __init__(self, wrong: str = "", picture: bool = False) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.wrong, self.picture = wrong, picture
        self.embed = nn.Conv2d(3, WIDTH, 8, 8) if picture else nn.Embedding(40, WIDTH)
        self.first = nn.Parameter(torch.randn(1, 1, WIDTH))
        self.places = nn.Parameter(torch.randn(1, 64, WIDTH))
        self.layers = nn.ModuleList(
            nn.ModuleDict(
                {"qkv": nn.Linear(WIDTH, 3 * WIDTH), "out": nn.Linear(WIDTH, WIDTH), "norm": nn.LayerNorm(WIDTH)}
            )
            for _ in range(LAYERS)
        )
        self.near = nn.Conv1d(WIDTH, WIDTH, 3, padding=1)
        self.head = nn.Linear(WIDTH, 3)

    def forward(self, input_ids: Tensor | None = None, pixel_values: Tensor | None = None) -> Tensor:
        if self.picture:
            assert pixel_values is not None
            x = self.embed(pixel_values).flatten(2).transpose(1, 2)
            x = torch.cat([self.first.expand(len(x), -1, -1), x], 1)
        else:
            x = self.embed(input_ids)
        x = x + self.places[:, : x.shape[1]]
        for number, layer in enumerate(self.layers):
            if self.wrong == "detour":  # leaves torch, and the graph, in between
                x = torch.from_numpy(x.numpy().copy())
            q, k, v = layer["qkv"](x).unflatten(-1, (3, HEADS, WIDTH // HEADS)).permute(2, 0, 3, 1, 4)
            if self.wrong == "values":
                v = v + 0.1 * v.roll(1, 2)
            said = F.scaled_dot_product_attention(q, k, v)
            if self.wrong == "added":  # in place (Nystromformer)
                said += v
            if self.wrong == "over":
                q.zero_()
                said.mul_(2)
            x = layer["norm"](x + layer["out"](said.transpose(1, 2).flatten(2)))
            if self.wrong == "conv":
                x = x + self.near(x.transpose(1, 2)).transpose(1, 2)
            elif self.wrong == "far":  # further than a short text goes
                x = x + 0.1 * x.roll(20, 1)
            elif self.wrong == "gate":  # a mean over positions, which does not hear when they trade places
                x = x * (4 * x.mean(1, keepdim=True)).sigmoid()
            elif self.wrong == "mean":
                x = x + 1e-3 * x.mean(1, keepdim=True)
            elif self.wrong == "unseen" and number == LAYERS - 1:
                x = x + (x @ x.transpose(1, 2)) @ x / x.shape[1] ** 2
        last = self.wrong == "short" and x.shape[1] < 20  # other ways with few tokens
        return self.head(x[:, -1 if last else 0])


def sets_of(positions: int) -> int:
    """Sets of positions that the audit disturbs together: of any two positions, one holds only one."""
    return (positions - 1).bit_length()


@pytest.mark.parametrize(
    ("wrong", "picture", "passes"),
    [("", False, 6), ("", True, 7), ("short", False, 6), ("added", False, 6), ("detour", False, 6)],
)
def test_a_model_without_defects_is_studied(wrong: str, picture: bool, passes: int) -> None:
    """Also one that takes another way with few tokens, writes into the result of attention, or leaves torch."""
    model = Model(wrong, picture).eval()
    with counted(model) as calls:
        study = wf.Explainer(model).study(PICTURE if picture else IDS)
    assert (str(study.readout), study.leak.found) == ("first position", False)
    assert study.forwards == len(calls) == passes + sets_of(study.sites[0].keys)
    assert study.leak.checked > 2 * LAYERS


LEAKS = ["values", "conv", "far", "gate", "mean", "unseen"]


@pytest.mark.parametrize(("wrong", "picture"), [*((wrong, False) for wrong in LEAKS), ("conv", True), ("unseen", True)])
def test_what_passes_between_positions_outside_attention_is_refused(wrong: str, picture: bool) -> None:
    with pytest.raises(PartlyCaptured, match="exchange information outside"):
        wf.explain(Model(wrong, picture).eval(), PICTURE if picture else IDS, method="attention_rollout", target=0)


@pytest.mark.parametrize("picture", [False, True])
def test_a_model_that_writes_over_its_queries(picture: bool) -> None:
    model, inputs = Model("over", picture).eval(), PICTURE if picture else IDS
    first, second = (wf.explain(model, inputs, method="attention_rollout", target=0)[0] for _ in range(2))
    np.testing.assert_array_equal(first.scores, second.scores)
    with pytest.raises(RuntimeError, match="inplace operation"):  # as its own backward would say
        wf.explain(model, inputs, method=METHOD, target=0)


def refused(model: nn.Module, inputs: dict[str, Tensor], how: Any, match: str = ".") -> None:
    explainer = wf.Explainer(model)
    explainer.advises = False  # which methods would run instead is not asked here
    with pytest.raises(how, match=match):
        explainer.explain(inputs, method=METHOD, target=0)


# One of each kind of embedding, mask, head, stream and window. The columns of a table and the detections of a detector
# are found by passes of their own, before the study.
KINDS = "gpt2 modernbert beit siglip lxmert t5 wav2vec2 llava swin folded_heads"


@pytest.mark.parametrize("name", KINDS.split())
def test_the_first_explanation_of_one_input_is_the_second(name: str) -> None:
    case = CASES[name]
    model, inputs = case.build(case.implementations[0]), case.inputs()
    one: Any = {key: value[:1] for key, value in inputs.items()} if isinstance(inputs, dict) else inputs[0][:1]
    results: list[Any] = []
    with counted(model) as calls:
        for _ in range(2):
            calls.clear()
            try:
                found = wf.explain(model, one, method=METHOD, target=0)[0]
            except WhyformerError as error:
                results.append(type(error))
                continue
            assert sum(calls) == found.cost.setup_forwards + found.cost.forwards
            results.append(found.scores)
    np.testing.assert_allclose(*results, rtol=1e-5) if isinstance(results[0], np.ndarray) else None
    assert type(results[0]) is type(results[1])


class Cut(Model):
    """A model in which what some layers say passes through ``change`` on its way on."""

    def __init__(self, change: Callable[[Tensor], Tensor], at: tuple[int, ...], picture: bool = False) -> None:
        super().__init__(picture=picture)
        for number in at:
            self.layers[number]["out"].register_forward_hook(lambda module, args, out: change(out))


CUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "half of its width": lambda x: torch.cat([x[..., :8].detach(), x[..., 8:]], -1),
    "all but the last positions": lambda x: torch.cat([x[:, :-20].detach(), x[:, -20:]], 1),
}


@pytest.mark.parametrize(("at", "picture"), [((1,), False), ((0, 1, 2), True)], ids=["one", "all"])
@pytest.mark.parametrize("how", CUTS)
def test_gradients_that_are_no_slope_are_refused(how: str, at: tuple[int, ...], picture: bool) -> None:
    """Also where logits are small, beside which rounding errors are larger."""
    model = Cut(CUTS[how], at, picture).eval()
    for scale in (1.0, 0.1):
        with torch.no_grad():
            model.head.weight.mul_(scale)
            model.head.bias.mul_(scale)
        refused(model, PICTURE if picture else IDS, (CaptureError, NotOffered))


def test_every_class_is_held_to_what_the_model_says_by_itself() -> None:
    """What it says of the last class is another when someone looks, by two roundings of the largest logit."""

    def aside(module: nn.Module, args: object, said: Tensor) -> Tensor:
        watched = torch._C._len_torch_function_stack() > 0
        return said + 2e-3 * watched * said.detach().abs().max() * torch.tensor([0.0, 0.0, 1.0])

    model = Model().eval()
    model.register_forward_hook(aside)
    refused(model, IDS, NotOffered, "output changes under interception")


@pytest.mark.parametrize(
    ("module", "name", "wrongly"),
    [
        (functions, "all_gradients", lambda gradient: 0.9 * gradient),
        (functions, "all_gradients", lambda gradient: 1.1 * gradient),
        (record, "all_weights", lambda weights: weights.flip(-1)),
    ],
)
def test_what_is_made_wrongly_is_refused(module: Any, name: str, wrongly: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    right = getattr(module, name)
    monkeypatch.setattr(module, name, lambda *of: [wrongly(tensor) for tensor in right(*of)])
    refused(Model().eval(), IDS, CaptureError, "not the slope")


@pytest.mark.parametrize("method", ["attention_rollout", METHOD])
@pytest.mark.parametrize("name", ["bert", "vit", "gpt2", "timm_unfused", "folded_heads"])
def test_the_first_call_adds_a_few_passes(name: str, method: str) -> None:
    case = CASES[name]
    model = case.build(case.implementations[0])
    # Sites, the rows that feed the head, the audit (three passes, and one per set of positions), a plain pass, and by
    # what was found: a second length (texts) or the picture turned around, whether units stand at their positions
    # (pictures; vectors, by their sets and all together), a measured slope (attention gradients), whether a language
    # model sees later tokens, the share of the head's gradient (maps without gradients).
    sets = sets_of(int(wf.Explainer(case.build(case.implementations[0])).study(case.inputs()).sites[0].keys))
    second, placed = name != "folded_heads", {"bert": 0, "gpt2": 0, "folded_heads": 1 + sets}.get(name, 1)
    passes = 1 + 1 + 3 + sets + 1 + second + placed + (name == "gpt2") + 1
    with counted(model) as calls:  # one hook for both calls: another one would be another model
        for setup in (passes, 0):
            found = wf.explain(model, case.inputs(), method=method, target=0)
            assert len(calls) == setup + 1 + (setup > 0)  # the plain pass is made in two halves of the batch
            assert sum(calls) == found[0].cost.setup_forwards + sum(each.cost.forwards for each in found)
            calls.clear()
            assert name != "bert" or setup + found[0].cost.backwards <= 9 + sets


@pytest.mark.parametrize("batch_size", [None, 1])
@pytest.mark.parametrize("method", [name for name, m in wf.list_methods().items() if not m.works] + ["auto"])
def test_every_row_of_a_call_is_in_its_cost(method: str, batch_size: int | None) -> None:
    name = "vit" if method == "vit_cx" else "bert"
    model, how = CASES[name].build("eager"), {"integrated_gradients": {"steps": 3}}.get(method, {})
    with counted(model) as calls:
        for _ in range(2):
            found = wf.explain(model, CASES[name].inputs(), method=method, target=0, batch_size=batch_size, **how)
            assert {e.cost.setup_forwards + sum(each.cost.forwards for each in found) for e in found} == {sum(calls)}
            calls.clear()


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_the_memory_of_a_study_does_not_grow_with_depth(implementation: str) -> None:
    def peak(layers: int, run: Callable[[nn.Module], object]) -> int:
        sizes = {"hidden_size": 64, "intermediate_size": 256, "num_hidden_layers": layers}
        model = hf("BertForSequenceClassification", **ENCODER | sizes)(implementation)
        with LiveBytes(model) as live:
            run(model)
        return live.peak

    shallow, deep = (peak(layers, lambda model: wf.Explainer(model).study(IDS)) for layers in (3, 8))
    assert deep < 1.3 * shallow
    assert deep < peak(8, lambda model: wf.explain(model, IDS, method="attention_rollout", target=0))


@pytest.mark.parametrize("name", ["gpt2", "timm_unfused", "looped_heads"])
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


def test_a_source_is_not_taken_for_another_at_its_old_address() -> None:
    memory = bytearray(256)
    tensor = torch.frombuffer(memory, dtype=torch.float32)
    address, source = tensor.data_ptr(), ProjectionSource.of(tensor)
    assert ProjectionSource.of(tensor[8:]).storage == source.storage
    del tensor
    other = torch.frombuffer(memory, dtype=torch.float32)
    assert other.data_ptr() == address
    assert ProjectionSource.of(other).storage != source.storage
