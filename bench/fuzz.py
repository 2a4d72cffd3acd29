"""Thousands of calls that make no sense: is each refused by an error of ours, and is everything left as it was?

    python -m bench.fuzz [--calls 3000] [--seed 0] [--area parameters] [--all]

Nonsense of every kind and hostile objects (bench/fuzz_values.py) go into every verb, option, input, target, model,
method of a result, picture, file, command and question to the server. A call ends in one of seven ways:

    ours      an error of whyformer's own: what was wrong, and what to do
    foreign   an error of torch, transformers or Python itself
    taken     no error, where what was given can also make sense (a numpy integer)
    silent    no error: nonsense was taken for sense
    hang      no end within the limit
    crash     the process died
    changed   the model, a random state, the folder or the environment is not what it was (whatever else happened)

Calls run in a process of their own, which is started again after a hang or a crash.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import inspect
import io
import json
import os
import queue
import random
import subprocess
import sys
import tempfile
import threading
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from importlib import import_module
from itertools import product, zip_longest
from pathlib import Path
from typing import Any

from bench.fuzz_values import (
    ANYTHING,
    HUGE,
    INF,
    LANGUAGE,
    NAN,
    NONSENSE,
    Call,
    Thing,
    broken_cells,
    broken_configs,
    broken_outputs,
    broken_pictures,
    broken_tensors,
    broken_texts,
    kind_of,
    model_with,
    objects,
    odd_pictures,
    odd_tensors,
    odd_texts,
    shown,
    with_nonsense,
)

LIMIT = 30.0  # seconds for a call; none of them should run a model more than a few times
STARTING = 300.0  # and for the process to get ready
OUTCOMES = ("ours", "taken", "foreign", "silent", "hang", "crash", "changed")


# What is called


class Stage:
    """Small models with inputs that fit, made once per process."""

    def __init__(self, folder: Path) -> None:
        import numpy as np
        import torch
        from PIL import Image

        import whyformer as wf
        from tests.models import CASES
        from tests.support import completions, folders, processors
        from tests.support import language as speech
        from tests.tables import models as tables

        self.folder = folder
        self.bert, self.tokenizer = folders.bert().eval(), folders.tokenizer(folder / "tokenizer")
        self.vit, self.processor = folders.vit().eval(), folders.image_processor()
        self.table_model, self.table = tables.HomeMade("first").eval(), tables.table()
        for parameter in self.table_model.parameters():
            torch.nn.init.normal_(parameter, generator=torch.Generator().manual_seed(0))
        case = CASES["wav2vec2"]
        self.ears, self.listener = case.build(case.implementations[0]).eval(), processors.wav2vec2()
        case = CASES["gpt2"]
        self.gpt, self.ids = case.build(case.implementations[0]).eval(), case.inputs()
        self.writer, self.words = speech.model("llama").eval(), speech.tokenizer()
        self.doors = contextlib.ExitStack()  # the server listens for as long as somebody holds on to it
        self.server = self.doors.enter_context(completions.serving(completions.Server()))
        self.texts = ["i like it", "the movie was so bad", "a great film", "he was boring", "not good"]
        self.rows = tables.rows(6)
        self.picture = Image.fromarray(np.random.default_rng(0).integers(0, 255, (32, 32, 3), np.uint8))
        self.pictures = [self.picture] * 4
        self.sound = np.random.default_rng(0).standard_normal(400).astype(np.float32)
        self.text = wf.Explainer(self.bert, self.tokenizer)
        self.image = wf.Explainer(self.vit, self.processor)
        self.columns = wf.Explainer(self.table_model, self.table)
        self.audio = wf.Explainer(self.ears, self.listener)
        self.models = (self.bert, self.vit, self.table_model, self.ears, self.gpt, self.writer)
        for library in ("sklearn.metrics", "sklearn.linear_model", "pandas", "shap", "matplotlib.pyplot"):
            import_module(library)  # what these change when they are imported is none of our calls' doing
        # transformers puts hooks of its own into a model when it is first run.
        self.text.explain(self.texts[0]), self.image.explain(self.picture), self.columns.explain(self.rows[0])
        self.audio.explain(self.sound), wf.explain(self.gpt, self.ids)
        wf.explain(self.writer, "the cat sat", processor=self.words, generate=2)

    def state(self) -> dict[str, Any]:
        """What no call may change."""
        import numpy as np
        import torch

        return {
            "weights": [
                float(sum(t.double().abs().sum() for t in m.state_dict().values() if t.is_floating_point()))
                for m in self.models
            ],
            "flags": [[m.training for m in model.modules()] for model in self.models],
            "requires_grad": [[p.requires_grad for p in model.parameters()] for model in self.models],
            "gradients": [sum(p.grad is not None for p in model.parameters()) for model in self.models],
            "hooks": [
                sum(len(m._forward_hooks) + len(m._forward_pre_hooks) + len(m._backward_hooks) for m in model.modules())
                for model in self.models
            ],
            "torch's random state": torch.get_rng_state().sum().item(),
            "numpy's random state": str(np.random.get_state()[1:3]),
            "random's state": hash(random.getstate()),
            "folder": str(Path.cwd()),
            "environment": dict(os.environ),
            "grad mode": torch.is_grad_enabled(),
            "dtype": str(torch.get_default_dtype()),
            "threads": torch.get_num_threads(),
            "warnings": len(warnings.filters),
            "standard output": id(sys.stdout),
        }


Doors = dict[str, tuple[Callable[..., Any], dict[str, Any]]]


def doors(stage: Stage) -> Doors:
    """Public functions by name, with arguments that make a short call."""
    import torch

    import whyformer as wf
    from tests.views import results as made
    from whyformer import heads, tables, views

    some, labels = stage.texts, [0, 1, 0, 1, 0]
    bert: dict[str, Any] = {"model": stage.bert, "processor": stage.tokenizer}
    two, five = bert | {"inputs": some[:2]}, bert | {"inputs": some}
    rows: dict[str, Any] = {"model": stage.table_model, "processor": stage.table}
    writer: dict[str, Any] = {"model": stage.writer, "processor": stage.words}
    gpt = {"model": stage.gpt, "inputs": stage.ids}
    cited = {"question": "who ran ?", "documents": {"cats": "The cat sat ."}, "answer": "He ran .", "top": 1}
    concepts = {"layer": 0, "concepts": {"a": stage.pictures[:2]}, "random_sets": [stage.pictures[:2]] * 2}
    concepts |= {"class_inputs": stage.pictures[:2], "target": 0}
    brief = {"epochs": 1, "guide_epochs": 1, "lambdas": (0.1,)}
    explanation, record = made.explanation(), stage.text.record(some[0])
    return {
        "explain": (wf.explain, bert | {"inputs": some[0]}),
        "Explainer": (wf.Explainer, bert),
        "Explainer.record": (stage.text.record, {"inputs": some[0]}),
        "Explainer.estimate": (stage.text.estimate, {"inputs": some[0]}),
        "compare": (wf.compare, two | {"method": ["random"]}),
        "recommend": (wf.recommend, five | {"method": ["random"], "spaces": ()}),
        "check": (wf.check, bert | {"inputs": some[:1], "checks": ["capture_audit"]}),
        "report": (wf.report, bert | {"inputs": some[0], "method": ["random"], "checks": []}),
        "head_importance": (wf.head_importance, two),
        "layer_profile": (heads.layer_profile, two),
        "roles": (heads.roles, two),
        "direct_logit": (heads.direct_logit, gpt),
        "circuits": (heads.circuits, gpt),
        "induction": (heads.induction, {"model": stage.gpt, "length": 4, "sequences": 1}),
        "pruning_curve": (heads.pruning_curve, five | {"labels": labels, "points": 1}),
        "learn_gates": (heads.learn_gates, five | {"labels": labels, "steps": 1}),
        "activation_maximization": (wf.activation_maximization, {"model": stage.vit, "unit": 0, "steps": 1}),
        "tcav": (wf.tcav, {"model": stage.vit, "processor": stage.processor} | concepts),
        "explain_global": (wf.explain_global, rows | {"inputs": stage.rows[:2], "method": "saliency"}),
        "feature_permutation": (wf.feature_permutation, rows | {"X": stage.rows, "y": [0, 1] * 3, "repeats": 1}),
        "row_attention": (tables.row_attention, rows | {"inputs": stage.rows}),
        "retrained_attention": (wf.retrained_attention, five | brief | {"labels": labels}),
        "cite": (wf.cite, writer | cited),
        "CompletionServer": (wf.CompletionServer, {"url": stage.server.url}),
        "ChatServer": (wf.ChatServer, {"url": stage.server.url}),
        "Explanation.words": (explanation.words, {}),
        "load": (wf.load, {}),
        "to_shap": (wf.to_shap, {}),
        "mark_attention": (wf.mark_attention, {"weights": torch.rand(1, 2, 3, 3), "layout": "b h q k"}),
        "Table": (wf.Table, {"numerical": ["age"], "categorical": {"sex": ["f", "m"]}}),
        "views.page": (views.page, {}),
        "views.side_by_side": (views.side_by_side, {}),
        **{name: (getattr(views, name), {"record": record}) for name in ("attention_map", "heads_grid")},
    }


# Of these, what a parameter wants is not what its name says elsewhere, or anything is fine.
GIVEN = {"model", "inputs", "processor", "tokenizer", "labels", "X", "y", "reference", "class_inputs", "random_sets"}
GIVEN |= {"rationales", "masks", "unit", "order", "url", "key", "start", "system", "question", "documents", "answer"}
GIVEN |= {"lambdas", "validation", "weights", "layout", "numerical", "categorical", "columns", "explanations", "record"}
WORDS = {"direct_logit": {"target"}, "check": {"cache"}}  # of a language model nearly all targets are words
UNCHECKED = {"load", "to_shap", "Table", "views.page", "views.side_by_side", "attention_map", "heads_grid", "report"}


def optional(stage: Stage) -> Iterator[tuple[str, Callable[..., Any], str, Any]]:
    """Options of methods, metrics and checks: a name, what takes the option by its name, the option, its default."""
    import whyformer as wf
    from whyformer.checks.check import CHECKS

    two = {"model": stage.bert, "inputs": stage.texts[:2], "processor": stage.tokenizer}
    for name, method in wf.list_methods().items():
        picture = name in ("vit_cx", "grad_cam")
        explainer, one = (stage.image, stage.picture) if picture else (stage.text, stage.texts[0])
        known = inspect.signature(method.run).parameters
        for option in sorted(method.options.keys() - {"baseline", "keep_special", "distance", "at_most"}):
            default = known[option].default if option in known else None
            yield name, partial(explainer.explain, one, method=name), option, default
    for name, metric in wf.list_metrics().items():
        for option, parameter in {} if metric.needs & {"rationale", "region"} else metric.options.items():
            compared = partial(wf.compare, **two, method=["random"])
            yield name, _within(compared, "metric", name), option, parameter.default
    for name, check in CHECKS.items():
        for option, parameter in inspect.signature(check).parameters.items():
            if parameter.kind is parameter.KEYWORD_ONLY:
                checked = partial(wf.check, **two | {"inputs": stage.texts[:1]})
                yield name, _within(checked, "checks", name), option, parameter.default


def _within(verb: Callable[..., Any], argument: str, name: str) -> Callable[..., Any]:
    return lambda **options: verb(**{argument: {name: options}})


def parameters(stage: Stage) -> Iterator[Call]:
    """Each parameter of each verb, method, metric and check with nonsense of what it wants."""
    for name, (function, usual) in doors(stage).items():
        if name not in UNCHECKED:
            skip = tuple(GIVEN | WORDS.get(name, set()))
            yield from with_nonsense("parameters", name, partial(function, **usual), function, skip)
    for name, call, option, default in optional(stage):
        for value in NONSENSE.get(kind_of(option, default) or "", ()):
            yield Call("parameters", f"{name}({option}={shown(value)})", partial(call, **{option: value}))


def objects_everywhere(stage: Stage) -> Iterator[Call]:
    """Each hostile object for each parameter and option."""
    for name, (function, usual) in doors(stage).items():
        for parameter, described in inspect.signature(function).parameters.items():
            for kind, value in objects() if described.kind is not described.VAR_KEYWORD else ():
                if kind in ("long list", "long range", "megabyte") and parameter in ("inputs", "X", "documents"):
                    continue  # much work, and rightly
                call = partial(_quietly, function, usual | {parameter: value})
                yield Call("objects", f"{name}({parameter}: {kind})", call, either=True)
    for name, call, option, _ in optional(stage):
        for kind, value in objects():
            yield Call("objects", f"{name}({option}: {kind})", partial(call, **{option: value}), either=True)


def _quietly(function: Callable[..., Any], named: dict[str, Any]) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        return function(**named)


def inputs(stage: Stage) -> Iterator[Call]:
    """Inputs of each kind that are none, or broken; and models, processors and targets."""
    import numpy as np
    import pandas as pd
    import torch

    import whyformer as wf

    ids, pixels, row, sound = torch.tensor([[2, 6, 7, 8, 3]]), torch.rand(1, 3, 32, 32), stage.rows[0], stage.sound
    wave = torch.from_numpy(sound)[None]
    by_name: dict[str, tuple[wf.Explainer, Any, list[tuple[str, Any]]]] = {
        "text": (stage.text, stage.texts[0], [
            *((shown(v), v) for v in ("", "  ", [""], ["a", ""], ["a", 3], ("a", "b", "c"), {"a", "b"}, b"i like it")),
            *((shown(v), v) for v in (np.zeros((2, 2)), ids[0][:0], {"input_ids": [[2, 6, 3]]}, {"inputs": ids})),
            *broken_texts(stage.texts[0]), *((f"ids {kind}", {"input_ids": t}) for kind, t in broken_tensors(ids)),
            ("ids out of range", {"input_ids": ids + 1000}),
            ("an empty mask", {"input_ids": ids, "attention_mask": 0 * ids}),
        ]),
        "picture": (stage.image, stage.picture, [
            *((shown(v), v) for v in ("nowhere.png", stage.folder, np.full((32, 32, 3), 2.5), pixels.flatten(), "")),
            *(pair for pair in broken_pictures(stage.picture, stage.folder) if not pair[0].endswith("file")),
            *((f"pixels {kind}", t) for kind, t in broken_tensors(pixels)), ("grey", pixels[:, :1]),
        ]),
        "sound": (stage.audio, sound, [
            *((shown(v), v) for v in ("nowhere.wav", sound[:0], sound > 0, sound * NAN, (sound, 8000), (sound, "a"))),
            *((f"wave {kind}", t) for kind, t in broken_tensors(wave)),
        ]),
        "row": (stage.columns, row, [
            *((f"age {shown(v)}", {**row, "age": v}) for v in (NAN, INF, "old", None, 1j, [1])),
            *((f"work {shown(v)}", {**row, "work": v}) for v in ("nonsense", 3, NAN, [1])),
            ("extra", {**row, "more": 1}), ("no age", {"work": "private"}),
            ("an array", np.zeros((2, 3))), ("a name", "age"), ("one tensor", {"numerical": torch.zeros(1, 3)}),
        ]),
    }  # fmt: skip
    for kind, (explainer, one, wrong) in by_name.items():
        verbs = {f"explain, {m}": partial(explainer.explain, method=m) for m in ("generic_attention", "saliency")}
        verbs |= {"record": explainer.record}
        for (words, value), (verb, call) in product([*((shown(v), v) for v in ANYTHING), *wrong], verbs.items()):
            yield Call("inputs", f"{verb}({kind}: {words})", partial(call, value))
        targets = (*NONSENSE["target"], wf.Target(99), wf.Target(0, versus=99), wf.Target(-99))
        for target, method in product(
            () if kind == "sound" else targets, ("generic_attention", "saliency", "occlusion")
        ):
            words = f"explain({kind}, target={shown(target)}, method={method})"
            yield Call("inputs", words, partial(explainer.explain, one, target=target, method=method))
    odd = [(stage.text, pair) for pair in (*odd_texts(stage.texts[0]), *odd_tensors(ids))]
    odd += [(stage.image, pair) for pair in (*odd_pictures(stage.picture), *odd_tensors(pixels))]
    for column, (kind, value) in product(("age", "work"), broken_cells()):
        odd += [(stage.columns, (f"{column}={kind}", {**row, column: value}))]
        with contextlib.suppress(Exception):  # where pandas itself refuses a cell, nothing of ours is called
            odd += [(stage.columns, (f"frame, {column}={kind}", pd.DataFrame([row, {**row, column: value}])))]
    for explainer, (kind, value) in odd:
        yield Call("inputs", f"explain({kind})", partial(explainer.explain, value), either=True)
    for verb in (wf.explain, wf.compare, wf.check, wf.recommend, wf.head_importance):
        for model in (None, 3, "no such model", Thing(), Thing, [], {}, len, True):
            call = partial(verb, model, stage.texts, processor=stage.tokenizer)
            yield Call("inputs", f"{verb.__name__}(model={shown(model)})", call)
        for processor in (3, "bert", Thing(), [], {}, len, True, stage.processor):
            call = partial(verb, stage.bert, stage.texts, processor=processor)
            yield Call("inputs", f"{verb.__name__}(processor={shown(processor)})", call)
        yield Call("inputs", f"{verb.__name__}()", verb)
        yield Call("inputs", f"{verb.__name__}(…, 1, 2, 3)", partial(verb, stage.bert, stage.texts, 1, 2, 3))


def models(stage: Stage) -> Iterator[Call]:
    """Models that return something else than logits, and configs with wrong entries."""
    import whyformer as wf

    verbs: dict[str, Callable[..., Any]] = {
        **{f"explain, {m}": partial(wf.explain, method=m) for m in (None, "occlusion", "attn_lrp")},
        "check": partial(wf.check, checks=["capture_audit", "class_dependence"]),
        "compare": partial(wf.compare, method=["random"]),
        "head_importance": wf.head_importance,
    }

    def returning(verb: Callable[..., Any], change: Callable[[Any], Any]) -> Any:
        return verb(model_with(stage.bert, change), stage.texts[:2], processor=stage.tokenizer)

    def configured(verb: Callable[..., Any], name: str, value: Any) -> Any:
        model = copy.deepcopy(stage.bert)
        object.__setattr__(model.config, name, value)
        return verb(model, stage.texts[:2], processor=stage.tokenizer)

    for (name, verb), (kind, change) in product(verbs.items(), broken_outputs()):
        yield Call("models", f"{name}(model that returns {kind})", partial(returning, verb, change), either=True)
    for (name, verb), (entry, value) in product(verbs.items(), broken_configs()):
        words = f"{name}(config.{entry}={shown(value)})"
        yield Call("models", words, partial(configured, verb, entry, value), either=True)


def language(stage: Stage) -> Iterator[Call]:
    """What only language models and servers are asked."""
    import whyformer as wf

    prompt, answer = "the capital of france is", "paris . it was big"
    server, pair = wf.CompletionServer(stage.server.url, "tiny"), ("The capital of France is", " Paris")
    of_model = partial(wf.explain, stage.writer, processor=stage.words)
    asked: dict[str, Callable[..., Any]] = {
        "explain prompt": partial(of_model, prompt),
        "explain answer": partial(of_model, (prompt, answer)),
        "explain server": partial(wf.explain, server, pair, method="occlusion"),
        "cite": partial(_cited, stage),
        "CompletionServer": partial(wf.CompletionServer, stage.server.url),
    }
    for (name, parameter), values in LANGUAGE.items():
        for value in values:
            words = f"{name}({parameter}={shown(value)})"
            yield Call("language", words, partial(asked[name], **{parameter: value}))
    for value in LANGUAGE["explain server", "answers"]:
        yield Call("language", f"explain({shown(value)})", partial(of_model, value))
    elsewhere = {"text": (stage.text, stage.texts[0]), "image": (stage.image, stage.picture)}
    for name, (explainer, one) in (elsewhere | {"row": (stage.columns, stage.rows[0])}).items():
        for wish in ({"generate": 2}, {"span": True}, {"choices": ["yes"]}, {"one_pass": True}, {"first_token": False}):
            yield Call("language", f"explain {name}({shown(wish)})", partial(explainer.explain, one, **wish))
    replies = {"nan": [NAN], "positive": [2.0], "none": [], "text": ["-1.0x"], "None": None, "objects": [Thing()]}
    for name, reply in replies.items():
        function = partial(_replying, reply)
        yield Call("language", f"explain(function that says {name})", partial(wf.explain, function, pair))


def _cited(stage: Stage, **named: Any) -> Any:
    import whyformer as wf

    usual = {"question": "who ran home ?", "documents": {"dogs": "The big red dog ran home ."}, "answer": "He ran ."}
    return wf.cite(stage.writer, **usual | {"processor": stage.words, "top": 1} | named)


def _replying(reply: Any, prompts: Any, answers: Any) -> Any:
    return reply * len(prompts) if isinstance(reply, list) and len(reply) == 1 else reply


def results(stage: Stage) -> Iterator[Call]:
    """Methods of results and views; saved results, damaged or with numbers that are none."""
    import whyformer as wf
    from tests.views import results as made
    from tests.views import samples
    from whyformer import views

    folder, draw = stage.folder / "damaged", random.Random(0)
    folder.mkdir(exist_ok=True)
    paths = (*NONSENSE["path"], "noending", stage.folder, "/dev/null/x.json", "x" * 300 + ".json")
    for number, make in enumerate(made.ALL.values()):
        result = make()
        name = type(result).__name__
        for path in paths:
            yield Call("results", f"{name}.save({shown(path)})", partial(result.save, path))
        for door, more in product(
            (result.show, result.to_html, result.plot), ({"unknown": 1}, {"by": 3}, {"most": -1})
        ):
            yield Call("results", f"{name}.{door.__name__}({more})", partial(door, **more))
        for ending in (".json", ".npz"):
            whole = result.save(folder / f"{number}{ending}").read_bytes()
            damages = {"cut": whole[: len(whole) // 2], "empty": b"", "other": b"\x00\xff" * 50, "deep": b"[" * 100_000}
            if ending == ".json":
                plain = json.loads(whole)
                key = draw.choice([k for k, v in plain.items() if k not in ("format", "what") and v])
                for words, change in {"format": {"format": 99}, "unknown": {"no": 1}, "what": {"what": "x"}}.items():
                    damages[words] = json.dumps(plain | change).encode()
                damages[f"no {key}"] = json.dumps({k: v for k, v in plain.items() if k != key}).encode()
            for damage, content in damages.items():
                path = folder / f"{number}-{damage.replace(' ', '_')}{ending}"
                path.write_bytes(content)
                yield Call("results", f"load({name}{ending}, {damage})", partial(wf.load, path))
    text, image = made.explanation(), samples.image()
    doors: dict[str, tuple[Callable[..., Any], str]] = {
        "Explanation.words": (text.words, "word"),
        "Comparison[]": (made.comparison().__getitem__, "word"),
        "Explanation.ranked": (text.ranked, "truth"),
        "heatmap": (image.heatmap, "pair"),
        "load": (wf.load, "path"),
    }
    for name, (call, kind) in doors.items():
        for value in NONSENSE[kind]:
            yield Call("results", f"{name}({shown(value)})", partial(call, value))
    for value, view in product((None, 3, "x", [3], Thing()), (views.view_of, views.side_by_side, views.page)):
        yield Call("results", f"{view.__name__}({shown(value)})", partial(view, value))
    plain = json.loads(text.save(folder / "whole.json").read_text())
    for place, value in product(_numbers(plain), (None, "inf", "nan", True, "3", [], HUGE)):
        path = folder / f"{'-'.join(map(str, place))}-{str(value)[:5]}.json"
        path.write_text(json.dumps(_replaced(plain, place, value)))
        words = f"load({'.'.join(map(str, place))}={str(value)[:9]})"
        yield Call("results", words, partial(_loaded, path), either=place[0] not in ("scores", "value"))


def _loaded(path: Path) -> Any:
    """A warning counts as an error: it is what the user is told."""
    import whyformer as wf

    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always")
        result = wf.load(path)
    if heard:
        raise wf.errors.WhyformerError(str(heard[0].message))
    return result


def _numbers(plain: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where numbers are; of a list, the first alone."""
    if isinstance(plain, dict):
        for key, part in plain.items():
            yield from _numbers(part, (*place, key))
    elif isinstance(plain, list) and plain:
        yield from _numbers(plain[0], (*place, 0))
    elif isinstance(plain, (int, float)) and not isinstance(plain, bool):
        yield place


