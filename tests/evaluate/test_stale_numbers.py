"""A cache returns what would be computed without it, whatever part of the question is another than before."""

from __future__ import annotations

import dataclasses
import inspect
import re
import threading
from collections import deque
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.checks.quick import plain_of
from tests.support import folders
from tests.tables.models import LAYOUTS, rows, saint, table
from whyformer.checks.check import check
from whyformer.checks.exam import RESOLVED as OF_EXAMS
from whyformer.checks.exam import Exam
from whyformer.compiled.forms import is_tensors_alone
from whyformer.errors import BadInput
from whyformer.evaluate.games import RESOLVED as OF_GAMES
from whyformer.evaluate.games import Games, games_of
from whyformer.inputs.batch import SHOWN, Batch
from whyformer.jobs.job import RESOLVED as OF_JOBS
from whyformer.jobs.job import explain_dataset
from whyformer.loan.borrow import borrowed, loan_of
from whyformer.loan.digests import Undescribed, digest

IDS = torch.tensor([[3, 4, 5, 6, 7, 8]])
ROW = 0  # which row a head reads: a setting in the file of a model


def row_of_file() -> int:
    return ROW


def by_default(row: int = 0) -> int:
    return row


def by_attribute() -> int:
    return int(vars(by_attribute)["row"])


vars(by_attribute)["row"] = 0
SHIFTS = {"hook": 0}  # which a hook reads
OF_PARENT, OF_LAYER = {"row": 0}, {"row": 0}


class Slotted:
    """A setting without a ``__dict__``."""

    __slots__ = ("row",)

    def __init__(self, row: int) -> None:
        self.row = row


class Choice:
    """A setting with a method that is called."""

    default = 0

    def __init__(self, row: int) -> None:
        self.row = row

    def __call__(self) -> int:
        return self.row


class Settings:
    """A class that forward does not name, with all of its settings on itself."""

    row, rows = 0, [0]

    def method(self) -> int:
        return 0

    @property
    def read(self) -> int:
        return 0


class Held:
    """A class that is a setting itself."""

    rows: ClassVar = [0]
    pattern = re.compile("0")


class Parent(nn.Module):
    """A method that a class hides and reads by ``super()``."""

    def helper(self) -> int:
        return OF_PARENT["row"]


class Layer(nn.Conv1d):
    """A method that torch calls."""

    def _conv_forward(self, *arguments: Any) -> Any:
        return OF_LAYER["row"]


class Open(Parent):
    """Attention, and a head that reads the row that everything a forward pass can read adds up to."""

    shift = 0

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.qkv, self.head = nn.Embedding(20, 16), nn.Linear(16, 48), nn.Linear(16, 3)
        self.deep = {"a": {"b": {"c": {"d": {"e": 0}}}}}
        self.slotted, self.choice, self.called = Slotted(0), Choice(0), Choice(0).__call__
        self.many, self.numbers = [0] * 500, np.zeros(100, dtype=int)
        self.ordered, self.some, self.activation = {0: 0, 2: 0}, {0, 2}, nn.functional.gelu
        self.config = SimpleNamespace(inner=SimpleNamespace(row=0))
        self.settings, self.held, self.queue, self.partly = Settings(), Held, deque([0]), partial(by_default, row=0)
        self.hooked, self.layer = nn.Identity(), Layer(1, 1, 1)
        self.hooked.register_forward_hook(lambda module, arguments, out: out + SHIFTS["hook"])
        closed = 0

        def read() -> int:
            return closed

        def write(row: int) -> None:
            nonlocal closed
            closed = row

        self.read, self.write = read, write
        self.register_buffer("row", torch.tensor(0), persistent=False)

    def helper(self) -> int:
        return super().helper()

    def forward(self, input_ids: Tensor, other: Any = None, *, added: int = 0) -> Tensor:
        x = self.words(input_ids)
        q, k, v = self.qkv(x).unflatten(-1, (3, 2, 8)).permute(2, 0, 3, 1, 4)
        x = x + 3 * nn.functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        row = row_of_file() + self.shift + self.helper() + self.deep["a"]["b"]["c"]["d"]["e"] + self.slotted.row
        row += self.choice() + self.called() + sum(self.many) + int(self.numbers.sum())
        row += self.config.inner.row + self.read() + int(self.row) + Choice.default + chosen(other)
        row += next(iter(self.ordered)) + min(self.some) + by_default() + by_attribute() + self.partly() + self.queue[0]
        row += self.settings.row + self.settings.rows[0] + self.settings.method() + self.settings.read
        row += self.held.rows[0] + self.hooked(0) + self.layer(0) + added
        return 4 * self.head(self.activation(x[:, row]))


