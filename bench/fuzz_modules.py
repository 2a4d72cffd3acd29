"""Random modules as people write them, explained and compared with brute force: is any wrong result silent?

    python -m bench.fuzz_modules [--seeds 1000] [--start 0]
    python -m bench.fuzz_modules --seed 17        # one module: its source, and each comparison that was not right

bench/fuzz_source.py writes the source of a module from a seed. Each is explained by several methods and compared with
formulas that are written here again: its value, leave-one-out, Shapley values over all coalitions, gradients by
autograd, the sum of integrated gradients, rollout of the attention, batch = singles, any order of inputs = alone, the
model unchanged, and in some modules one planted cause, which the default method has to rank first. A comparison is

    right      equal within rounding
    refused    an error of whyformer
    warned     different, and a warning of the result names this difference
    silent     different without such a warning
    foreign    an error of torch or Python (or no end within the limit)
"""

from __future__ import annotations

import argparse
import copy
import itertools
import math
import re
import signal
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

import whyformer as wf
from bench.fuzz_source import TOKEN, Argument, Written, written

OUTCOMES = ("right", "refused", "warned", "silent", "foreign")
LIMIT = 120  # seconds for a module
TOLERANCE = 2e-3  # of the largest value in a comparison; models run in float32
ATTENTION = ("generic_attention", "attention_rollout", "raw_attention")
GRADIENTS = ("input_x_gradient", "saliency", "integrated_gradients", "attn_lrp")
OTHERS = (
    "value_zeroing",
    "value_norms",
    "transformer_attribution",
    "gradient_rollout",
    "alti",
    "smooth_grad",
    "grad_sam",
)
MOST_COALITIONS = 9  # units; Shapley values are computed over all of their coalitions
# What a warning has to speak of. A missing argument has to be named.
TOPICS = {
    "batch": r"batch|other inputs|alone|by itself",
    "order": r"earlier|first input|other inputs",
    "readout": r"evenly|weights|pool|read",
    "cause": r"not scored|not explained|no attention|outside|attention only|nearly equal|does not distinguish",
    "sum": r"completeness",
    "dead": r"rounding|no attention|not scored|zero",
}


@dataclass
class Comparison:
    method: str
    check: str
    outcome: str
    detail: str = ""


