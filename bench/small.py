"""What short inputs cost: explanations against the model's own passes, where every millisecond of Python counts.

    python -m bench.small [--device cuda] [--batches 1 8] [--rounds 40]   # the table
    python -m bench.small --default [--device cuda]                      # the default on a sentence, by its forwards
    python -m bench.small --profile [--device cuda]                      # where the time of a warm call goes

Each is called twice in a row and timed the second time, as in a loop. The usual recipe here is the quickest that people
write: eager attention, ``output_attentions=True``, one ``autograd.grad`` by the maps. The profile is of BERT-base on a
GPU, and on the CPU of a model with as many modules and next to no numbers, whose time is Python's: milliseconds by
stage, torch operators by layer, and questions for which a GPU would have to be waited for. On the CPU it counts the
time of this process alone, whatever else the machine does.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import time
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

import whyformer as wf
from bench.engine import MODELS, backward_to_activations, forward
from bench.timing import fastest, machine, rounds_of
from whyformer import explainer as explainer_module
from whyformer.capture.roles import Recorder
from whyformer.capture.trail import Trail
from whyformer.demo import load_sentiment
from whyformer.inputs.output import Output
from whyformer.registry import get_method
from whyformer.run import Run
from whyformer.run import session as session_module

Road = Callable[[], object]
Inputs = dict[str, Tensor]
BOUND = "forward + backward"
LAYERS = 12


def recipe(model: nn.Module, x: Inputs) -> Tensor:
    """Generic attention as people write it who ask for the gradients of the maps alone."""
    out = model(**x, output_attentions=True)
    gradients = torch.autograd.grad(out.logits[:, 0].sum(), out.attentions)
    relevance = torch.eye(out.attentions[0].shape[-1], device=out.logits.device).expand(len(out.logits), -1, -1)
    for attention, gradient in zip(out.attentions, gradients, strict=True):
        relevance = relevance + (gradient * attention.detach()).clamp(min=0).mean(1) @ relevance
    return relevance.cpu()


def passes(name: str, batch: int, device: str) -> tuple[dict[str, Road], nn.Module, Inputs]:
    """What the model itself takes, and what people write."""
    model, inputs = MODELS[name]("sdpa")
    eager, _ = MODELS[name]("eager")
    model, eager = model.to(device), eager.to(device)
    x = {k: v.to(device) for k, v in inputs(batch).items()}
    roads: dict[str, Road] = {
        "forward": lambda: forward(model, x),
        BOUND: lambda: backward_to_activations(model, x),
        "usual recipe": lambda: recipe(eager, x),
    }
    return roads, model, x


def explanations(model: nn.Module, x: Inputs, device: str) -> dict[str, Road]:
    """Whyformer's rows of the table, as this version can make them."""
    explainers = {"": wf.Explainer(model)}
    if device != "cpu" and "compiled" in inspect.signature(wf.Explainer).parameters:
        explainers[", compiled"] = wf.Explainer(model, compiled=True)
    return {
        f"{method}{kind}": lambda e=explainer, m=method: e.explain(x, method=m, target=0)
        for kind, explainer in explainers.items()
        for method in ("generic_attention", "attention_rollout")
    }


def finished(road: Road, device: str) -> Road:
    """On a GPU: until it has done what it was told to."""

    def run() -> None:
        road()
        torch.cuda.synchronize()

    return road if device == "cpu" else run


def table(device: str, batches: list[int], rounds: int) -> None:
    print(f"{machine()}, {device}{'' if device == 'cpu' else ' ' + torch.cuda.get_device_name()}")
    print("model batch | what                          |       ms | / forward | / (fwd+bwd)")
    for name in MODELS:
        for batch in batches:
            roads, model, x = passes(name, batch, device)
            roads |= explanations(model, x, device)
            took = fastest({what: finished(road, device) for what, road in roads.items()}, rounds, before=1)
            for what, seconds in took.items():
                shares = f"{seconds / took['forward']:9.2f} | {seconds / took[BOUND]:11.2f}"
                print(f"{name:5s} {batch:5d} | {what:29s} | {seconds * 1e3:8.2f} | {shares}", flush=True)


# Where the time of a warm call goes