def chosen(other: Any) -> int:
    """A row, from an argument of any kind."""
    if other is None or isinstance(other, (int, float, str, Tensor, np.generic)):
        return int(other or 0)
    if isinstance(other, np.ndarray):
        return int(other.sum())
    if isinstance(other, dict):
        return chosen(list(other.values()))
    if isinstance(other, (list, tuple, set)):
        return sum(map(chosen, other))
    return chosen(other.row if hasattr(other, "row") else other())


def scores(model: nn.Module, **inputs: Any) -> np.ndarray[Any, Any]:
    (one,) = wf.explain(model, {"input_ids": IDS, **inputs}, method="attention_rollout", target=1)
    return np.asarray(one.scores)


def drops(model: nn.Module, folder: Path | None, **inputs: Any) -> tuple[list[float], int]:
    with games_of(wf.Explainer(model), {"input_ids": IDS, **inputs}, cache=folder, replace=1, target=1) as games:
        return [round(drop, 5) for drop in games.game(0).drops("logit").tolist()], games.forwards


@cache
def expected(row: int) -> tuple[np.ndarray[Any, Any], list[float]]:
    """Scores and drops of a new model whose head reads this row, without any cache."""
    return scores(Open().eval(), other=row), drops(Open().eval(), None, other=row)[0]


# What a model reads besides its inputs


CHANGES: dict[str, Callable[[Any, pytest.MonkeyPatch], object]] = {
    "global": lambda model, patch: patch.setitem(globals(), "ROW", 2),
    "function": lambda model, patch: patch.setitem(globals(), "row_of_file", lambda: 2),
    "class attribute": lambda model, patch: patch.setattr(Open, "shift", 2),
    "attribute of another class": lambda model, patch: patch.setattr(Choice, "default", 2),
    "method": lambda model, patch: patch.setattr(Open, "helper", lambda self: 2),
    "what a parent's method reads": lambda model, patch: patch.setitem(OF_PARENT, "row", 2),
    "what a method that torch calls reads": lambda model, patch: patch.setitem(OF_LAYER, "row", 2),
    "deep setting": lambda model, patch: model.deep["a"]["b"]["c"]["d"].update(e=2),
    "slots": lambda model, patch: setattr(model.slotted, "row", 2),
    "object": lambda model, patch: setattr(model.choice, "row", 2),
    "bound method": lambda model, patch: setattr(model.called.__self__, "row", 2),
    "list": lambda model, patch: model.many.__setitem__(300, 2),
    "order of a dict": lambda model, patch: model.ordered.update({0: model.ordered.pop(0)}),
    "set": lambda model, patch: model.some.remove(0),
    "array": lambda model, patch: setattr(model, "numbers", np.arange(100) == 5),
    "config": lambda model, patch: setattr(model.config.inner, "row", 2),
    "closure": lambda model, patch: model.write(2),
    "buffer": lambda model, patch: model.row.fill_(2),
    "hook": lambda model, patch: model.head.register_forward_pre_hook(lambda module, arguments: (-arguments[0],)),
    "activation": lambda model, patch: setattr(model, "activation", torch.tanh),
    "default": lambda model, patch: patch.setattr(by_default, "__defaults__", (2,)),
    "code": lambda model, patch: patch.setattr(by_default, "__code__", (lambda row=0: 2).__code__),
    "attribute of a function": lambda model, patch: patch.setattr(by_attribute, "row", 2),
    "partial function": lambda model, patch: model.partly.keywords.update(row=2),
    "queue": lambda model, patch: model.queue.__setitem__(0, 2),
    "attribute of an object's class": lambda model, patch: patch.setattr(Settings, "row", 2),
    "list of an object's class": lambda model, patch: patch.setattr(Settings, "rows", [2]),
    "method of an object": lambda model, patch: patch.setattr(Settings, "method", lambda self: 2),
    "property of an object": lambda model, patch: patch.setattr(Settings, "read", property(lambda self: 2)),
    "list of a class that is held": lambda model, patch: patch.setattr(Held, "rows", [2]),
    "pattern of a class that is held": lambda model, patch: patch.setattr(Held, "pattern", re.compile("2")),
    "what a hook reads": lambda model, patch: patch.setitem(SHIFTS, "hook", 2),
    "default of forward": lambda model, patch: patch.setitem(Open.forward.__kwdefaults__, "added", 2),
    "code of forward": lambda model, patch: patch.setattr(Open.forward, "__code__", other_forward.__code__),
}


