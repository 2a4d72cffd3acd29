"""The door for parameters: what an annotation allows is taken, all else is refused in one form, before any work."""

from __future__ import annotations

import decimal
import fractions
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.support import folders
from whyformer import concepts, heads, tables
from whyformer.errors import BadInput, NotAllowed, UnknownName, WhyformerError, shown
from whyformer.parameters import (
    MEANT,
    NOT_ALLOWED,
    BatchSize,
    Limits,
    NotEmpty,
    OneOf,
    Place,
    Places,
    Seed,
    checked,
    domain_of,
    parameters_of,
)
from whyformer.run.session import loaded_as

NAN, INF = math.nan, math.inf
SHARE = Annotated[float, Limits(0, 1, open_high=True)]


class Thing:
    pass


LIKE = "i like it"
NO_TARGETS: list[Any] = [1.7, 0.5, True, NAN, b"x", {}, (0, True), [1.7], Thing()]
BEYOND: list[Any] = [wf.Target(99), wf.Target(0, versus=99), 99, -99]


@pytest.mark.parametrize(
    ("hint", "fine", "refused"),
    [
        (int, [0, -3, np.int64(3), torch.tensor(3)], [True, 1.0, 1.7, "3", None, NAN, np.bool_(True), 1j]),
        (float, [0, 1.5, np.float32(2), -1, fractions.Fraction(1, 2)], [True, "1", None, NAN, INF, 1j, 10**400, [1.0]]),
        (bool, [True, False, np.bool_(False)], [0, 1, "no", "False", None, 0.0, NAN]),
        (str, ["", "a"], [b"a", 3, None]),
        (Seed, [0, 2**63 - 1, np.uint8(3)], [-1, 0.5, 2**63, True, "0", None, NAN]),
        (BatchSize | None, [None, 1, 64], [0, -1, 2.5, True, "3", INF]),
        (SHARE, [0, 0.5], [1, -0.1, NAN, INF, "0.5"]),
        (Annotated[str, OneOf("mean", "max")] | Place, ["mean", 3, -1], ["Mean", "", True, 1.5, [1]]),
        (Places, [[0], (1, -1), np.array([1, 2]), range(2)], [[], [1.5], ["a"], "01", 3, {1: 2}, [True]]),
        (Literal["a", "b"], ["a"], ["c", 3, None]),
        (tuple[int, int], [(1, 2)], [[3, 4], (1,), (1, 2, 3), "ab", (1, 2.5), 3]),
        (Mapping[str, float], [{"a": 1.5}, {}], [[], {"a": "b"}, {1: 2.0}, "a"]),
        (Annotated[Sequence[Any], NotEmpty()], [["a"], (None,)], [[], "ab", {}, 3, None]),
        (list[str], [["a"]], [("a",), "a", [3]]),
        (str | Path, ["x.json", Path("x")], ["", " ", "\0", 3, b"x", True, None]),
        (Callable[[Any], Any] | None, [None, len, lambda x: x], [3, "f"]),
        (np.ndarray, [np.zeros(2)], [[1.0], 3]),
        (Any, [None, 3, Thing()], []),
    ],
)  # fmt: skip
def test_what_an_annotation_allows(hint: Any, fine: list[Any], refused: list[Any]) -> None:
    domain = domain_of(hint)
    assert [v for v in fine if domain.take(v) is NOT_ALLOWED] == []
    assert [v for v in refused if domain.take(v) is not NOT_ALLOWED] == []
    assert type(domain_of(int).take(np.int64(3))) is int, "numbers of other libraries become Python's"


