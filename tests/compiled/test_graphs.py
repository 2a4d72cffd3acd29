"""compiled=True says what the plain way says, from one recording per shape, and notices when the model is another."""

from __future__ import annotations

import contextlib
import gc
import threading
import warnings
import weakref
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.models import CASES
from tests.support.eager_graph import EagerGraph, recorded_on_cpu
from tests.support.processors import pair_tokenizer
from tests.support.released import BEFORE_FIVE
from whyformer.compiled import graphs as module
from whyformer.compiled.forms import apart, bucket
from whyformer.compiled.graph import HostAsked, Products, rehearsed
from whyformer.compiled.graphs import MOST
from whyformer.errors import BadInput, NonFinite, UnknownName
from whyformer.loan import borrow
from whyformer.verbs import Explainer


@pytest.fixture(autouse=True)
def recorder() -> Iterator[type[EagerGraph]]:
    with recorded_on_cpu() as graph:
        yield graph


def bert(seed: int = 0, name: str = "bert") -> nn.Module:
    case = CASES[name]
    torch.manual_seed(seed)
    # Before version 5, transformers reads the mask on the host for sdpa, which no graph can record.
    return case.build(case.implementations[-1 if BEFORE_FIVE else 0]).eval()


def ids(*lengths: int, seed: int = 0) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    width = max(lengths)
    mask = torch.tensor([[1] * n + [0] * (width - n) for n in lengths])
    tokens = torch.randint(5, 30, (len(lengths), width), generator=generator)
    return {"input_ids": tokens * mask, "attention_mask": mask}


def assert_alike(explainer: Explainer, inputs: Any, **how: Any) -> None:
    """To what a plain Explainer says, and from a graph."""
    plain = Explainer(explainer.model, explainer.processor).explain(inputs, **how)
    before = sum(form.replays for form in explainer.forms)
    replayed = explainer.explain(inputs, **how)
    assert sum(form.replays for form in explainer.forms) > before, "explained without a graph"
    one = not isinstance(plain, list)
    for a, b in zip([plain] if one else plain, [replayed] if one else replayed, strict=True):
        assert apart(a, b) < 1e-4
        assert (b.units, b.target, b.prediction, b.method, b.options, b.scalar, b.warnings, b.readout) == (
            a.units, a.target, a.prediction, a.method, a.options, a.scalar, a.warnings, a.readout,
        )  # fmt: skip
        assert b.value == pytest.approx(a.value, abs=1e-5)
        assert b.checks == pytest.approx(a.checks, rel=1e-3, abs=1e-4)
        for name in ("matrix", "layers", "detail"):
            x, y = getattr(a, name), getattr(b, name)
            assert (x is None) == (y is None)
            if x is not None:
                np.testing.assert_allclose(y, x, atol=2e-5 * np.abs(x).max())
        assert (b.cost.forwards, b.cost.backwards) == (a.cost.forwards, a.cost.backwards)


OPTIONS: list[dict[str, Any]] = [
    *({"method": name} for name, method in wf.list_methods().items() if method.compiles),
    *({"method": "generic_attention"} | more for more in (
        {"heads": 1}, {"heads": [0, 2]}, {"heads": "max", "start_layer": 1}, {"keep_layers": True}
    )),
]  # fmt: skip


@pytest.mark.parametrize("how", OPTIONS, ids=str)
def test_a_graph_says_what_the_plain_way_says(how: dict[str, Any], recorder: type[EagerGraph]) -> None:
    explainer = Explainer(bert(), compiled=True)
    explainer.explain(ids(9, 6), **how)
    assert recorder.made == 1
    for lengths in ((12, 12), (3, 16)):
        assert_alike(explainer, ids(*lengths, seed=sum(lengths)), **how)
    assert recorder.made == 1, "texts of up to 16 tokens share a graph"