def other_forward(self: Any, input_ids: Tensor, other: Any = None, *, added: int = 0) -> Tensor:
    return torch.zeros(len(input_ids), 3)


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_model_reads_makes_it_another(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Open().eval()

    def changes() -> int:
        with borrowed(model):
            return loan_of(model).changes

    assert changes() == changes()
    before = changes()
    CHANGES[change](model, monkeypatch)
    assert changes() == before + 1
    assert changes() == before + 1


def test_the_same_model_is_found_again(tmp_path: Path) -> None:
    (first, forwards), again = (drops(Open().eval(), tmp_path) for _ in range(2))
    assert forwards > 0 and again == (first, 0)


@pytest.mark.parametrize("change", CHANGES)
def test_whatever_a_model_reads_is_in_its_name(change: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Open().eval()
    name = digest(model=model)
    CHANGES[change](model, monkeypatch)
    assert digest(model=model) != name


@pytest.mark.parametrize(
    "change", ["global", "closure", "buffer", "default", "what a hook reads", "what a parent's method reads"]
)
def test_whatever_a_model_reads_is_noticed(change: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model, before, after = Open().eval(), expected(0), expected(2)
    np.testing.assert_allclose(scores(model), before[0], atol=1e-6)
    assert drops(model, tmp_path)[0] == before[1]
    CHANGES[change](model, monkeypatch)
    np.testing.assert_allclose(scores(model), after[0], atol=1e-6)
    assert not np.allclose(after[0], before[0], atol=1e-2)
    now, forwards = drops(model, tmp_path)
    assert now == after[1] != before[1] and forwards > 0


# What a model is called with besides its inputs

ARGUMENTS: dict[str, Callable[[int], Any]] = {
    "int": int,
    "tensor without axes": torch.tensor,
    "array": lambda row: np.eye(200, dtype=int)[3] * row,
    "dict": lambda row: {"a": {"b": row}},
    "object": Choice,
    "slots": Slotted,
    "function": lambda row: lambda: row,
    "method": lambda row: Choice(row).__call__,
}


@pytest.mark.parametrize("kind", ["array", "function"])
def test_arguments_that_are_no_tensors_are_part_of_the_question(kind: str, tmp_path: Path) -> None:
    make, model = ARGUMENTS[kind], Open().eval()
    assert all(digest(other(0)) != digest(other(5)) for other in ARGUMENTS.values())
    for row in (0, 5):  # what is known of the model with one argument is none of another
        np.testing.assert_allclose(scores(model, other=make(row)), expected(row)[0], atol=1e-6)
    assert not np.allclose(expected(5)[0], expected(0)[0], atol=1e-2)
    kept = [drops(model, tmp_path, other=make(row)) for row in (0, 5, 5)]
    assert [k[0] for k in kept] == [expected(row)[1] for row in (0, 5, 5)]
    assert kept[0][0] != kept[1][0] and kept[0][1] > 0 and kept[1][1] > 0 and kept[2][1] == 0


class Handle:
    """What no other process could be handed: its contents cannot be described."""

    def __init__(self, row: int) -> None:
        self.row, self.stream = row, (number for number in range(3))


def test_what_cannot_be_described_is_not_cached(tmp_path: Path) -> None:
    model, plain = Open().eval(), []
    for row in (0, 5):
        with pytest.warns(RuntimeWarning, match=r"other\.stream is a builtins.generator"):
            found = drops(model, tmp_path, other=Handle(row))
        plain.append(drops(model, None, other=row)[0])
        assert found[0] == plain[-1] and found[1] > 0
        np.testing.assert_allclose(scores(model, other=Handle(row)), scores(Open().eval(), other=row), atol=1e-6)
    assert plain[0] != plain[1] and not list(tmp_path.glob("*.variants"))
    model.handle = Handle(0)
    with pytest.warns(RuntimeWarning, match="is not used: .*handle.stream"):
        drops(model, tmp_path)
    with pytest.raises(Undescribed, match="not in memory"):
        digest(model=nn.Linear(2, 2, device="meta"))


def test_names_are_the_same_in_another_order_of_time() -> None:
    """Locks, loggers and what is counted by the process hold no number; shared and repeated values are values."""
    model = Open().eval()
    model.lock = threading.Lock()
    name = digest(model=model)
    model.lock = threading.Lock()
    model.head.register_forward_hook(print).remove()
    assert digest(model=model) == name
    inner = [1]
    assert digest([inner, inner]) == digest([[1], [1]])
    inner.append(inner)
    assert digest(inner) != digest([1, [1]])
    plain = (1, 1.0, True, "1", [1], (1,), {1}, {1: 1}, {"1": 1}, b"1", np.int64(1), [[1]], None, 0)
    tensors = (torch.tensor(0.0), torch.zeros(4), torch.zeros(2, 2), torch.zeros(4, dtype=torch.bfloat16))
    names = [*map(digest, (*plain, *tensors)), digest("ab", "c"), digest("a", "bc")]
    assert len(set(names)) == len(names)


# Every parameter of a verb


def bert(seed: int = 0) -> nn.Module:
    model = folders.bert()
    with torch.no_grad():
        model.classifier.weight += seed * torch.arange(model.classifier.weight.numel()).view_as(model.classifier.weight)
    return model


TEXTS = ["a good movie", "so boring"]
OTHER_TEXTS = ["a movie that is not so good", "good"]
# A value besides the default, for each parameter that numbers depend on.
OTHERS: dict[Callable[..., Any], dict[str, Any]] = {
    wf.compare: {
        "model": lambda: bert(1),
        "inputs": lambda: OTHER_TEXTS,
        "method": lambda: [{"method": "occlusion", "replace": "unk"}, "grad_sam"],
        "metric": lambda: ["aopc"],
        "rationales": lambda: [[1, 0, 0], [0, 1]],
        "surrogate": lambda: bert(2),
        "replace": lambda: "unk",
        "reference": lambda: ["a dog"],
        "target": lambda: [0, 1],
        "scalar": lambda: "probability",
        "units": lambda: "sentence",
        "hold": lambda: 1,
        "seed": lambda: 1,
    },
    wf.check: {
        "model": lambda: bert(1),
        "inputs": lambda: OTHER_TEXTS,
        "checks": lambda: {"stability": {"noise": 0.5, "draws": 1}},
        "method": lambda: "grad_sam",
        "target": lambda: [0, 1],
        "seed": lambda: 1,
    },
}
# No number depends on them, or they are tried below: a tokenizer is a processor.
SAME = {"tokenizer", "batch_size", "progress", "cache", "processor", "attention_at", "masks", "options"}
BASE: dict[Callable[..., Any], dict[str, Any]] = {
    wf.compare: {"method": ["occlusion", "grad_sam"], "metric": ["aopc", "comprehensiveness"], "progress": False},
    wf.check: {"checks": {"stability": {"draws": 1}}, "method": "generic_attention", "progress": False},
}


@pytest.mark.parametrize("verb", OTHERS)
def test_every_parameter_of_a_verb_is_part_of_the_question(verb: Any, tmp_path: Path) -> None:
    """A new parameter needs a value here, with which the cache is tried; or no number depends on it."""
    tokenizer = folders.tokenizer(tmp_path / "tokenizer")
    assert set(OTHERS[verb]) < set(inspect.signature(verb).parameters) <= set(OTHERS[verb]) | SAME
    base = {"model": bert(), "inputs": TEXTS, "processor": tokenizer, **BASE[verb]}
    folder = tmp_path / "cache"
    first = numbers_of(verb(**base, cache=folder))
    assert numbers_of(verb(**base, cache=folder)) == first
    differ = []
    for name, make in OTHERS[verb].items():
        asked = base | {name: make()}
        plain = numbers_of(verb(**asked))
        assert numbers_of(verb(**asked, cache=folder)) == plain, name
        differ += [name] if plain != first else []
    assert {"model", "inputs", "target"} <= set(differ)
    tokenizer.mask_token = "[UNK]"
    assert numbers_of(verb(**base, cache=folder)) == numbers_of(verb(**base))


def numbers_of(found: Any) -> str:
    if isinstance(found, wf.Comparison):
        return str({m: {n: np.round(v, 4).tolist() for n, v in each.items()} for m, each in found.values.items()})
    return str(plain_of(found)["results"])


JOB: dict[str, Any] = {
    "model": lambda: bert(1),
    "method": lambda: "occlusion",
    "target": lambda: 1,
    "scalar": lambda: "probability",
    "too_long": lambda: "cut",
    "part_rows": lambda: 1,
    "batch_tokens": lambda: 7,
    "batch_size": lambda: 3,
    "seed": lambda: 1,
    "attention_at": lambda: {"classifier": "b q k"},
}
NO_NUMBERS = {"source", "out", "tokenizer", "engine", "workers", "address", "top", "progress"}
ELSEWHERE = {"column", "processor", "key", "target_column", "options"}


def test_a_job_is_resumed_with_the_same_question_only(tmp_path: Path) -> None:
    tokenizer = folders.tokenizer(tmp_path / "tokenizer")
    assert set(inspect.signature(explain_dataset).parameters) == set(JOB) | NO_NUMBERS | ELSEWHERE
    out = tmp_path / "out"
    base = {"model": bert(), "source": TEXTS, "out": out, "processor": tokenizer, "method": "grad_sam", "top": 0}
    explain_dataset(**base)
    explain_dataset(**base)
    for name, make in JOB.items():
        with pytest.raises(BadInput, match="job with other parameters"):
            explain_dataset(**base | {name: make()})
    with pytest.raises(BadInput, match=r"options was \{\} and is"):
        explain_dataset(**base, units="word")
    tokenizer.padding_side = "left"
    with pytest.raises(BadInput, match="processor was"):
        explain_dataset(**base)


# By construction


def test_lists_of_exceptions_name_what_there_is() -> None:
    """All that is not on these lists is in every name: a list that names more hides what is added later."""
    for function, resolved in ((Games.__init__, OF_GAMES), (Exam.__init__, OF_EXAMS), (explain_dataset, OF_JOBS)):
        assert resolved <= set(inspect.signature(function).parameters)
    assert {field.name for field in dataclasses.fields(Batch)} >= SHOWN
    loaded = {"model", "processor", "tokenizer", "attention_at"}  # in all names, too: the explainer's question
    asked = set(inspect.signature(check).parameters) - {"inputs", "checks"} - loaded
    assert asked <= set(inspect.signature(Exam.__init__).parameters)


def test_every_field_of_a_batch_is_in_its_name_and_keeps_it_from_graphs() -> None:
    """Also of fields that are added: their values are made from nothing but the field."""
    batch = Batch({"input_ids": IDS})
    assert is_tensors_alone(batch)
    for field in dataclasses.fields(Batch):
        other = dataclasses.replace(batch, **{field.name: {"x": torch.ones(2)}})
        assert (digest(other.contents()) != digest(batch.contents())) == (field.name not in SHOWN), field.name
        written = field.name in {"tensors", "keep_BN", "raw", "warnings", "encodings", "asked"}
        assert is_tensors_alone(other) == written, field.name
    explainer = wf.Explainer(Open().eval())
    name = digest(explainer.question())
    explainer.new = 1  # type: ignore[attr-defined]
    assert digest(explainer.question()) != name


def test_flags_of_torch_are_part_of_the_question() -> None:
    explainer = wf.Explainer(Open().eval())
    names = [digest(explainer.question())]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        names.append(digest(explainer.question()))
    torch.set_default_dtype(torch.float64)
    names.append(digest(explainer.question()))
    torch.set_default_dtype(torch.float32)
    with torch.nn.modules.module.register_module_forward_hook(print):
        names.append(digest(explainer.question()))
    assert len(set(names)) == 4 and digest(explainer.question()) == names[0]


# Processors


def test_settings_of_a_tokenizer_are_part_of_its_name(tmp_path: Path) -> None:
    tokenizer, same = folders.tokenizer(tmp_path / "a"), folders.tokenizer(tmp_path / "b")
    names = [digest(processor=tokenizer)]
    assert digest(processor=same) == names[0]
    tokenizer(TEXTS, padding=True, truncation=True, max_length=3)
    assert digest(processor=tokenizer) == names[0], "a call changes nothing"
    changes = {"padding_side": "left", "truncation_side": "left", "chat_template": "{{ messages }}"}
    for name, value in (changes | {"model_max_length": 7, "mask_token": "[UNK]"}).items():
        setattr(tokenizer, name, value)
        names.append(digest(processor=tokenizer))
    tokenizer.add_tokens(["unheard"])
    names.append(digest(processor=tokenizer))
    assert len(set(names)) == len(names)


def test_a_table_that_is_written_to_is_another() -> None:
    """Reference rows that were encoded once are read again."""
    model, how = saint(), {"method": "input_x_gradient", "target": 0}
    first, second = (table(reference=rows(8, seed=seed)) for seed in (1, 2))
    before = wf.explain(model, rows(1), first, **how)[0].scores
    expected = wf.explain(saint(), rows(1), second, **how)[0].scores
    first.reference = second.reference
    np.testing.assert_allclose(wf.explain(model, rows(1), first, **how)[0].scores, expected, atol=1e-6)
    assert not np.allclose(before, expected, atol=1e-4)


class Switched(nn.Module):
    """A model of rows that is called in two ways: the second reads its class token elsewhere."""

    def __init__(self) -> None:
        super().__init__()
        self.model = LAYOUTS["cls_first"].build()

    def forward(self, numbers: Tensor, codes: Tensor, turned: bool = False) -> Tensor:
        return self.model(-numbers, codes) if turned else self.model(numbers, codes)


def test_how_a_model_is_called_is_part_of_the_question(tmp_path: Path) -> None:
    model, found = Switched().eval(), []
    how: dict[str, Any] = {"method": ["occlusion", "attention_rollout"], "metric": ["aopc"], "progress": False}
    for turned in (False, True):
        given = rows(2), table(call=lambda numbers, codes, turned=turned: (numbers, codes, turned))
        kept, again, plain = (wf.compare(model, *given, **how, cache=folder) for folder in (tmp_path, tmp_path, None))
        assert numbers_of(kept) == numbers_of(again) == numbers_of(plain) and again.variants == 0
        found.append(numbers_of(plain))
    assert found[0] != found[1]