def _replaced(plain: Any, place: tuple[Any, ...], value: Any) -> Any:
    if not place:
        return value
    changed = plain.copy()
    changed[place[0]] = _replaced(plain[place[0]] if place[1:] else None, place[1:], value)
    return changed


def commands(stage: Stage) -> Iterator[Call]:
    """Numbers and words of the command line: wrong ones, and some that Python reads in another way than people do."""
    stage.bert.save_pretrained(stage.folder / "bert")
    stage.tokenizer.save_pretrained(stage.folder / "bert")
    model, text = ("--model", str(stage.folder / "bert")), "i like it"
    wrong: list[tuple[str, ...]] = [
        ("explain",), ("explain", "text"), ("nonsense",), ("explain", "image", "nowhere.png", *model),
        ("explain", "table", "nowhere.csv", *model), ("capture", "--model", "nowhere/"), ("methods", "nonsense"),
    ]  # fmt: skip
    verbs = (("explain", "text"), ("compare",), ("recommend",), ("check",), ("heads",))
    bad = {"--seed": ("-1", "1.5", "nan", "x", ""), "--batch-size": ("-1", "0", "1.5", "inf", "x")}
    bad |= {"--target": ("nonsense", "99", "1.7"), "--out": ("x.gif", "/dev/null/x.html", ""), "--nonsense": ("1",)}
    for verb, (option, values) in product(verbs, bad.items()):
        wrong += [(*verb, text, *model, option, value) for value in values]
    for value in ("steps=0", "steps=nan", "steps='a'", "=3", "steps", "nonsense=1", "memory_mb=-1"):
        wrong.append(("explain", "text", text, *model, "-m", "integrated_gradients", "-o", value))
    for arguments in wrong:
        yield Call("commands", " ".join(("whyformer", *arguments)), partial(run_command, arguments))
    values = ("²", "٣٤", "--5", "-", "1_0", "0x1", "1e400", "\ud83d", "+1", "-0", "9" * 5000, "∞", "\0", "a:b", "None")
    options = ("--target", "--seed", "--batch-size", "--method", "--out", "--layer", "--top", "-o")
    for verb, option, value in product(verbs, options, values):
        line = (
            *verb,
            text,
            *model,
            f"{option}={value}" if option.startswith("--") else option,
            *([value] * (option == "-o")),
        )
        yield Call("commands", " ".join(map(shown, line)), partial(run_command, line), either=True)