class Around(nn.Module):
    """A model that is ``squashed`` (probabilities, class by class), ``pooled`` (padding included), ``asking`` (the
    device for a number in each pass), or takes an argument that is no tensor."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self.what, self.model = what, bert()
        self.config = self.model.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor, turned: bool = False) -> Tensor:
        inputs = {"input_ids": input_ids + 1 if turned else input_ids, "attention_mask": attention_mask}
        if self.what == "pooled":
            return self.model.classifier(self.model.bert(**inputs).last_hidden_state.mean(1))
        logits: Tensor = self.model(**inputs).logits
        if self.what == "asking":
            return logits if float(logits.detach().sum()) > 0 else logits + 0
        if self.what == "squashed":
            return torch.sigmoid(logits)
        return -logits if turned else logits


@pytest.mark.parametrize("what", ["plain", "squashed"])
def test_a_replay_borrows_nothing(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether the model ends in a sigmoid is known since it was recorded: a loan takes as long as all else around it"""
    explainer = Explainer(Around(what), compiled=True)
    explainer.explain(ids(9, 6), method="generic_attention")
    assert_alike(explainer, ids(8, 5, seed=1), method="generic_attention")
    loans: list[Any] = []
    monkeypatch.setattr(borrow, "borrowed", lambda *args: loans.append(args) or contextlib.nullcontext())
    said = explainer.explain(ids(7, 4, seed=2), method="generic_attention")
    assert not loans
    squashed = [any("ends in a sigmoid" in warning for warning in e.warnings) for e in said]
    assert squashed == [what == "squashed"] * 2


@pytest.mark.skipif(BEFORE_FIVE, reason="without a mask, ids are read on the host before transformers 5")
def test_ids_without_a_mask_are_recorded_at_their_length(recorder: type[EagerGraph]) -> None:
    explainer = Explainer(bert(), compiled=True)
    for seed in (0, 1):
        bare = {"input_ids": ids(9, 9, seed=seed)["input_ids"]}
        if not seed:
            explainer.explain(bare, method="generic_attention")
        assert_alike(explainer, bare, method="generic_attention", target=1)
    assert recorder.made == 1
    ends = {"input_ids": bare["input_ids"].clone()}
    ends["input_ids"][1, -2:] = explainer.model.config.pad_token_id  # type: ignore[union-attr, index, assignment]
    before = sum(form.replays for form in explainer.forms)
    expected = Explainer(explainer.model).explain(ends, method="generic_attention", target=1)
    said = explainer.explain(ends, method="generic_attention", target=1)
    assert sum(form.replays for form in explainer.forms) == before, "what may be padding is looked at in the plain way"
    for a, b in zip(expected, said, strict=True):
        np.testing.assert_allclose(b.scores, a.scores, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["roberta", "vit"])
def test_families(name: str) -> None:
    explainer, inputs = Explainer(bert(name=name), compiled=True), CASES[name].inputs()
    explainer.explain(inputs, method="generic_attention")
    assert_alike(explainer, inputs, method="generic_attention")


def test_targets_and_scalars(recorder: type[EagerGraph]) -> None:
    explainer, inputs = Explainer(bert(), compiled=True), ids(9, 6)
    label = explainer.model.config.id2label[1]  # type: ignore[union-attr, index]
    for scalar in ("logit", "centred", "probability", "log_odds"):
        explainer.explain(inputs, method="generic_attention", scalar=scalar)
        targets = (None, 2, -1, label, [0, None], wf.Target(1)) if scalar == "logit" else ([label, 2],)
        for target in targets:
            assert_alike(explainer, inputs, method="generic_attention", target=target, scalar=scalar)
    assert recorder.made == 4, "one graph serves all classes"
    explainer.explain(inputs, method="generic_attention", target=(0, 1))
    for target in ((2, 1), (0, label), [(0, 1), (2, 0)]):
        assert_alike(explainer, inputs, method="generic_attention", target=target)
    assert recorder.made == 5