@dataclass
class Brute:
    """One input of a module, computed without the library: its values with units masked, and its gradients."""

    model: nn.Module
    case: Written
    row: int
    target: int = 0
    counted: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.one = {name: tensor[self.row : self.row + 1] for name, tensor in self.case.inputs.items()}
        self.target = int(self.logits(self.one).argmax())

    def logits(self, inputs: dict[str, Tensor], absent: dict[str, Tensor] | None = None) -> Tensor:
        """Return the logits; the vectors of ids that are ``absent``, by embedding, are the mean of their table."""
        hooks = []
        for path, gone in (absent or {}).items():

            def hook(module: nn.Module, args: Any, out: Tensor, gone: Tensor = gone) -> Tensor:
                mean = module.weight.mean(0)  # type: ignore[union-attr, operator]
                return torch.where(gone.expand(out.shape[:-1])[..., None], mean, out)

            hooks.append(self.model.get_submodule(path).register_forward_hook(hook))
        try:
            with torch.no_grad():
                return self.case.logits_of(self.model(**inputs))
        finally:
            for handle in hooks:
                handle.remove()

    def value(self) -> float:
        return float(self.logits(self.one)[0, self.target])

    def units(self, argument: Argument) -> list[int]:
        """The units of an argument that are no padding."""
        return [unit for unit in range(argument.count) if argument.real is None or argument.real[self.row, unit]]

    def values(self, arguments: Sequence[Argument], present_MU: np.ndarray, replace: Any) -> np.ndarray | None:
        """The value with some units replaced, each variant by itself; None where ``replace`` is not known here."""
        out = []
        for present in present_MU:
            inputs, gone, at = dict(self.one), dict[str, Tensor](), 0
            for argument in arguments:
                units = self.units(argument)
                absent = [unit for unit, there in zip(units, present[at : at + len(units)], strict=True) if not there]
                at += len(units)
                if replace == "mean_vector" and argument.embedding is not None:
                    gone[argument.embedding] = torch.isin(argument.owner, torch.tensor(absent, dtype=torch.long))
                    continue
                changed = argument.replaced(inputs[argument.name], absent, replace)
                if changed is None:
                    return None
                inputs[argument.name] = changed
                if replace == "delete" and absent:
                    stays = [unit for unit in range(argument.count) if unit not in absent]
                    for mask in self.case.masks:
                        inputs[mask] = inputs[mask][:, stays]
            try:
                out.append(float(self.logits(inputs, gone)[0, self.target]))
            except (RuntimeError, IndexError):  # no token is left, or positions have weights of their own
                return None
        return np.array(out)

    def scores(self, method: str, arguments: Sequence[Argument], replace: Any) -> np.ndarray | None:
        key = method, tuple((a.name, a.form) for a in arguments), str(replace)
        if key not in self.counted:
            self.counted[key] = self._scores(method, arguments, replace)
        scores: np.ndarray | None = self.counted[key]
        return scores

    def _scores(self, method: str, arguments: Sequence[Argument], replace: Any) -> np.ndarray | None:
        count = sum(len(self.units(argument)) for argument in arguments)
        if method in ("input_x_gradient", "saliency"):
            return self.gradients(method, arguments)
        one = np.eye(count, dtype=bool)
        if method == "occlusion":
            without = self.values(arguments, ~one, replace)
            return None if without is None else self.value() - without
        if method == "two_ended":
            ends = self.values(arguments, np.concatenate([~one, one, np.zeros((1, count), bool)]), replace)
            if ends is None:
                return None
            return (self.value() - ends[:count] + ends[count:-1] - ends[-1]) / 2
        if count > MOST_COALITIONS:
            return None
        coalitions = np.array(list(itertools.product((False, True), repeat=count)))
        values = self.values(arguments, coalitions, replace)
        return None if values is None else shapley(coalitions, values)

    def gradients(self, method: str, arguments: Sequence[Argument]) -> np.ndarray | None:
        """Gradient at the floats and at the word embeddings, per unit."""
        if any(self.one[argument.name].dtype == torch.bool for argument in arguments):
            return None
        leaves: dict[str, Tensor] = {}
        inputs, hooks = dict(self.one), []
        for argument in arguments:
            if argument.embedding is None:
                leaves[argument.name] = inputs[argument.name] = self.one[argument.name].clone().requires_grad_()
            else:

                def hook(module: nn.Module, args: Any, out: Tensor, name: str = argument.name) -> Tensor:
                    leaves[name] = out.detach().requires_grad_()
                    return leaves[name]

                hooks.append(self.model.get_submodule(argument.embedding).register_forward_hook(hook))
        with torch.enable_grad():
            value = self.case.logits_of(self.model(**inputs))[0, self.target]
            grads = [*torch.autograd.grad(value, list(leaves.values()), allow_unused=True)]
        for handle in hooks:
            handle.remove()
        grads = [torch.zeros_like(x) if g is None else g for x, g in zip(leaves.values(), grads, strict=True)]
        slopes = dict(zip(leaves, grads, strict=True))
        scores = []
        for argument in arguments:
            leaf, slope = leaves[argument.name][0].detach(), slopes[argument.name][0]
            owner = argument.owner
            while owner.ndim < leaf.ndim:
                owner = owner[..., None]
            owner = owner.expand(leaf.shape)
            terms = leaf * slope if method == "input_x_gradient" else slope**2
            sums = [float(terms[owner == unit].sum()) for unit in self.units(argument)]
            scores += sums if method == "input_x_gradient" else [math.sqrt(s) for s in sums]
        return np.array(scores)

    def rollout(self, method: str) -> np.ndarray | None:
        """Scores of rollout or of the last attention, from the softmaxes of attention that is written by hand."""
        read: Any = {"cls": 0, "first": 0, "last": -1, "mean": slice(None)}.get(self.case.head)
        if not self.case.by_hand or read is None or len(self.case.arguments) > 1:
            return None
        with torch.no_grad(), Softmaxes() as seen:
            self.model(**self.one)
        maps = [
            weights[0].mean(0) for weights in seen.maps if weights.ndim == 4 and weights.shape[-1] == weights.shape[-2]
        ]
        joint = torch.eye(maps[0].shape[-1])
        for one in maps:
            joint = (one + torch.eye(len(one))) / 2 @ joint
        rows = (joint if method == "attention_rollout" else maps[-1])[read]
        argument = self.case.arguments[0]
        places = [rows.shape[-1] - argument.count + unit for unit in self.units(argument)]
        row = rows[places].mean(0) if rows.ndim == 2 else rows  # padding is not read
        return row.numpy()[places]