def run_command(arguments: tuple[str, ...]) -> None:
    """Exit codes 1 and 2 are refusals in the command's own words."""
    from typer.testing import CliRunner

    from whyformer.cli.main import app
    from whyformer.errors import WhyformerError

    result = CliRunner().invoke(app, list(arguments), env={"COLUMNS": "80"})
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    if result.exit_code:
        raise WhyformerError(result.stderr)


def posts(stage: Stage) -> Iterator[Call]:
    """Questions to the server, as JSON: every field of a good one with every value that JSON can hold."""
    from tests.serve.served import asked, client, served

    whole = served("text", "language", "table")
    stage.doors.callback(whole.jobs.close)
    ask = client(whole, raise_server_exceptions=True)
    row = {"model": "table", "input": {"row": {"age": 39, "workclass": "Private"}}, "wait": 60}
    values = (
        "null", "true", "-1", "1.5", "1e400", "NaN", "1" + "0" * 400, '""', '"\\ud83d"', '"\\u0000"', "[]", "[null]",
        "{}", '{"\\ud83d": 1}', "[" * 500 + "]" * 500, '"' + "a" * 30_000 + '"',
    )  # fmt: skip
    for question, value in product((asked("text"), row, asked("language", generate=1)), values):
        for place in _places(question):
            body = json.dumps(_replaced(question, place, "\0")).replace(json.dumps("\0"), value)
            words = f"POST /api/explain {'.'.join(map(str, place))}={value[:30]}"
            yield Call("posts", words, partial(_posted, ask, "/api/explain", body.encode()), either=True)
    for path, body in product(
        ("explain", "compare", "predict", "heads", "trust"), (b"", b"{", b"\xff\xfe", b"[]", b"3")
    ):
        yield Call("posts", f"POST {path} {body!r}", partial(_posted, ask, f"/api/{path}", body), either=True)