def test_texts() -> None:
    explainer = Explainer(bert(), pair_tokenizer(), compiled=True)
    explainer.explain("anna lives in paris", method="grad_sam")
    assert_alike(explainer, "bob works in rome and ben lives in paris", method="grad_sam")
    assert_alike(explainer, ("where lives anna", "anna lives in rome ."), method="grad_sam")
    assert_alike(explainer, "bob works in rome", method="grad_sam", units="word")


def test_batches_are_filled_up_and_cut(recorder: type[EagerGraph]) -> None:
    explainer = Explainer(bert(), compiled=True)
    explainer.explain(ids(5, 8, 6), method="generic_attention")
    assert explainer.forms[0].shapes["input_ids"] == (4, 16)
    assert_alike(explainer, ids(9, 3, 7), method="generic_attention")
    assert_alike(explainer, ids(9, 3, 7, 4), method="generic_attention")
    assert_alike(explainer, ids(9, 3, 7, 4, 8, 6, 5), method="generic_attention", batch_size=4)
    assert recorder.made == 1, "both parts fit the graph of four"


# Is it still the same model?


def test_weights_changed_in_place_are_seen(recorder: type[EagerGraph]) -> None:
    explainer, inputs = Explainer(model := bert(), compiled=True), ids(9)
    before = explainer.explain(inputs, method="generic_attention")[0]
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)
    assert not np.allclose(explainer.explain(inputs, method="generic_attention")[0].scores, before.scores)
    assert_alike(explainer, inputs, method="generic_attention")
    assert recorder.made == 2, "what the graph takes for granted was found with other weights"


def replaced(model: Any) -> None:
    model.classifier.weight = nn.Parameter(-model.classifier.weight.detach())


CHANGES: dict[str, Callable[[Any], object]] = {
    "replaced": replaced,
    "moved": lambda model: setattr(model.classifier.weight, "data", model.classifier.weight.data.flip(0).clone()),
    "swapped": lambda model: setattr(model, "classifier", nn.Linear(32, 3)),
    "hooked": lambda model: model.classifier.register_forward_hook(lambda m, args, out: out.roll(1, 1)),
    "configured": lambda model: setattr(model.config, "id2label", {0: "a", 1: "b", 2: "c"}),
}


@pytest.mark.parametrize("change", CHANGES)
def test_another_model_is_recorded_anew(change: str, recorder: type[EagerGraph]) -> None:
    explainer, inputs = Explainer(model := bert(), compiled=True), ids(9)
    explainer.explain(inputs, method="generic_attention", target=0)
    assert_alike(explainer, inputs, method="generic_attention", target=0)
    CHANGES[change](model)
    after = explainer.explain(inputs, method="generic_attention", target=0)[0]
    plain = Explainer(model).explain(inputs, method="generic_attention", target=0)[0]
    np.testing.assert_allclose(after.scores, plain.scores, rtol=1e-5)
    assert after.prediction == plain.prediction
    assert recorder.made == 2
    assert_alike(explainer, inputs, method="generic_attention", target=0)
    assert recorder.made == 2


def test_circumstances_are_part_of_the_form(recorder: type[EagerGraph]) -> None:
    explainer = Explainer(bert(), compiled=True)
    for enabled in (False, True):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled):
            explainer.explain(ids(9), method="generic_attention")
    assert recorder.made == 2


def test_arguments_that_are_no_tensors_are_not_those_of_a_graph() -> None:
    explainer, inputs = Explainer(Around("plain"), compiled=True), ids(9)
    for _ in range(2):
        explainer.explain(inputs, method="grad_sam", target=1)
    assert_alike(explainer, inputs, method="grad_sam", target=1)
    (found,) = explainer.explain(inputs | {"turned": True}, method="grad_sam", target=1)
    (plain,) = Explainer(explainer.model).explain(inputs | {"turned": True}, method="grad_sam", target=1)
    assert apart(plain, found) < 1e-4 and found.value == pytest.approx(plain.value)