@checked
def sample(
    inputs: Any,
    *,
    steps: Annotated[int, Limits(1)] = 5,
    how: Annotated[str, OneOf("mean", "maximum")] = "mean",
    size: Annotated[float, Limits(0, open_low=True)] | None = None,
) -> Any:
    return inputs, steps, how, size


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"steps": 0}, NotAllowed, "steps=0 of sample is not allowed: give a whole number of at least 1."),
        ({"how": "maximun"}, UnknownName,
         "how='maximun' of sample is not allowed: give 'mean' or 'maximum'. Did you mean 'maximum'?"),
        ({"size": NAN}, NotAllowed, "size=nan of sample is not allowed: give a number above 0 or None."),
    ],
)  # fmt: skip
def test_one_form_of_message(given: dict[str, Any], error: type[Exception], words: str) -> None:
    """Name, what was given, what is allowed, nearest spelling."""
    with pytest.raises(error) as refusal:
        sample(1, **given)
    assert str(refusal.value) == words


@pytest.mark.parametrize(
    ("values", "named", "error", "words"),
    [
        ((), {}, BadInput, "sample needs inputs"),
        ((1, 2), {}, BadInput, "takes inputs by position, and 2 positional values"),
        ((1,), {"inputs": 2}, BadInput, "inputs twice"),
        ((1,), {"step": 2}, UnknownName, "Did you mean 'steps'"),
    ],
)
def test_a_call_that_does_not_fit_the_signature(values: Any, named: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        sample(*values, **named)


@pytest.mark.parametrize(
    "value", ["a" * 1000, 10**5000, [1] * 100, Thing(), np.zeros((3, 3)), {"a": "b" * 500}], ids=type
)
def test_what_was_given_is_shown_in_short(value: Any) -> None:
    assert len(shown(value)) <= 80 and "\n" not in shown(value)
    assert shown("\x1b[31m\u202e\x9b") == r"'\x1b[31m\u202e\x9b'", "control characters do not reach the terminal"


EXPLAINING = (wf.explain, wf.Explainer.explain)
VERBS = [
    wf.explain, wf.compare, wf.recommend, wf.check, wf.head_importance, wf.tcav, wf.activation_maximization,
    wf.explain_global, wf.feature_permutation, tables.row_attention, wf.load, heads.pruning_curve, heads.learn_gates,
    tables.explain_in_context,
    heads.layer_profile, heads.roles, heads.induction, heads.circuits, heads.direct_logit,
    concepts.tcav, wf.Explainer, wf.Explainer.explain, wf.Explainer.record, wf.Table,
]  # fmt: skip


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__qualname__)
def test_every_verb_has_the_door(verb: Any) -> None:
    function = verb.__init__ if inspect.isclass(verb) else verb
    assert function.__code__.co_name == "entered"
    declared = parameters_of(inspect.unwrap(function)).domains
    for name in ("seed", "batch_size", "progress", "attention_at", "target", "scalar"):
        assert name not in inspect.signature(function).parameters or name in declared


def test_every_option_of_a_method_metric_or_check_says_what_it_takes() -> None:
    from whyformer.checks.check import CHECKS

    several = {m.name: m.run for m in (*wf.list_methods().values(), *wf.list_metrics().values())} | CHECKS
    for name, run in several.items():
        known = parameters_of(run, name)
        options = [o for o in known.names if o not in known.positional]
        assert [o for o in options if o not in known.domains] == [], name
        for option in options:  # the default is one of the values
            assert known.domains[option].take(known.defaults[option]) is not NOT_ALLOWED, (name, option)


@pytest.fixture(scope="module")
def explainer(tmp_path_factory: pytest.TempPathFactory) -> wf.Explainer:
    return wf.Explainer(folders.bert(), folders.tokenizer(tmp_path_factory.mktemp("tokenizer")))


def test_nothing_runs_before_the_check(explainer: wf.Explainer) -> None:
    def forward(*args: Any, **named: Any) -> None:
        raise AssertionError("the model was run")

    model = folders.bert()
    model.forward = forward  # type: ignore[assignment,method-assign]
    wrong: list[dict[str, Any]] = [
        {"batch_size": 0}, {"keep_layers": "no"}, {"progress": 3}, {"target": 1.7}, {"scalar": "logits"},
        {"method": "integrated_gradients", "steps": NAN}, {"method": "attention_rollout", "normalize": "False"},
        {"method": "smooth_grad", "noise": NAN}, {"method": "raw_attention", "heads": [True]},
    ]  # fmt: skip
    for how in wrong:
        with pytest.raises(BadInput, match=list(how)[-1]):
            wf.explain(model, "i like it", processor=explainer.processor, **how)