def _places(plain: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field, and every field of a field; some that the question does not have yet."""
    if isinstance(plain, dict):
        for key in (*plain, *(() if place else ("target", "options", "method", "units", "seed"))):
            yield (*place, key)
            yield from _places(plain.get(key), (*place, key))


def _posted(client: Any, path: str, body: bytes) -> Any:
    from whyformer.errors import WhyformerError

    reply = client.post(path, content=body, headers={"content-type": "application/json"})
    if reply.status_code >= 500:
        raise RuntimeError(f"{reply.status_code}: {reply.text}")
    if reply.status_code >= 400:
        raise WhyformerError(reply.text)
    if '"status":"failed"' in reply.text and "Error" in reply.text and "BadInput" not in reply.text:
        raise RuntimeError(reply.text[:300])
    return reply


AREAS: dict[str, Callable[[Stage], Iterator[Call]]] = {
    "parameters": parameters, "objects": objects_everywhere, "inputs": inputs, "models": models, "language": language,
    "results": results, "commands": commands, "posts": posts,
}  # fmt: skip


def chosen_calls(stage: Stage, count: int | None, seed: int, area: str | None) -> list[Call]:
    """A draw of all the calls there are, equally many of each area while they last."""
    draw = random.Random(seed)
    areas = [list(make(stage)) for name, make in AREAS.items() if area in (None, name)]
    for calls in areas:
        draw.shuffle(calls)
    every = [call for turn in zip_longest(*areas) for call in turn if call is not None]
    return every if count is None else every[:count]


# Running them


def outcome(stage: Stage, call: Call, before: dict[str, Any]) -> dict[str, str]:
    from whyformer.errors import WhyformerError

    said, ended = "", "taken" if call.either else "silent"
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            call.run()
    except WhyformerError as error:
        ended, said = "ours", f"{type(error).__name__}: {error}"
    except BaseException as error:
        ended, said = "foreign", f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
    said = said.encode("utf-8", "backslashreplace").decode()
    after = stage.state()
    if changed := [name for name in before if before[name] != after[name]]:
        ended, said = "changed", ", ".join(changed)
    return {"area": call.area, "call": call.words, "outcome": ended, "said": said}


def work(count: int | None, seed: int, area: str | None, start: int) -> None:
    """The process in which calls are made: one line when each begins and one when it has ended."""
    import matplotlib

    matplotlib.use("Agg")
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        stage = Stage(Path(folder))
        os.chdir(folder)
        calls = chosen_calls(stage, count, seed, area)
        random.seed(0)
        for number, call in enumerate(calls[start:], start):
            print(json.dumps({"begins": number, "of": len(calls), "area": call.area, "call": call.words}), flush=True)
            print(json.dumps(outcome(stage, call, stage.state())), flush=True)


def ended_calls(count: int | None, seed: int, area: str | None) -> Iterator[dict[str, str]]:
    """How each call ended. A process that hangs or dies is started again behind the call that it did not survive."""
    start, total = 0, 1
    arguments = [
        f"--seed={seed}",
        *([f"--area={area}"] if area else []),
        "--all" if count is None else f"--calls={count}",
    ]
    while start < total:
        command = [sys.executable, "-m", "bench.fuzz", "--from", str(start), *arguments]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        lines: queue.Queue[str] = queue.Queue()
        reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
        reader.start()
        begun: dict[str, Any] | None = None
        while start < total:
            try:
                line = lines.get(timeout=STARTING if begun is None else LIMIT)
            except queue.Empty:
                line = ""
                process.kill()
            if not line:
                if begun is None:
                    raise SystemExit(
                        "the process that makes the calls did not start: run python -m bench.fuzz --from 0"
                    )
                ended = "hang" if process.wait() == -9 else "crash"
                yield {
                    "area": begun["area"],
                    "call": begun["call"],
                    "outcome": ended,
                    "said": f"exit {process.returncode}",
                }
                start += 1
                break
            report = json.loads(line)
            if "begins" in report:
                begun, total = report, report["of"]
            else:
                yield report
                start += 1
        process.kill()
        process.wait()
        reader.join()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str]) -> None:
    assert process.stdout is not None
    with process.stdout as stream:
        for line in stream:
            lines.put(line)
    lines.put("")


def table(reports: list[dict[str, str]]) -> str:
    counts = Counter((report["area"], report["outcome"]) for report in reports)
    areas = sorted({report["area"] for report in reports})
    lines = [f"{'':12}{'calls':>8}" + "".join(f"{name:>9}" for name in OUTCOMES)]
    for area in [*areas, "all"]:
        row = [sum(n for (a, o), n in counts.items() if area in (a, "all") and o == name) for name in OUTCOMES]
        lines.append(f"{area:12}{sum(row):>8}" + "".join(f"{n:>9}" for n in row))
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--all", action="store_true", help="every call there is")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--area", choices=AREAS)
    parser.add_argument("--from", type=int, dest="start", help=argparse.SUPPRESS)
    parser.add_argument("--ours", action="store_true", help="print our own messages, too")
    asked = parser.parse_args()
    count = None if asked.all else asked.calls
    if asked.start is not None:
        work(count, asked.seed, asked.area, asked.start)
        return
    reports = []
    for report in ended_calls(count, asked.seed, asked.area):
        reports.append(report)
        if report["outcome"] not in ("ours", "taken") or asked.ours:
            print(f"{report['outcome']:8} {report['call']}  →  {report['said']}", flush=True)
    print(table(reports))
    wrong = Counter(report["outcome"] for report in reports)
    bad = wrong["silent"] + wrong["hang"] + wrong["crash"] + wrong["changed"]
    raise SystemExit(int(bad > 0 or wrong["foreign"] >= 0.01 * len(reports)))


if __name__ == "__main__":
    main()