def test_a_model_that_is_another_at_each_call_is_left_alone(recorder: type[EagerGraph]) -> None:
    explainer, inputs = Explainer(model := bert(), compiled=True), ids(9)
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        for _ in range(5):
            replaced(model)
            last = explainer.explain(inputs, method="generic_attention")[0]
    assert recorder.made == 2
    assert len(heard) == 1 and "changed at each" in str(heard[0].message)
    assert any("changed at each" in warning for warning in last.warnings)


# What is not recorded


def test_a_failed_recording_is_said_once_and_on_every_result(recorder: type[EagerGraph]) -> None:
    explainer = Explainer(Around("asking"), compiled=True)
    with pytest.warns(RuntimeWarning, match="no CUDA graph could be recorded.*HostAsked") as heard:
        for length in (9, 6, 9, 30):
            result = explainer.explain(ids(length), method="generic_attention")[0]
            assert "no CUDA graph could be recorded" in result.warnings[-1]
    assert len(heard) == 1
    assert recorder.made == 2, "each form is tried once"
    assert not any(form.graph for form in explainer.forms)


def test_what_is_not_offered_goes_the_plain_way_silently() -> None:
    explainer = Explainer(bert(), compiled=True)
    for method, options in (
        ("input_x_gradient", {}),
        ("attention_rollout", {"discard": 0.5}),
        ("gradient_rollout", {"discard": 0.1, "protect_special": True}),
    ):
        result = explainer.explain(ids(9), method=method, **options)[0]
        assert result.warnings == Explainer(explainer.model).explain(ids(9), method=method, **options)[0].warnings
    assert [form.graph for form in explainer.forms] == [False] * 3
    assert all(form.why_not for form in explainer.forms)
    language = Explainer(bert(name="gpt2"), compiled=True)
    language.explain(ids(9), method="generic_attention")
    assert "language" in language.forms[0].why_not


def test_a_model_that_minds_padding_gets_none(recorder: type[EagerGraph]) -> None:
    explainer = Explainer(Around("pooled").eval(), compiled=True)
    explainer.explain(ids(9), method="generic_attention")
    assert [form.shapes["input_ids"] for form in explainer.forms] == [(1, 9)]
    assert_alike(explainer, ids(9, seed=4), method="generic_attention")


def test_a_wrong_replay_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    explainer = Explainer(bert(name="vit"), compiled=True)
    monkeypatch.setattr(EagerGraph, "replay", lambda self: self.output.copy_(self._computed() * 1.1))
    with pytest.warns(RuntimeWarning, match="differs from the eager result"):
        explainer.explain(CASES["vit"].inputs(), method="generic_attention")
    assert not explainer.forms[0].graph


# Errors are those of the plain way


def test_errors() -> None:
    explainer, inputs = Explainer(model := bert(), compiled=True), ids(9)
    explainer.explain(inputs, method="generic_attention")
    for target, error, words in ((17, UnknownName, "target"), ([0, 1], BadInput, "targets: 2, inputs: 1")):
        with pytest.raises(error, match=words):
            explainer.explain(inputs, method="generic_attention", target=target)
    with torch.no_grad():
        model.get_submodule("classifier").weight.fill_(torch.nan)
    with pytest.raises(NonFinite):
        explainer.explain(inputs, method="generic_attention")


def test_without_a_gpu_compiled_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="compiled"):
        Explainer(bert(), compiled="yes")  # type: ignore[arg-type]
    assert Explainer(bert()).forms == []
    monkeypatch.delitem(module.RECORDERS, "cpu")
    with pytest.raises(BadInput, match=r"CUDA graphs, and the model is on 'cpu'.*omit compiled="):
        Explainer(bert(), compiled=True)


# Threads and memory


def test_threads_get_their_own_answers() -> None:
    explainer = Explainer(bert(), compiled=True)
    explainer.explain(ids(9), method="generic_attention")
    expected = {n: Explainer(explainer.model).explain(ids(n, seed=n), method="generic_attention") for n in range(4, 12)}

    def right(n: int) -> bool:
        got = explainer.explain(ids(n, seed=n), method="generic_attention")[0]
        return np.allclose(got.scores, expected[n][0].scores, rtol=1e-3, atol=1e-6)

    with ThreadPoolExecutor(2) as threads:
        assert all(threads.map(right, [*range(4, 12)] * 3)) and explainer.forms[0].replays >= 20