@pytest.mark.parametrize(
    ("call", "values", "error", "words"),
    [
        (lambda e, v: wf.activation_maximization(folders.vit(), 0, steps=1, jitter=v), [INF, NAN, -1, "3", True],
         NotAllowed, "jitter"),  # infinity ended in a segmentation fault
        (lambda e, v: e.explain(LIKE, target=v), NO_TARGETS, BadInput, "target"),
        (lambda e, v: e.record(LIKE, target=v), NO_TARGETS, BadInput, "target"),
        (lambda e, v: e.explain(LIKE, target=v), BEYOND, UnknownName, "target"),
        (lambda e, v: e.record(LIKE, target=v), BEYOND, UnknownName, "target"),
        (lambda e, v: e.check(LIKE, target=v), BEYOND, UnknownName, "target"),
        (lambda e, v: e.check(LIKE, checks=["capture_audit"], nonsense=v), [3], UnknownName, "nonsense"),
        (lambda e, v: wf.Explainer(e.model, attention_at={"*": v}), ["z z", "", "b h q"], BadInput,
         "one letter per axis"),
        (lambda e, v: heads.pruning_curve(e.model, [LIKE], [0], processor=e.processor, order=v),
         [3, True, NAN, Thing(), [1, 2], [("a", "b")], {}], WhyformerError, "order"),
        (lambda e, v: heads.pruning_curve(e.model, [LIKE], [0], processor=e.processor, metric=v),
         [lambda logits, labels: None], BadInput, "one value per input"),
        (lambda e, v: e.explain(LIKE, method="integrated_gradients", baseline=v),
         [torch.ones(2, device="meta"), torch.eye(2).to_sparse(), np.array(["a"]), torch.tensor(NAN)], BadInput,
         "baseline"),
    ],
)  # fmt: skip
def test_values_that_are_refused(
    explainer: wf.Explainer, call: Any, values: list[Any], error: type[Exception], words: str
) -> None:
    for value in values:
        with pytest.raises(error, match=words):
            call(explainer, value)


def test_a_list_of_two_targets_is_no_contrast(explainer: wf.Explainer) -> None:
    """[0, 1] is one target per input, (0, 1) is 0 rather than 1."""
    each = explainer.explain(["i like it", "it was bad"], target=[0, 1])
    assert [e.target.index for e in each] == [0, 1] and all(e.target.versus is None for e in each)
    pair = explainer.explain("i like it", target=(0, 1))
    assert (pair.target.index, pair.target.versus) == (0, 1)
    with pytest.raises(BadInput, match="targets: 2, inputs: 1"):
        explainer.explain("i like it", target=[0, 1])


def test_every_annotation_of_a_verb_can_be_read() -> None:
    """One that names what is not there would be taken for Any, and its parameter be held to nothing."""
    for verb in (*(f for name in wf.__all__ if inspect.isfunction(f := getattr(wf, name))), wf.Explainer.explain):
        function = inspect.unwrap(verb)
        scope = getattr(function, "annotated_in", function.__globals__)
        for parameter in inspect.signature(function).parameters.values():
            if isinstance(parameter.annotation, str):
                eval(parameter.annotation, scope)


