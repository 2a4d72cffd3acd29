"""The door for parameters: what an annotation allows is taken, all else is refused in one form, before any work."""

from __future__ import annotations

import decimal
import fractions
import inspect
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import pytest
import torch

import whyformer as wf
from tests.support import folders
from whyformer import concepts, heads, tables
from whyformer.errors import BadInput, NotAllowed, UnknownName, WhyformerError, shown
from whyformer.parameters import (
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

NAN, INF = math.nan, math.inf
SHARE = Annotated[float, Limits(0, 1, open_high=True)]


class Thing:
    pass


@pytest.mark.parametrize(
    ("hint", "fine", "refused"),
    [
        (int, [0, -3, np.int64(3), torch.tensor(3)], [True, 1.0, 1.7, "3", None, NAN, np.bool_(True), 1j]),
        (float, [0, 1.5, np.float32(2), -1], [True, "1", None, NAN, INF, 1j, 10**400, [1.0]]),
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


def test_numbers_of_other_libraries_are_taken_as_pythons() -> None:
    assert type(domain_of(int).take(np.int64(3))) is int
    assert domain_of(bool).take(np.bool_(True)) is True


@checked
def sample(
    inputs: Any,
    *,
    steps: Annotated[int, Limits(1)] = 5,
    how: Annotated[str, OneOf("mean", "maximum")] = "mean",
    size: Annotated[float, Limits(0, open_low=True)] | None = None,
) -> Any:
    return inputs, steps, how, size


def test_one_form_of_message() -> None:
    """Name, what was given, what is allowed, nearest spelling."""
    with pytest.raises(NotAllowed) as error:
        sample(1, steps=0)
    assert str(error.value) == "steps=0 of sample is not allowed: give a whole number of at least 1."
    with pytest.raises(UnknownName) as error:
        sample(1, how="maximun")
    assert str(error.value) == (
        "how='maximun' of sample is not allowed: give 'mean' or 'maximum'. Did you mean 'maximum'?"
    )
    with pytest.raises(NotAllowed, match=r"^size=nan of sample is not allowed: give a number above 0 or None\.$"):
        sample(1, size=NAN)


def test_a_call_that_does_not_fit_the_signature() -> None:
    with pytest.raises(BadInput, match="sample needs inputs"):
        sample()  # type: ignore[call-arg]
    with pytest.raises(BadInput, match="takes inputs without a name, and 2 values"):
        sample(1, 2)  # type: ignore[misc]
    with pytest.raises(BadInput, match="inputs twice"):
        sample(1, inputs=2)  # type: ignore[misc]
    with pytest.raises(UnknownName, match="Did you mean 'steps'"):
        sample(1, step=2)  # type: ignore[call-arg]
    assert sample(1, steps=np.int32(2)) == (1, 2, "mean", None)


@pytest.mark.parametrize(
    "value", ["a" * 1000, 10**5000, [1] * 100, Thing(), np.zeros((3, 3)), {"a": "b" * 500}], ids=type
)
def test_what_was_given_is_shown_in_short(value: Any) -> None:
    assert len(shown(value)) <= 80
    assert "\n" not in shown(value)


def test_control_characters_do_not_reach_the_terminal() -> None:
    assert shown("\x1b[31m\u202e\x9b") == r"'\x1b[31m\u202e\x9b'"


VERBS = [
    wf.explain, wf.compare, wf.recommend, wf.check, wf.head_importance, wf.tcav, wf.activation_maximization,
    wf.explain_global, wf.feature_permutation, tables.row_attention, wf.load, heads.pruning_curve, heads.learn_gates,
    tables.explain_in_context,
    heads.gate_curve, heads.layer_profile, heads.roles, heads.induction, heads.circuits, heads.direct_logit,
    heads.syntactic, concepts.tcav, wf.Explainer, wf.Explainer.explain, wf.Explainer.record, wf.Table,
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


@pytest.mark.parametrize("seed", [-1, 0.5, True, "0", None, NAN, 2**63])
def test_seeds(explainer: wf.Explainer, seed: Any) -> None:
    for call in (explainer.explain, explainer.compare, explainer.check, explainer.recommend):
        with pytest.raises(NotAllowed, match=r"seed=.* give a whole number from 0 to 2\*\*63 - 1"):
            call(["i like it"], seed=seed)
    assert explainer.explain("i like it", seed=np.int64(3)).seed == 3


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


@pytest.mark.parametrize("jitter", [INF, NAN, -1, "3", True])
def test_jitter_that_is_no_length(jitter: Any) -> None:
    """Infinity ended in a segmentation fault."""
    with pytest.raises(NotAllowed, match="jitter"):
        wf.activation_maximization(folders.vit(), 0, steps=1, jitter=jitter)


@pytest.mark.parametrize("target", [1.7, 0.5, True, NAN, b"x", {}, (0, True), [1.7], Thing()])
def test_targets_that_are_no_class(explainer: wf.Explainer, target: Any) -> None:
    with pytest.raises(BadInput, match="target"):
        explainer.explain("i like it", target=target)
    with pytest.raises(BadInput, match="target"):
        explainer.record("i like it", target=target)


@pytest.mark.parametrize("target", [wf.Target(99), wf.Target(0, versus=99), 99, -99])
def test_targets_beyond_the_classes(explainer: wf.Explainer, target: Any) -> None:
    for call in (explainer.explain, explainer.record, explainer.check):
        with pytest.raises(UnknownName, match="target"):
            call("i like it", target=target)


def test_options_of_a_checkup_without_a_method(explainer: wf.Explainer) -> None:
    with pytest.raises(UnknownName, match="nonsense"):
        explainer.check("i like it", checks=["capture_audit"], nonsense=3)


@pytest.mark.parametrize("layout", ["z z", "", "b h q"])
def test_a_layout_is_read_at_once(explainer: wf.Explainer, layout: str) -> None:
    with pytest.raises(BadInput, match="one letter per axis"):
        wf.Explainer(explainer.model, attention_at={"*": layout})


@pytest.mark.parametrize("order", [3, True, NAN, Thing(), [1, 2], [("a", "b")], {}])
def test_orders_of_heads(explainer: wf.Explainer, order: Any) -> None:
    with pytest.raises(WhyformerError, match="order"):
        heads.pruning_curve(explainer.model, ["i like it"], [0], processor=explainer.processor, order=order)


def test_a_metric_of_the_users_that_gives_nothing(explainer: wf.Explainer) -> None:
    with pytest.raises(BadInput, match="one value per input"):
        heads.pruning_curve(
            explainer.model, ["i like it"], [0], processor=explainer.processor, metric=lambda logits, labels: None
        )


def test_a_list_of_two_targets_is_no_contrast(explainer: wf.Explainer) -> None:
    """[0, 1] is one target per input, (0, 1) is 0 rather than 1."""
    each = explainer.explain(["i like it", "it was bad"], target=[0, 1])
    assert [e.target.index for e in each] == [0, 1] and all(e.target.versus is None for e in each)
    pair = explainer.explain("i like it", target=(0, 1))
    assert (pair.target.index, pair.target.versus) == (0, 1)
    with pytest.raises(BadInput, match="2 targets for 1"):
        explainer.explain("i like it", target=[0, 1])


VERBS = [*(f for name in wf.__all__ if inspect.isfunction(f := getattr(wf, name))), wf.Explainer.explain]


@pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.__qualname__)
def test_every_annotation_of_a_verb_can_be_read(verb: Callable[..., Any]) -> None:
    """One that names what is not there would be taken for Any, and its parameter be held to nothing."""
    function = inspect.unwrap(verb)
    scope = getattr(function, "annotated_in", function.__globals__)
    for parameter in inspect.signature(function).parameters.values():
        if isinstance(parameter.annotation, str):
            eval(parameter.annotation, scope)


def test_explain_holds_its_parameters_to_what_an_explainer_does() -> None:
    once, held = (parameters_of(verb).domains for verb in (wf.explain, wf.Explainer.explain))
    assert held.keys() <= once.keys()
    assert {name: domain.words for name, domain in held.items()} == {name: once[name].words for name in held}


class Hostile:
    def _raises(self, *args: Any) -> Any:
        raise RuntimeError("not today")

    __len__ = __iter__ = __eq__ = __hash__ = __repr__ = __str__ = __float__ = _raises


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda verb: verb(self=3), "takes no self"),
        (lambda verb: wf.explain("a", "b", self=3), "takes no self"),
        (lambda verb: wf.Explanation.words(self=3), "is a method"),
        (lambda verb: wf.Explainer.explain(), "is a method"),
        (lambda verb: wf.Explainer.explain(inputs="a"), "is a method"),
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


def test_a_fraction_is_a_number(explainer: wf.Explainer) -> None:
    how = {"method": "smooth_grad", "samples": 2}
    half, fraction = (explainer.explain("i like it", noise=noise, **how) for noise in (0.5, fractions.Fraction(1, 2)))
    assert half.scores.tolist() == fraction.scores.tolist() and fraction.options["noise"] == 0.5


def test_an_option_that_is_a_baseline_holds_ordinary_numbers(explainer: wf.Explainer) -> None:
    for baseline in (torch.ones(2, device="meta"), torch.eye(2).to_sparse(), np.array(["a"]), torch.tensor(NAN)):
        with pytest.raises(BadInput, match="baseline"):
            explainer.explain("i like it", method="integrated_gradients", baseline=baseline)