def test_the_number_of_graphs_is_bounded(recorder: type[EagerGraph]) -> None:
    explainer = Explainer(bert(), compiled=True)
    for count in range(1, MOST + 3):
        explainer.explain(ids(9), method="grad_sam", layers=[0, 1] * count)
    assert sum(form.graph for form in explainer.forms) == MOST
    assert recorder.made == MOST, "a form that came once does not take the place of another"
    explainer.explain(ids(9), method="grad_sam", layers=[0, 1] * (MOST + 2))
    assert sum(form.graph for form in explainer.forms) == MOST and recorder.made == MOST + 1


def test_graphs_go_with_the_explainer() -> None:
    explainer = Explainer(model := bert(), compiled=True)
    explainer.explain(ids(9), method="generic_attention")
    gone = weakref.ref(model)
    del explainer, model
    gc.collect()
    assert gone() is None


def test_buckets() -> None:
    assert [bucket(length) for length in (1, 16, 17, 65, 128, 129, 500)] == [16, 16, 32, 96, 128, 192, 512]


CPU = torch.device("cpu")
ASKS: dict[str, Callable[[Tensor], object]] = {
    "item": lambda x: x[0].item(),
    "places": lambda x: x.nonzero(),
    "mask": lambda x: x[x > 0],
    "new": lambda x: torch.tensor([1.0, 2.0], device=x.device),
    "equal": lambda x: torch.equal(x, x),
    "distinct": lambda x: x.unique(),
}


@pytest.mark.parametrize("asked", ASKS)
def test_what_asks_the_host_is_an_error(asked: str) -> None:
    x = torch.arange(4.0)
    with pytest.raises(HostAsked), rehearsed(CPU):
        ASKS[asked](x)


def test_only_the_thread_that_rehearses_is_told_that_it_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[bool] = []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)  # there may be no CUDA to ask
    before = torch.cuda.is_current_stream_capturing
    with pytest.raises(ZeroDivisionError), rehearsed(CPU):
        assert torch.cuda.is_current_stream_capturing()
        other = threading.Thread(target=lambda: told.append(torch.cuda.is_current_stream_capturing()))
        other.start()
        other.join()
        _ = 1 / 0  # an error ends it as well
    assert told == [False]
    assert torch.cuda.is_current_stream_capturing is before


@pytest.mark.parametrize("quicker", ["product and sum", "whole"])
def test_a_linear_layer_is_computed_in_the_quicker_way(quicker: str, monkeypatch: pytest.MonkeyPatch) -> None:
    timed: list[Callable[..., Tensor]] = []

    def duration(self: Products, product: Callable[..., Tensor], operands: tuple[Tensor, ...]) -> float:
        timed.append(product)
        whole = product is torch.ops.aten.addmm.default
        return 1.0 if whole == (quicker == "whole") else 2.0

    monkeypatch.setattr(Products, "duration", duration)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    torch.manual_seed(0)
    layer, x = torch.nn.Linear(6, 4), torch.randn(3, 6, requires_grad=True)
    expected = layer(x)
    (slope,) = torch.autograd.grad(expected.sum(), x)
    with Products(CPU) as products:
        results = [layer(x), layer(x.flip(0)).flip(0)]
        (again,) = torch.autograd.grad(results[0].sum(), x)
        scaled = torch.addmm(layer.bias, x, layer.weight.t(), alpha=2.0)
    assert len(timed) == 2, "once for each shape, both ways"
    assert list(products.apart.values()) == [quicker != "whole"]
    for result in results:
        torch.testing.assert_close(result, expected)
    torch.testing.assert_close(again, slope)
    torch.testing.assert_close(scaled, layer.bias + 2 * (x @ layer.weight.t()))