class Hostile:
    def _raises(self, *args: Any) -> Any:
        raise RuntimeError("not today")

    __len__ = __iter__ = __eq__ = __hash__ = __repr__ = __str__ = __float__ = _raises


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda verb: verb(self=3), "takes no self"),
        (lambda verb: wf.Explanation.words(self=3), "is a method"),
        (lambda verb: wf.Explainer.explain(), "is a method"),
        (lambda verb: wf.Explainer(), "needs model"),
        (lambda verb: wf.Explanation.load(cls=3), "takes no cls"),
        (lambda verb: wf.list_methods(kwargs=1), "kwargs"),
        (lambda verb: verb("a", seed=Hostile()), "seed=<Hostile>"),
        (lambda verb: verb("a", seed=decimal.Decimal(1)), "seed"),
        (lambda verb: verb("a", method="smooth_grad", memory_mb=1.7e308), "memory_mb"),
        (lambda verb: verb("a", method="saliency", patch_smoothing=1e308), "patch_smoothing"),
        (lambda verb: verb("a", method="raw_attention", heads=range(10**12)), "heads"),
        (lambda verb: verb("a", method="raw_attention", heads=itertools.count()), "heads"),
        (lambda verb: wf.mark_attention("a", "b h q k"), "marks a tensor"),
        (lambda verb: wf.mark_attention(torch.zeros(1, 1, 2, 2), 3), "layout 3"),
        (lambda verb: wf.to_captum(Hostile()), "list of them"),
        (lambda verb: wf.to_shap(range(10**12)), "list of them"),
        (lambda verb: wf.Standardize(Hostile(), (1,)).check(["a"]), "mean"),
        (lambda verb: wf.Table(numerical=["a"], classes={"x", "y"}), "classes"),
    ],
)
def test_calls_and_values_that_no_signature_takes(explainer: wf.Explainer, call: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        call(explainer.explain)


# Parameters that do not exist: the error names the one that was meant.


def on_model(verb: str) -> Callable[..., Any]:
    return lambda explainer, **given: getattr(wf, verb)(explainer.model, [LIKE], **given)


def on_explainer(verb: str) -> Callable[..., Any]:
    return lambda explainer, **given: getattr(explainer, verb)([LIKE], **given)


def anew(explainer: wf.Explainer, **given: Any) -> wf.Explainer:
    return wf.Explainer(explainer.model, **given)


HELD = r"Explainer.explain '{}'.*Explainer\(model, processor"


@pytest.mark.parametrize(
    ("call", "given", "words"),
    [
        (on_model("explain"), {"methods": "shap"}, "parameter of explain 'methods'.*method="),
        (on_model("explain"), {"versus": "negative"}, r"parameter of explain 'versus'.*target=\(a, b\)"),
        (on_model("explain"), {"metod": "shap"}, "parameter of explain 'metod'.*Did you mean 'method'"),
        *((on_explainer("explain"), {name: None}, HELD.format(name))
          for name in ("processor", "tokenizer", "model", "attention_at")),
        (anew, {"feature_extractor": None}, "parameter of Explainer 'feature_extractor'.*processor="),
        *((on(verb), {"methodes": ["occlusion"]}, f"parameter of {verb} 'methodes'.*Did you mean 'method'")
          for verb in ("compare", "recommend") for on in (on_model, on_explainer)),
        (on_model("compare"), {"baseline": "mask"}, "Write replace="),
        (on_explainer("explain"), {"steps": 3}, "option of two_ended 'steps'"),
        (on_explainer("explain"), {"replaced": 1}, "Did you mean 'replace'"),
    ],
)  # fmt: skip
def test_the_parameter_that_was_meant_is_named(explainer: wf.Explainer, call: Any, given: Any, words: str) -> None:
    with pytest.raises(UnknownName, match=words):
        call(explainer, **given)


def test_explain_takes_all_that_its_explainer_takes_and_holds_it_to_the_same() -> None:
    whole, inner = ({k: p.default for k, p in inspect.signature(f).parameters.items()} for f in EXPLAINING)
    assert {k: default for k, default in inner.items() if k != "self"}.items() <= whole.items()
    once, held = ({name: d.words for name, d in parameters_of(f).domains.items()} for f in EXPLAINING)
    assert held.items() <= once.items()


def test_every_name_that_was_meant_is_a_parameter() -> None:
    known = {name for verb in (wf.explain, wf.compare, wf.check) for name in inspect.signature(verb).parameters}
    assert {parameter for parameter, _ in MEANT.values()} <= known
    assert all(written.startswith(parameter) for parameter, written in MEANT.values())


# The processor in its place, by its name, or as ``tokenizer``: one parameter, whoever spells it.


def test_three_spellings_of_one_call(explainer: wf.Explainer) -> None:
    model, tokenizer = explainer.model, explainer.processor
    expected = wf.explain(model, LIKE, processor=tokenizer)
    for other in (
        wf.explain(model, LIKE, tokenizer),
        wf.explain(model, inputs=LIKE, tokenizer=tokenizer),
        wf.explain(model, LIKE, tokenizer, tokenizer=tokenizer),
        wf.Explainer(model, tokenizer=tokenizer).explain(LIKE),
    ):
        np.testing.assert_array_equal(other.scores, expected.scores)
        assert other.units.labels == expected.units.labels


def test_an_explainer_in_the_place_of_a_model_brings_all_that_it_holds(explainer: wf.Explainer, tmp_path: Path) -> None:
    marks, tokenizer = {"bert.encoder.layer.*.attention.self.dropout": "b h q k"}, explainer.processor
    first = wf.Explainer(folders.bert(), tokenizer, attention_at=marks)
    again = wf.Explainer(first)
    assert (again.model, again.processor, again.attention_at) == (first.model, tokenizer, marks)
    assert again.marks and len(again.marks) == len(first.marks)
    np.testing.assert_array_equal(wf.explain(first, LIKE).scores, first.explain(LIKE).scores)
    other = folders.tokenizer(tmp_path)  # what is given beside it counts, and was left aside once
    for held in (wf.Explainer(first, other), loaded_as(wf.Explainer, first, other)):
        assert (held.processor, held.attention_at) == (other, marks)
    assert wf.Explainer(first, attention_at={}).attention_at == {}
    assert loaded_as(wf.Explainer, first) is first


@checked
def encoding(model: Any, inputs: Any, processor: Any = None, *, tokenizer: Any = None) -> Any:
    assert tokenizer is None  # the door hands it on by its other name
    return processor


def test_the_door_hands_it_on() -> None:
    tokenizer = object()
    both = SimpleNamespace(tokenizer=tokenizer)  # a processor of pictures and texts holds its tokenizer
    assert encoding(1, 2, tokenizer=tokenizer) is encoding(1, 2, tokenizer) is tokenizer
    assert encoding(1, 2, both, tokenizer=tokenizer) is both
    assert encoding(1, 2, both, tokenizer=None) is both
    assert encoding(1, 2, tokenizer=None) is None
    with pytest.raises(BadInput, match="encoding got a SimpleNamespace as processor and a object as tokenizer"):
        encoding(1, 2, both, tokenizer=object())
    with pytest.raises(UnknownName, match="parameter of sample 'tokenizer'"):
        sample(1, tokenizer=tokenizer)  # type: ignore[call-arg]


def test_every_verb_that_reads_texts_says_so() -> None:
    rows = {"feature_permutation"}  # columns have no tokens
    verbs = {n: inspect.signature(f).parameters for n in wf.__all__ if inspect.isfunction(f := getattr(wf, n))}
    reading = {name: parameters for name, parameters in verbs.items() if "processor" in parameters}
    assert {"explain", "compare", "cite", "tcav", "head_importance"} <= reading.keys()
    assert {name for name, parameters in reading.items() if "tokenizer" not in parameters} == rows
    # In its place wherever it follows the inputs.
    third = [name for name, parameters in reading.items() if list(parameters)[:3] == ["model", "inputs", "processor"]]
    assert {"explain", "compare", "recommend", "check", "report", "head_importance", "explain_global"} <= set(third)
    assert all(verbs[name]["processor"].kind is inspect.Parameter.POSITIONAL_OR_KEYWORD for name in third)