class Stages:
    """Inside ``with``: seconds spent in some functions, those of others that they call taken off."""

    def __init__(self, device: str) -> None:
        self.seconds: Counter[str] = Counter()
        self.clock = clock_of(device)
        self._inside: list[float] = []
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Stages:
        for method in (get_method(name) for name in ("generic_attention", "attention_rollout")):
            formula = method.run
            object.__setattr__(method, "run", self.timed("formula", formula))
            self._stack.callback(object.__setattr__, method, "run", formula)
        for stage, owner, name in (
            ("inputs", session_module.LoadedModel, "source"),
            ("loan", explainer_module, "borrowed"),
            ("gradients allowed?", explainer_module, "refuse_without_gradients"),
            ("session", session_module.Session, "__init__"),
            ("run", session_module.Session, "run"),
            ("record around the passes", Run, "record"),
            ("the model's forward", Output, "logits"),
            ("its backward", Recorder, "gradients"),
            ("explanations", explainer_module, "explanations"),
        ):
            function = getattr(owner, name)
            replaced = self.lent(function) if stage == "loan" else self.timed(stage, function)
            self._stack.enter_context(patch.object(owner, name, replaced))
        return self

    def __exit__(self, *exc: Any) -> None:
        self._stack.close()

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            self._inside.append(0.0)
            start = self.clock()
            try:
                return function(*args, **kwargs)
            finally:
                took = self.clock() - start
                self.seconds[stage] += took - self._inside.pop()
                if self._inside:
                    self._inside[-1] += took

        return run

    def lent(self, borrowed: Callable[..., Any]) -> Callable[..., Any]:
        """A loan is timed where it begins and where it ends."""

        @contextlib.contextmanager
        def run(*args: Any, **kwargs: Any) -> Iterator[None]:
            loan = borrowed(*args, **kwargs)
            self.timed("loan: taken", loan.__enter__)()
            try:
                yield
            finally:
                self.timed("loan: handed back", lambda: loan.__exit__(None, None, None))()

        return run


class Operators(TorchDispatchMode):
    """Inside ``with``: how often each operator of torch ran, those that only look at memory otherwise left out."""

    VIEWS = (
        "view",
        "transpose",
        "permute",
        "expand",
        "slice",
        "select",
        "unsqueeze",
        "detach",
        "alias",
        "t",
        "diagonal",
    )

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func._schema.name.removeprefix("aten::")
        if name not in self.VIEWS and "_unsafe_view" not in name and "as_strided" not in name:
            self.counts[name] += 1
        return func(*args, **(kwargs or {}))


class Questions(TorchFunctionMode):
    """Inside ``with``: what asks for numbers, for which a GPU would have to be waited for."""

    ASKS = frozenset("item tolist __bool__ __int__ __float__ __index__ numpy cpu nonzero unique equal allclose".split())

    def __init__(self) -> None:
        super().__init__()
        self.counts: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in self.ASKS:
            frames = [f for f in inspect.stack(0)[1:] if "/whyformer/" in f.filename or "/transformers/" in f.filename]
            place = frames[0] if frames else None
            where = "" if place is None else f"{place.filename.rsplit('/', 1)[-1]}:{place.lineno} {place.function}"
            self.counts[f"{func.__name__:10s} {where}"] += 1
        return func(*args, **(kwargs or {}))