class Softmaxes(TorchFunctionMode):
    """Collect the outputs of softmax."""

    def __init__(self) -> None:
        super().__init__()
        self.maps: list[Tensor] = []

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ == "softmax":
            self.maps.append(out)
        return out


def shapley(coalitions: np.ndarray, values: np.ndarray) -> np.ndarray:
    """Return exact Shapley values from the values of all coalitions."""
    count = coalitions.shape[1]
    value_of = {tuple(row): value for row, value in zip(coalitions.tolist(), values, strict=True)}
    scores = np.zeros(count)
    for row, value in value_of.items():
        size = sum(row)
        for unit in range(count):
            if not row[unit]:
                more = tuple(True if i == unit else there for i, there in enumerate(row))
                weight = math.factorial(size) * math.factorial(count - size - 1) / math.factorial(count)
                scores[unit] += weight * (value_of[more] - value)
    return scores


def close(a: Any, b: Any, scale: float = 0.0) -> bool:
    a, b = np.asarray(a, float), np.asarray(b, float)
    return a.shape == b.shape and bool(
        np.abs(a - b).max(initial=0) <= TOLERANCE * max(np.abs(b).max(initial=0), scale) + 1e-5
    )


class Examined:
    """All comparisons of one module."""

    def __init__(self, case: Written) -> None:
        self.case, self.comparisons = case, list[Comparison]()
        self.model = case.build()
        self.brute = Brute(copy.deepcopy(self.model), case, 0)
        self.copies = [copy.deepcopy(self.model) for _ in range(3)]
        self.scale = abs(self.brute.value())
        # How far the value moves when units of each argument are replaced, one by one and all together.
        self.moved = {a.name: self._moved(a) for a in case.arguments}

    def _moved(self, argument: Argument) -> float:
        drops = self.brute.scores("occlusion", [argument], TOKEN)
        count = len(self.brute.units(argument))
        everything = self.brute.values([argument], np.zeros((1, count), bool), TOKEN)
        assert drops is not None and everything is not None
        return max(float(np.abs(drops).max()), abs(self.brute.value() - float(everything[0])))

    def note(
        self, method: str, check: str, right: bool, said: Sequence[str] = (), detail: str = "", topic: str = ""
    ) -> None:
        pattern = topic or TOPICS.get(check, "")
        told = bool(pattern) and any(re.search(pattern, line) for line in said)
        self.comparisons.append(Comparison(method, check, "right" if right else "warned" if told else "silent", detail))

    def explained(self, model: Any, rows: Sequence[int], method: str | None, **options: Any) -> list[Any] | None:
        """Explanations of some inputs; an error is noted."""
        inputs = {name: tensor[list(rows)] for name, tensor in self.case.inputs.items()}
        name = f"{method or 'default'}{''.join(f', {k}={v}' for k, v in options.items())}"
        try:
            return list(wf.explain(model, inputs, method=method, scalar="logit", **options))
        except wf.errors.WhyformerError as error:
            self.comparisons.append(Comparison(name, "runs", "refused", f"{type(error).__name__}: {error}"))
        except Exception as error:
            self.comparisons.append(Comparison(name, "runs", "foreign", f"{type(error).__name__}: {error}"))
        return None

    def run(self) -> list[Comparison]:
        before = state_of(self.model)
        for method in (None, "occlusion", "shap", "two_ended", *GRADIENTS, *ATTENTION, *self.case.some(OTHERS, 1)):
            self.method(method)
        for method in ("occlusion", "shap", "two_ended"):
            self.method(method, replace=TOKEN if self.case.has_ids else "zero")
        for method in ("input_x_gradient", "saliency"):
            self.method(method, at="input")
        for method in (None, *self.case.some(("occlusion", *GRADIENTS[2:], *ATTENTION, *OTHERS), 3)):
            self.together(method)
        self.note("all", "unchanged", state_of(self.model) == before)
        return self.comparisons

    def method(self, method: str | None, **options: Any) -> None:
        answer = self.explained(self.model, [0], method, **options)
        if answer is None:
            return
        (e,) = answer
        name = f"{method or 'default'}{''.join(f', {k}={v}' for k, v in options.items())}"
        said = (*e.warnings, e.nothing_found)
        self.note(name, "finite", bool(np.isfinite(e.scores).all()))
        self.note(
            name, "value", close(e.value, self.brute.value(), 1.0), detail=f"{e.value} beside {self.brute.value()}"
        )
        self.missing(name, e, said)
        scores = e.scores[~np.array(e.units.special, bool)]
        if e.method in ("occlusion", "shap", "two_ended") or "at" in options:
            self.equal(name, e, scores, said)
        if e.method == "shap" and e.base is not None:
            self.note(name, "sum", close(e.scores.sum(), e.value - e.base, self.scale), said)
        if e.method == "integrated_gradients" and e.base is not None:
            self.note(
                name, "sum", abs(e.scores.sum() - (e.value - e.base)) <= 0.06 * abs(e.value - e.base) + 1e-4, said
            )
        if e.method in ("attention_rollout", "raw_attention"):
            expected = self.brute.rollout(e.method)
            if expected is not None:
                self.note(name, "equal", close(scores, expected), detail=f"{scores} beside {expected}")
        if e.method in ATTENTION and self.case.head in UNEVEN and re.search(r"mean (of|over)", e.readout):
            self.note(name, "readout", False, said, f"head {self.case.head}: {e.readout!r}")
        if e.method in GRADIENTS:
            self.dead(name, e, scores, said)
        if method is None and self.case.cause is not None:
            self.cause(name, e, said)

    def missing(self, name: str, e: Any, said: Sequence[str]) -> None:
        """Every argument that moves the value has units, or is named by a warning."""
        expected = sum(len(self.brute.units(a)) for a in self.case.arguments)
        count = int((~np.array(e.units.special, bool)).sum())
        otherwise = e.method in (
            "occlusion",
            "shap",
            "two_ended",
            "smooth_grad",
            *GRADIENTS,
        )  # not by positions of attention
        grid = e.units.grid if otherwise else None
        least = max(self.scale, *self.moved.values())
        for some in subsets(self.case.arguments):
            for cut in itertools.product(*(a.forms(grid) if otherwise or a.whole else [a] for a in some)):
                if sum(len(self.brute.units(a)) for a in cut) != count:
                    continue
                gone = [a.name for a in self.case.arguments if a not in some and self.moved[a.name] > 0.02 * least]
                detail = f"not scored: {gone}; {count} units of {expected}: {e.units.labels[:9]}"
                self.note(name, "units", not gone, said, detail, "|".join(rf"\b{g}\b" for g in gone[:1]))
                return
        own = said if all(label.startswith(("position ", "[query ")) for label in e.units.labels) else ()
        self.note(name, "units", False, own, f"{count} units instead of {expected}: {e.units.labels[:9]}", "not scored")

    def equal(self, name: str, e: Any, scores: np.ndarray, said: Sequence[str]) -> None:
        passes = e.options.get("passes")
        if e.options.get("guide") or (e.method == "two_ended" and passes and 2 * len(scores) + 2 > passes):
            return  # the mean of two methods, or groups of units
        replace = e.options.get("replace")
        nearest: Any = None
        for some in subsets(self.case.arguments):
            forms = [a.forms(e.units.grid) for a in some]
            for order in itertools.chain.from_iterable(map(itertools.permutations, itertools.product(*forms))):
                if sum(len(self.brute.units(a)) for a in order) != len(scores):
                    continue
                expected = self.brute.scores(e.method, order, replace)
                if expected is None:
                    continue
                if close(scores, expected, self.scale / 10):
                    self.note(name, "equal", True)
                    return
                nearest = expected if nearest is None else nearest
        if nearest is not None:
            self.note(
                name, "equal", False, (), f"replace={replace}: {scores.round(4)} beside {nearest.round(4)}; {said}"
            )

    def dead(self, name: str, e: Any, scores: np.ndarray, said: Sequence[str]) -> None:
        """Units that matter by leave-one-out and by their gradient do not all score zero."""
        drops = self.brute.scores("occlusion", self.case.arguments, TOKEN)
        slopes = self.brute.scores("input_x_gradient", self.case.arguments, TOKEN)
        if drops is None or slopes is None or len(drops) != len(scores):
            return
        matter = (np.abs(drops) > 0.1 * np.abs(drops).max()) & (np.abs(slopes) > 0.1 * np.abs(slopes).max())
        matter &= np.abs(drops).max() > 0.02 * self.scale
        zero = np.abs(scores) <= 1e-7 * np.abs(scores).max(initial=0)
        wrong = matter.sum() > 1 and (zero & matter).sum() >= matter.sum() / 2
        self.note(name, "dead", not wrong, said, f"{scores.round(4)} beside {drops.round(4)} and {slopes.round(4)}")

    def cause(self, name: str, e: Any, said: Sequence[str]) -> None:
        """The planted cause is ranked first."""
        argument, unit = self.case.cause or ("", 0)
        drops = self.brute.scores("occlusion", self.case.arguments, TOKEN)
        assert drops is not None
        at = 0
        for a in self.case.arguments:
            if a.name == argument:
                if unit not in self.brute.units(a) or any(f.form and f.count == a.count for f in a.forms(None)):
                    return  # padding; or steps may be taken for variables
                at += self.brute.units(a).index(unit)
                break
            at += len(self.brute.units(a))
        by_own = self.brute.scores("occlusion", self.case.arguments, e.options.get("replace"))
        for sizes in (drops, drops if by_own is None else np.abs(by_own)):
            if np.argmax(sizes) != at or sizes[at] < 3 * np.partition(np.abs(sizes), -2)[-2]:
                return  # the cause does not decide for this input, or for the baseline of this explanation
        shown = np.where(np.array(e.units.special, bool), 0, np.abs(e.scores))  # below zero by another baseline
        order = np.flatnonzero(~np.array(e.units.special, bool))
        if len(order) != len(drops):
            return  # whose units are missing is another comparison
        right = bool(order[at] == int(np.argmax(shown)))
        self.note(
            name,
            "cause",
            right,
            said,
            f"{argument}[{unit}] decides; {e.method}: {e.ranked()[:3]}",
            rf"{TOPICS['cause']}|\b{argument}\b",
        )

    def together(self, method: str | None) -> None:
        """A batch equals its inputs one by one, and an input alone equals the same after another."""
        name = method or "default"
        first, alone, batch = self.copies  # which have seen no other inputs
        second = self.explained(alone, [1], method)
        answers = self.explained(first, [0], method), self.explained(first, [1], method)
        whole = self.explained(batch, [0, 1, 2], method)
        inputs = self.case.inputs
        each = [self.brute.logits({k: t[row : row + 1] for k, t in inputs.items()})[0] for row in range(3)]
        mixes = not close(self.brute.logits(inputs), torch.stack(each))
        for check, one, other in (
            ("order", answers[1], second),
            ("batch", whole and whole[1:2], second),
            ("batch", whole and whole[:1], answers[0]),
        ):
            if (one is None) != (other is None) and check == "order":
                self.note(name, check, False, (), "refused alone or after another input, not both")
            if one and other:
                a, b = one[0], other[0]
                if mixes and check == "batch":
                    continue  # the model itself
                same = a.method == b.method and close(a.scores, b.scores, np.abs(b.scores).max(initial=0))
                detail = (
                    f"{a.method} {a.scores.round(4)} ({a.readout}) beside {b.method} {b.scores.round(4)} ({b.readout})"
                )
                self.note(name, check, same, (*a.warnings, *b.warnings), detail)


