"""The loan of a model: interrupts, threads, forks, changes of the model, and models that are hard to lend."""

from __future__ import annotations

import copy
import functools
import os
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from inspect import getattr_static
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.methods.properties import model_of
from tests.models import CASES
from tests.tables.models import LAYOUTS, rows, table
from tests.test_promises import assert_same, state
from whyformer.checks import randomisation as randomisation_module
from whyformer.checks.exam import Exam
from whyformer.checks.randomisation import Redrawn, parts_of, randomisation
from whyformer.errors import BadInput, CaptureError, NotOffered
from whyformer.loan import borrow, turns
from whyformer.loan.borrow import REMEMBERED, borrowed, known_about
from whyformer.loan.fingerprint import told_of
from whyformer.results.interop import shap_package
from whyformer.run import Run
from whyformer.verbs import Explainer

# Ctrl-C


class Stopper:
    """Counts the lines that run in some files, and interrupts at one of them: by raising, or by the signal itself."""

    def __init__(self, at: int, files: tuple[str, ...], by_signal: bool) -> None:
        self.at, self.files, self.by_signal = at, files, by_signal
        self.lines, self.before = 0, (0, 0)

    def __call__(self, frame: Any, event: str, argument: Any) -> Any:
        if not frame.f_code.co_filename.endswith(self.files):
            return None
        # A line that comes again at once is a comprehension, which stands inline since Python 3.12: what a trace raises
        # there passes every ``finally`` by, what a signal raises does not.
        again, self.before = self.before == (id(frame), frame.f_lineno), (id(frame), frame.f_lineno)
        if event == "line" and not again:
            self.lines += 1
            if self.lines == self.at:
                if self.by_signal:
                    signal.raise_signal(signal.SIGINT)
                else:
                    raise KeyboardInterrupt
        return self


@pytest.fixture(autouse=True)
def heard() -> Iterator[None]:
    """Programs that a shell starts in the background ignore Ctrl-C: here it is heard."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@contextmanager
def traced(stopper: Stopper) -> Iterator[None]:
    before = sys.gettrace()
    sys.settrace(stopper)
    try:
        yield
    finally:
        sys.settrace(before)


def free(model: nn.Module) -> bool:
    """Can another thread have it?"""
    had: list[bool] = []

    def have() -> None:
        with borrowed(model):
            had.append(True)

    thread = threading.Thread(target=have, daemon=True)
    thread.start()
    thread.join(120)
    return bool(had)


@pytest.mark.parametrize("by_signal", [True, False], ids=["signal", "raised"])
def test_an_interrupt_at_any_line_leaves_the_model_as_it_was(by_signal: bool) -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Dropout(0.5))
    model.train()
    model[0].eval()
    model[0].weight.requires_grad_(False)
    model.config = SimpleNamespace(_attn_implementation="flash_attention_2")
    before, handler, at = state(model), signal.getsignal(signal.SIGINT), 0
    with borrowed(model):
        pass
    while True:
        at += 1
        stopper = Stopper(at, ("whyformer/loan/borrow.py", "loan/turns.py"), by_signal)
        with suppress(KeyboardInterrupt), traced(stopper), borrowed(model):
            assert not model.training and model.config._attn_implementation == "sdpa"
        sys.settrace(None)
        assert_same(before, state(model))
        if by_signal:  # which is never raised where it waits
            assert signal.getsignal(signal.SIGINT) is handler
        signal.signal(signal.SIGINT, handler)
        if stopper.lines < at:
            break
        assert free(model), at
    assert at > 100


@pytest.mark.parametrize("by_signal", [True, False], ids=["signal", "raised"])
def test_an_interrupt_at_any_line_of_random_weights_puts_them_back(by_signal: bool) -> None:
    model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 2))
    parts = parts_of(model, lambda m: m(torch.ones(1, 3)), by="module")
    before, at, lines = [p.detach().clone() for p in model.parameters()], 0, 1
    while lines >= at:
        at += 1
        with suppress(KeyboardInterrupt), Redrawn(model) as drawn:
            for number, part in enumerate(parts):
                drawn.draw(part, number)
            assert not torch.equal(model[0].weight, before[0])
            stopper = Stopper(at, ("checks/randomisation.py",), by_signal)
            with suppress(KeyboardInterrupt), traced(stopper):
                drawn.restore()
            lines = stopper.lines
        assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert at > 10


class Impatient(nn.Linear):
    """Ctrl-C comes just when it is put back into training mode."""

    def __setattr__(self, name: str, value: Any) -> None:
        super().__setattr__(name, value)
        if name == "training" and value and hasattr(self, "armed"):
            signal.raise_signal(signal.SIGINT)


def test_ctrl_c_comes_when_the_model_is_back() -> None:
    model = nn.Sequential(Impatient(2, 2), nn.Dropout(0.5))
    model[0].armed = True
    with pytest.raises(KeyboardInterrupt), borrowed(model):
        assert not model.training
    assert all(m.training for m in model.modules()) and all(p.requires_grad for p in model.parameters())


# What is known rests on the model as it was


class Reader(nn.Module):
    """Attention, and a head that reads the rows that an attribute, a buffer or a module says."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, 16)
        self.attention = nn.MultiheadAttention(16, 2, batch_first=True)
        self.pool, self.reader = "first", First()
        self.settings = {"rows": [0]}
        self.register_buffer("row", torch.tensor(0), persistent=False)
        self.head = nn.Linear(16, 3)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        if self.pool == "mean":
            return self.head(x.mean(1))
        if self.settings["rows"] != [0]:
            return self.head(x[:, self.settings["rows"]].mean(1))
        if int(self.row):
            return self.head(x[:, int(self.row)])
        return self.head(self.reader(x))