def thin() -> tuple[nn.Module, Inputs]:
    """BERT-base's modules with hardly a number in them."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(hidden_size=24, intermediate_size=24, vocab_size=200)
    model = BertForSequenceClassification._from_config(config, attn_implementation="sdpa").eval()
    return model, {"input_ids": torch.randint(100, 200, (1, 16), generator=torch.Generator().manual_seed(0))}


def clock_of(device: str) -> Callable[[], float]:
    return time.process_time if device == "cpu" else time.perf_counter


def profile(device: str, method: str, rounds: int) -> None:
    if device == "cpu":
        model, x = thin()
    else:
        built, inputs = MODELS["bert"]("sdpa")
        model, x = built.to(device), {k: v.to(device) for k, v in inputs(1).items()}
    explainer, clock = wf.Explainer(model), clock_of(device)

    def road() -> object:
        return explainer.explain(x, method=method, target=0)

    roads = {"forward": lambda: forward(model, x), BOUND: lambda: backward_to_activations(model, x), method: road}
    took = rounds_of({what: finished(run, device) for what, run in roads.items()}, rounds, clock, before=1)
    tokens = next(iter(x.values())).shape[1]
    print(f"{machine()}, {device}; BERT-base's modules, {tokens} tokens, batch 1")
    print(", ".join(f"{what} {min(seconds) * 1e3:.2f} ms" for what, seconds in took.items()))
    print_stages(finished(road, device), device, rounds)
    print_operators(road, lambda: backward_to_activations(model, x))
    with Questions() as questions:
        road()
    print(f"numbers asked for: {sum(questions.counts.values())}")
    for what, count in questions.counts.most_common():
        print(f"  {count} x {what}")
    if device != "cpu":
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            road()
            torch.cuda.set_sync_debug_mode("default")
        print(f"times that the GPU was waited for: {len(caught)}")


def print_stages(road: Road, device: str, rounds: int) -> None:
    """The fastest round of each."""
    best: dict[str, float] = {}
    for _ in range(rounds):
        with Stages(device) as stages:
            start = stages.clock()
            road()
            whole = stages.clock() - start
        for stage, seconds in {**stages.seconds, "whatever else": whole - sum(stages.seconds.values())}.items():
            best[stage] = min(best.get(stage, seconds), seconds)
    print("ms by stage, each without those inside it:")
    for stage, seconds in sorted(best.items(), key=lambda item: -item[1]):
        print(f"  {seconds * 1e3:7.3f}  {stage}")


def print_operators(road: Road, passes: Road) -> None:
    """What is computed beyond a forward and a backward, and how many calls were followed."""
    followed, follow = [0], Trail.follow

    def counted(*args: Any) -> None:
        followed[0] += 1
        follow(*args)

    with patch.object(Trail, "follow", counted):
        road()
    with Operators() as operators:
        road()
    with Operators() as bare:
        passes()
    ours, theirs = operators.counts, bare.counts
    print(f"calls followed: {followed[0]}")
    print(f"torch operators: {sum(ours.values())}, of which forward + backward takes {sum(theirs.values())}")
    more = {name: (ours[name] - theirs[name]) / LAYERS for name in {*ours, *theirs} if ours[name] != theirs[name]}
    print("  more by layer: " + ", ".join(f"{k} {n:+.1f}" for k, n in sorted(more.items(), key=lambda item: -item[1])))


SENTENCE = "a gorgeous , witty and seductive film that never lets its dull plot spoil the fun , and I like it very much"


def default_table(device: str, rounds: int, layers: Sequence[int] = (6, 12)) -> None:
    """The default on one sentence beside its forwards as one bare batch: the shipped model, and BERT of width 768."""
    from transformers import BertConfig, BertForSequenceClassification

    shipped, tokenizer = load_sentiment()
    models = {"shipped": shipped}
    for number in layers:
        config = BertConfig(vocab_size=shipped.config.vocab_size, num_hidden_layers=number)
        models[f"BERT, {number} layers"] = BertForSequenceClassification(config)
    print(f"{machine(device)}\n\n| model | forwards | bare batch, ms | default, ms | ratio |\n|---|---|---|---|---|")
    for name, model in models.items():
        explainer = wf.Explainer(model.to(device).eval(), tokenizer)
        forwards = round(explainer.explain(SENTENCE).cost.forwards)
        encoded = tokenizer([SENTENCE] * forwards, return_tensors="pt").to(device)

        @torch.no_grad()
        def bare(model: nn.Module = model, encoded: Any = encoded) -> object:
            return model(**encoded).logits.cpu()

        def explained(explainer: wf.Explainer = explainer) -> object:
            return explainer.explain(SENTENCE)

        took = fastest({"bare": bare, "default": explained}, rounds, before=1)
        ratio = took["default"] / took["bare"]
        print(f"| {name} | {forwards} | {1e3 * took['bare']:.2f} | {1e3 * took['default']:.2f} | {ratio:.2f} |")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu", choices=["cpu", "cuda"])
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--rounds", type=int, default=40)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--default", action="store_true")
    parser.add_argument("--method", default="generic_attention")
    options = parser.parse_args(argv)
    if options.profile:
        profile(options.device, options.method, options.rounds)
    elif options.default:
        default_table(options.device, options.rounds)
    else:
        table(options.device, options.batches, options.rounds)


if __name__ == "__main__":
    main()