UNEVEN = ("max", "flatten", "std", "logsumexp", "weighted", "positions", "query")


def subsets(arguments: Sequence[Argument]) -> Iterator[tuple[Argument, ...]]:
    """All of them first, then fewer."""
    for size in range(len(arguments), 0, -1):
        yield from itertools.combinations(arguments, size)


def state_of(model: nn.Module) -> Any:
    hooks = [len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules()]
    flags = [m.training for m in model.modules()], [(p.requires_grad, p.grad is None) for p in model.parameters()]
    return {k: v.numpy().tobytes() for k, v in model.state_dict().items()}, hooks, flags, sorted(vars(model))


def late(*_: Any) -> None:
    raise TimeoutError(f"no end within {LIMIT} seconds")


def examine(seed: int) -> tuple[Written, list[Comparison]]:
    """Write, build and explain the module of a seed."""
    case = written(seed)
    signal.signal(signal.SIGALRM, late)
    signal.alarm(LIMIT)
    examined = Examined(case)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            examined.run()
    except Exception as error:
        examined.comparisons.append(Comparison("all", "runs", "foreign", f"{type(error).__name__}: {error}"))
    finally:
        signal.alarm(0)
    return case, examined.comparisons


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=1000, help="number of modules")
    parser.add_argument("--start", type=int, default=0, help="the first seed")
    parser.add_argument("--seed", type=int, help="one module only, with its source")
    parser.add_argument(
        "--sources", type=int, default=3, help="print the smallest source of so many kinds of difference"
    )
    asked = parser.parse_args(arguments)
    if asked.seed is not None:
        case, comparisons = examine(asked.seed)
        print(case.source)
        for c in comparisons:
            if c.outcome != "right":
                print(f"{c.outcome:8}{c.method} {c.check}: {c.detail}")
        return
    counts, kinds = Counter[str](), defaultdict[tuple[str, ...], list[tuple[int, Comparison]]](list)
    sources: dict[int, str] = {}
    for seed in range(asked.start, asked.start + asked.seeds):
        try:
            case, comparisons = examine(seed)
        except KeyboardInterrupt:  # what is known by then is printed
            break
        sources[seed] = case.source
        for c in comparisons:
            counts[c.outcome] += 1
            if c.outcome in ("silent", "foreign"):
                kinds[(c.outcome, c.check, c.method, case.entrance)].append((seed, c))
            elif c.outcome == "refused":
                kinds[("refused", case.entrance, re.sub(r"[\d×]+", "#", c.detail)[:90])].append((seed, c))
    print(
        f"{len(sources)} modules, {sum(counts.values())} comparisons: "
        + ", ".join(f"{o} {counts[o]}" for o in OUTCOMES)
    )
    for kind, cases in sorted(kinds.items(), key=lambda item: -len(item[1])):
        seeds = sorted({seed for seed, _ in cases})
        shortest = min(cases, key=lambda case: len(sources[case[0]]))
        print(f"{' · '.join(kind)}: {len(cases)}, seeds {seeds[:8]}; {shortest[0]}: {shortest[1].detail[:300]}")
    for kind, cases in [item for item in kinds.items() if item[0][0] != "refused"][: asked.sources]:
        print(f"\n# {' · '.join(kind)}\n{min((sources[seed] for seed, _ in cases), key=len)}")


if __name__ == "__main__":
    main()