class First(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, 0]


class Surrounded(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, int(os.environ.get("ROW", "0"))]


class Last(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x[:, -1]


def reader() -> Reader:
    torch.manual_seed(0)
    return Reader().eval()


IDS = {"input_ids": torch.tensor([[3, 4, 5, 6, 7, 8]])}


def change_attribute(model: Any) -> None:
    model.pool = "mean"


def change_buffer(model: Any) -> None:
    model.row.fill_(2)


def change_module(model: Any) -> None:
    model.reader = Last()


def change_setting(model: Any) -> None:
    model.settings["rows"][0] = 3


def add_hook(model: Any) -> None:
    model.reader.register_forward_hook(lambda module, arguments, out: arguments[0][:, 2])


CHANGES: list[Callable[[Any], None]] = [change_attribute, change_buffer, change_module, change_setting, add_hook]


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("method", ["generic_attention", "attention_rollout"])
def test_a_changed_model_is_studied_anew(change: Callable[[Any], None], method: str) -> None:
    model, fresh = reader(), reader()
    change(fresh)
    (expected,) = wf.explain(fresh, IDS, method=method, target=1)
    explainer = wf.Explainer(model)
    (before,) = explainer.explain(IDS, method=method, target=1)
    change(model)
    for found in (explainer.explain(IDS, method=method, target=1), wf.explain(model, IDS, method=method, target=1)):
        np.testing.assert_allclose(found[0].scores, expected.scores, atol=1e-6)
    assert not np.allclose(before.scores, expected.scores, atol=1e-3)


def test_a_changed_config_is_studied_anew() -> None:
    case = CASES["modernbert"]
    model, fresh = case.build("sdpa"), case.build("sdpa")
    assert model.config.classifier_pooling == "cls"
    fresh.config.classifier_pooling = "mean"
    expected = wf.explain(fresh, case.inputs(), method="generic_attention", target=1)
    wf.explain(model, case.inputs(), method="generic_attention", target=1)
    model.config.classifier_pooling = "mean"
    found = wf.explain(model, case.inputs(), method="generic_attention", target=1)
    np.testing.assert_allclose(found[0].scores, expected[0].scores, atol=1e-6)


def test_functions_that_read_each_other_are_told_once_and_the_last_is_seen() -> None:
    names = [f"step_{i}" for i in range(30)]
    space: dict[str, Any] = {"__name__": "steps", "SETTING": 1}
    for name, follower in zip(names, [*names[1:], "SETTING"], strict=True):  # each also reads the one after the next
        exec(f"def {name}(): return {follower}, {names[0]}, {names[-1]}", space)
    before, _ = told_of(space[names[0]])
    assert len(before) <= 2 * len(names) + 2
    space["SETTING"] = 2
    assert told_of(space[names[0]])[0] != before


def test_the_readout_is_checked_by_every_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where nothing tells of the change: here the head reads a variable of the process."""
    model, fresh = reader(), reader()
    model.reader, fresh.reader = Surrounded(), Last()
    (expected,) = wf.explain(fresh, IDS, method="generic_attention", target=1)
    wf.explain(model, IDS, method="generic_attention", target=1)
    monkeypatch.setenv("ROW", "-1")  # which nothing tells
    (found,) = wf.explain(model, IDS, method="generic_attention", target=1)
    np.testing.assert_allclose(found.scores, expected.scores, atol=1e-6)


def test_what_is_known_is_bounded_and_nothing_is_forgotten_between_equal_calls() -> None:
    model = LAYOUTS["rtdl"].build()
    counts = []
    for _ in range(3):
        wf.explain(model, rows(1), processor=table(), method="attention_rollout")
        facts = known_about(model)
        counts.append((len(facts), len(facts["tables"])))
    assert len(set(counts)) == 1, "what is known of a table goes with it"
    for number in range(2 * REMEMBERED):
        facts[number] = number
        facts.move_to_end(0)
    assert len(facts) == REMEMBERED and 0 in facts and 1 not in facts, "those that nobody asks for go first"
    model = reader().train()
    for first in (True, False, False):
        (found,) = wf.explain(model, IDS, method="attention_rollout")
        assert (found.cost.setup_forwards > 0) == first


class Busy(Reader):
    """Keeps a count and its last state: what passes change by themselves is no setting."""

    def __init__(self) -> None:
        super().__init__()
        self.calls, self.last = 0, None
        self.register_buffer("seen", torch.zeros(3), persistent=False)

    def forward(self, input_ids: Tensor) -> Tensor:
        self.calls, self.last = self.calls + 1, {"ids": input_ids.clone()}
        self.seen += 1
        return super().forward(input_ids)


def test_what_a_pass_changes_by_itself_is_no_reason_to_forget() -> None:
    torch.manual_seed(0)
    model = Busy().eval()
    setups = []
    for _ in range(3):
        (found,) = wf.explain(model, IDS, method="attention_rollout", target=1)
        setups.append(found.cost.setup_forwards > 0)
        model(**IDS)
    assert setups == [True, False, False]
    model.pool = "mean"
    assert wf.explain(model, IDS, method="attention_rollout", target=1)[0].cost.setup_forwards > 0


def test_what_a_hook_collects_is_no_reason_to_forget() -> None:
    model, outputs, last = reader(), list[Tensor](), dict[str, Tensor]()
    model.head.register_forward_hook(lambda module, arguments, out: outputs.append(out))
    model.head.register_forward_hook(lambda module, arguments, out: last.update(out=out))
    changes = []
    for _ in range(4):
        wf.explain(model, IDS, method="generic_attention", target=1)
        changes.append(borrow.loan_of(model).changes)
    assert len(outputs) > 4 and len(set(changes)) == 1


def test_a_setting_that_a_collecting_hook_reads_is_seen() -> None:
    model, seen = reader(), dict[str, Tensor]()

    class Settings:
        row = 0

    def hook(module: nn.Module, arguments: tuple[Tensor], out: Tensor) -> Tensor:
        seen["out"] = out
        return arguments[0][:, Settings.row]

    model.reader.register_forward_hook(hook)
    rules = []
    for Settings.row in (0, 0, 3):
        rules.append(wf.explain(model, IDS, method="generic_attention", target=1)[0].readout)
    assert rules == ["first position"] * 2 + ["position 3"]


def step_of_sgd(gate: nn.Parameter) -> None:
    gate.grad = gate.detach() - 1
    torch.optim.SGD([gate], lr=1.0).step()
    gate.grad = None


class FirstOrLast(Reader):
    """A weight decides which row the head reads: the first where it is 0, the last where it is 1."""

    def __init__(self) -> None:
        super().__init__()
        self.gate = nn.Parameter(torch.zeros(1))

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return self.head((1 - self.gate) * x[:, 0] + self.gate * x[:, -1])


WRITES: dict[str, Callable[[wf.Explainer, Any], object]] = {
    "no_grad": lambda explainer, model: model.gate.detach().fill_(1.0),
    "optimizer": lambda explainer, model: step_of_sgd(model.gate),
    "state": lambda explainer, model: model.load_state_dict(model.state_dict() | {"gate": torch.ones(1)}),
    "other memory": lambda explainer, model: setattr(model.gate, "data", torch.ones(1)),
    "data": lambda explainer, model: (model.gate.data.fill_(1.0), explainer.refresh()),  # which torch does not count
}


@pytest.mark.parametrize("write", WRITES)
def test_a_model_is_studied_anew_once_its_weights_are_written_to(write: str) -> None:
    torch.manual_seed(0)
    model = FirstOrLast().eval()
    explainer = wf.Explainer(model)
    ask = functools.partial(explainer.explain, IDS, method="attention_rollout", target=1)
    setups = [ask()[0].cost.setup_forwards for _ in range(2)]
    assert setups[0] > setups[1] == 0
    WRITES[write](explainer, model)
    (found,), (expected,) = ask(), wf.explain(copy.deepcopy(model), IDS, method="attention_rollout", target=1)
    assert found.readout == expected.readout == "last position"
    np.testing.assert_array_equal(found.scores, expected.scores)
    assert ask()[0].cost.setup_forwards == 0


class Gated(nn.Module):
    """Attention without a softmax, which has to be pointed out."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.maps, self.head = nn.Embedding(20, 8), nn.Identity(), nn.Linear(8, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.table(input_ids)[:, None]
        return self.head((x + self.maps(torch.sigmoid(x @ x.transpose(2, 3))) @ x)[:, 0, 0])


def test_what_is_known_with_attention_pointed_out_is_not_used_without() -> None:
    model = Gated().eval()
    assert wf.explain(model, IDS, method="raw_attention", attention_at={"maps": "b h q k"})
    with pytest.raises(CaptureError):
        wf.explain(model, IDS, method="raw_attention")
    assert wf.explain(model, IDS, method="raw_attention", attention_at={"maps": "b h q k"})
    assert not model.maps._forward_hooks


# Threads


class Wrapper(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner, self.dropout = inner, nn.Dropout(0.5)

    def forward(self, input_ids: Tensor) -> Tensor:
        out: Tensor = self.dropout(self.inner(input_ids))
        return out


def test_two_wrappers_of_one_backbone_take_turns() -> None:
    backbone = reader().train()
    one, other = Wrapper(backbone), Wrapper(backbone)
    inside, leave, entered = threading.Event(), threading.Event(), threading.Event()

    def hold() -> None:
        with borrowed(one):
            inside.set()
            leave.wait(60)

    def want() -> None:
        with borrowed(other):
            entered.set()

    threads = [threading.Thread(target=hold), threading.Thread(target=want)]
    threads[0].start()
    inside.wait(60)
    threads[1].start()
    assert not entered.wait(0.5)
    leave.set()
    assert entered.wait(60)
    for thread in threads:
        thread.join()
    assert one.training and other.training and backbone.training


def test_the_generator_of_other_threads_is_left_alone() -> None:
    model = reader()
    states: list[Tensor] = []
    model.register_forward_hook(lambda *_: states.append(torch.get_rng_state()))
    before = torch.get_rng_state()
    for method in ("generic_attention", "integrated_gradients", "occlusion"):
        wf.explain(model, IDS, method=method, **({"replace": 1} if method == "occlusion" else {}))
    assert states and all(torch.equal(s, before) for s in states)


class Drawing(Reader):
    """Draws random numbers whatever its mode: by operators that take a generator, and by one that does not."""

    def forward(self, input_ids: Tensor) -> Tensor:
        out = super().forward(input_ids)
        out = out + torch.rand(3) + torch.randint(1, 3, (3,)) + torch.empty(3).uniform_()
        return out + torch.native_dropout(torch.ones(3), 0.5, True)[0] + torch.randperm(3)


def test_a_model_that_draws_draws_the_same_and_leaves_no_trace() -> None:
    torch.manual_seed(0)
    model = Drawing().eval()
    before, states = torch.get_rng_state(), []
    model.register_forward_hook(lambda *_: states.append(torch.get_rng_state()))
    values = [wf.explain(model, IDS, method="attention_rollout", target=1)[0].value for _ in range(3)]
    assert len(set(values)) == 1
    assert all(torch.equal(s, before) for s in (*states, torch.get_rng_state())), "others draw as if it did not"
    inputs = {"input_ids": IDS["input_ids"].repeat(2, 1)}
    torch.manual_seed(0)
    expected = model(**inputs)[:, 1].tolist()
    assert [e.value for e in wf.explain(model, inputs, method="attention_rollout", target=1)] == pytest.approx(expected)


def test_what_is_drawn_beside_the_passes_is_taken_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(threading, "active_count", lambda: 1)  # with more, another thread may have drawn it
    model = reader()
    before = torch.get_rng_state()
    with borrowed(model):
        torch.rand(3)
    assert torch.equal(torch.get_rng_state(), before)


def test_random_weights_are_seen_by_nobody_else(monkeypatch: pytest.MonkeyPatch) -> None:
    model, inputs = copy.deepcopy(model_of("bert")), CASES["bert"].inputs()
    with torch.no_grad():
        expected = model(**inputs).logits
    agreement, looked = randomisation_module._agreement, []

    def predicted(exam: Any, original: Any) -> Any:
        with torch.no_grad():  # as another thread would, in the middle of it
            looked.append(torch.equal(model(**inputs).logits, expected))
            assert not torch.equal(exam.explainer.model(**inputs).logits, expected)
        return agreement(exam, original)

    monkeypatch.setattr(randomisation_module, "_agreement", predicted)
    found = randomisation(Exam(Explainer(model), inputs, method="raw_attention"), copies=2, beside=2)
    assert len(looked) > 4 and all(looked) and found.stages


def test_a_function_that_holds_a_module_is_no_twin() -> None:
    model = reader()
    head = model.head
    model.head.forward = lambda x: nn.functional.linear(x, head.weight)
    with pytest.raises(NotOffered, match="refers to a module"):
        randomisation(Exam(Explainer(model), IDS, method="raw_attention"), copies=1, beside=1)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_in_the_middle_leaves_the_child_a_whole_model() -> None:
    model = reader().train()
    inside, leave = threading.Event(), threading.Event()
    cached = getattr_static(Run, "readout_BN")  # up to Python 3.11 a cached property has a lock

    def hold() -> None:
        with borrowed(model), getattr(cached, "lock", nullcontext()):
            inside.set()
            leave.wait(300)

    thread = threading.Thread(target=hold)
    thread.start()
    inside.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(120)  # a deadlock ends here
        torch.set_num_threads(1)
        whole = model.training and all(p.requires_grad for p in model.parameters())
        with suppress(BaseException), borrowed(model), getattr(cached, "lock", nullcontext()):
            os._exit(0 if whole and not model.training else 1)
        os._exit(2)
    _, status = os.waitpid(child, 0)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(status) == 0
    assert model.training


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system does not fork")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_fork_without_the_threads_of_torch_is_refused_rather_than_waited_for() -> None:
    model, before = reader(), torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        with borrowed(model):
            pass
        child = os.fork()
    finally:
        torch.set_num_threads(before)
    if not child:
        signal.alarm(120)
        refused = []
        for count in (2, 1):
            torch.set_num_threads(count)
            try:
                with borrowed(model):
                    refused.append(False)
            except NotOffered as error:
                refused.append("get_context('spawn')" in str(error))
        os._exit(0 if refused == [True, False] else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_importing_shap_leaves_random_numbers_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "shap.py").write_text("import random, numpy\nrandom.seed(0)\nnumpy.random.seed(0)\n")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "shap", raising=False)
    before = random.getstate(), np.random.get_state()[1].tolist()
    assert shap_package("a test").__file__ == str(tmp_path / "shap.py")
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    sys.modules.pop("shap")  # by hand: monkeypatch would bring it back


# Models that are hard to lend


class Introspective(Reader):
    """Explains itself in its own forward."""

    def __init__(self, in_thread: bool) -> None:
        super().__init__()
        self.in_thread = in_thread

    def forward(self, input_ids: Tensor) -> Tensor:
        errors: list[BaseException] = []

        def explain() -> None:
            try:
                wf.explain(self, {"input_ids": input_ids}, method="attention_rollout")
            except NotOffered as error:
                errors.append(error)

        if self.in_thread:
            thread = threading.Thread(target=explain)
            thread.start()
            thread.join()
        else:
            explain()
        if errors:
            raise errors[0]
        return super().forward(input_ids)


@pytest.mark.parametrize("in_thread", [False, True])
def test_a_model_that_explains_itself_is_told(in_thread: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(turns, "POLL", 0.02)
    monkeypatch.setattr(turns, "PATIENCE", 0.1)
    with pytest.raises(NotOffered, match="forward"):
        wf.explain(Introspective(in_thread).eval(), IDS, method="attention_rollout")


class Compared(Reader):  # noqa: PLW1641  (as it is told)
    def __eq__(self, other: object) -> bool:
        return isinstance(other, Compared)


class Hashed(Compared):
    __hash__ = nn.Module.__hash__


def test_a_module_without_a_hash_is_told_how_to_get_one() -> None:
    with pytest.raises(BadInput, match=r"__hash__ = torch\.nn\.Module\.__hash__"):
        wf.explain(Compared(), IDS, method="attention_rollout")
    with pytest.raises(BadInput, match="__hash__"):
        wf.explain(Wrapper(Compared()), IDS, method="attention_rollout")
    assert wf.explain(Hashed(), IDS, method="attention_rollout")
