"""Thousands of calls that make no sense: is each refused by an error of ours, and is everything left as it was?

    python -m bench.fuzz [--calls 3000] [--seed 0] [--area options] [--all]

Nonsense of every kind (wrong types, NaN, numbers out of range, misspelled words, damaged files) goes into every verb,
option, input, target, method of a result, picture, file and command. A call ends in one of seven ways:

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
from itertools import zip_longest
from pathlib import Path
from typing import Any

from bench.fuzz_hostile import HOSTILE
from bench.fuzz_language import language
from bench.fuzz_nonsense import (
    INF,
    NAN,
    NO_NUMBER,
    NONSENSE,
    Call,
    Thing,
    kind_of,
    run_command,
    shown,
    thing,
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


def verbs(stage: Stage) -> Iterator[Call]:
    import numpy as np

    import whyformer as wf
    from whyformer import concepts, heads, tables

    bert, tokenizer, texts = stage.bert, stage.tokenizer, stage.texts
    labels = [0, 1, 0, 1, 0]
    given = {"model", "inputs", "processor", "labels", "X", "y", "reference", "test", "class_inputs", "random_sets"}
    skip = (*given, "self", "rationales", "masks")
    few = {"occlusion": {}, "random": {}}
    yield from with_nonsense(
        "verbs", "explain", partial(wf.explain, bert, texts[0], processor=tokenizer), wf.explain, skip
    )
    yield from with_nonsense(
        "verbs", "Explainer.record", partial(stage.text.record, texts[0]), wf.Explainer.record, skip
    )
    yield from with_nonsense(
        "verbs",
        "compare",
        _quick(wf.compare, bert, texts[:2], processor=tokenizer, method=list(few)),
        wf.compare,
        skip,
    )
    yield from with_nonsense(
        "verbs", "recommend",
        _quick(wf.recommend, bert, texts, processor=tokenizer, method=["random"], spaces=()), wf.recommend, skip,
    )  # fmt: skip
    yield from with_nonsense(
        "verbs",
        "check",
        _quick(wf.check, bert, texts[:1], processor=tokenizer, checks=["capture_audit"]),
        wf.check,
        skip,
    )
    for name in ("head_importance", "layer_profile", "roles", "direct_logit", "circuits"):
        verb = getattr(heads, name)
        model, inputs = (stage.gpt, stage.ids) if name in ("direct_logit", "circuits") else (bert, texts[:3])
        how = {"processor": tokenizer} if model is bert else {}
        left_out = (*skip, "target") if name == "direct_logit" else skip  # of a language model nearly all are words
        yield from with_nonsense("verbs", name, partial(verb, model, inputs, **how), verb, left_out)
    how: dict[str, Any] = {"processor": tokenizer}
    yield from with_nonsense(
        "verbs",
        "pruning_curve",
        partial(heads.pruning_curve, bert, texts, labels, **how),
        heads.pruning_curve,
        (*skip, "order"),
    )
    for order in ("nonsense", 3, True, NAN, {}, Thing(), [], [(0, 0)], np.zeros((1, 1)), [("a", "b")], [1, 2]):
        yield Call(
            "verbs",
            f"pruning_curve(order={shown(order)})",
            partial(heads.pruning_curve, bert, texts, labels, order=order, **how),
        )
    yield from with_nonsense(
        "verbs", "learn_gates", _quick(heads.learn_gates, bert, texts, labels, steps=1, **how), heads.learn_gates, skip
    )
    yield from with_nonsense("verbs", "induction", partial(heads.induction, stage.gpt), heads.induction, skip)
    yield from with_nonsense(
        "verbs", "activation_maximization", _quick(wf.activation_maximization, stage.vit, 0, steps=1),
        wf.activation_maximization, (*skip, "unit"),
    )  # fmt: skip
    for unit in (
        None,
        1.5,
        True,
        (),
        ("neuron",),
        ("neuron", 0),
        ("neuron", 0, 1.5),
        ("layer", 99),
        ("x", 1, 2),
        {},
        NAN,
        99,
        "nonsense",
        ("token", 0, 99, 0),
        ("neuron", "nope", 1),
    ):
        yield Call(
            "verbs",
            f"activation_maximization(unit={shown(unit)})",
            partial(wf.activation_maximization, stage.vit, unit, steps=1),
        )
    sets = [stage.pictures[:2]] * 2
    concepts_of: dict[str, Any] = {"layer": 0, "concepts": {"a": stage.pictures[:2]}, "random_sets": sets}
    concepts_of |= {"class_inputs": stage.pictures[:2], "target": 0, "processor": stage.processor}
    yield from with_nonsense("verbs", "tcav", _quick(concepts.tcav, stage.vit, **concepts_of), concepts.tcav, skip)
    yield from with_nonsense(
        "verbs", "explain_global",
        _quick(wf.explain_global, stage.table_model, stage.rows[:2], processor=stage.table, method="saliency"),
        wf.explain_global, skip,
    )  # fmt: skip
    yield from with_nonsense(
        "verbs", "feature_permutation",
        partial(wf.feature_permutation, stage.table_model, stage.rows, [0, 1] * 3, processor=stage.table),
        wf.feature_permutation, skip,
    )  # fmt: skip
    yield from with_nonsense(
        "verbs",
        "row_attention",
        partial(tables.row_attention, stage.table_model, stage.rows),
        tables.row_attention,
        skip,
    )
    for verb in (wf.explain, wf.compare, wf.check, wf.recommend, wf.head_importance):
        for model in (None, 3, "no such model", Thing(), Thing, [], {}, thing, True, texts):
            yield Call(
                "models", f"{verb.__name__}(model={shown(model)})", partial(verb, model, texts, processor=tokenizer)
            )
        for processor in (3, "bert", Thing(), [], {}, thing, True, stage.processor):
            yield Call(
                "models",
                f"{verb.__name__}(processor={shown(processor)})",
                partial(verb, bert, texts, processor=processor),
            )
        yield Call("verbs", f"{verb.__name__}()", verb)
        yield Call("verbs", f"{verb.__name__}(model)", partial(verb, bert))
        yield Call("verbs", f"{verb.__name__}(…, 1, 2, 3)", partial(verb, bert, texts, 1, 2, 3))


def _quick(verb: Callable[..., Any], *args: Any, **usual: Any) -> Callable[..., Any]:
    """A verb with options that make it short, each of which nonsense may take the place of."""
    return lambda **named: verb(*args, **(usual | named))


def options(stage: Stage) -> Iterator[Call]:
    import whyformer as wf
    from whyformer.checks.check import CHECKS

    for name, method in wf.list_methods().items():
        explainer, one = (
            (stage.image, stage.picture) if name in ("vit_cx", "grad_cam") else (stage.text, stage.texts[0])
        )
        call = partial(explainer.explain, one, method=name)
        yield from with_nonsense(
            "options", name, call, method.run, ("run", "baseline", "keep_special", "distance", "at_most")
        )
        for option, values in {
            "baseline": ("nonsense", True, {}, [], Thing(), b"x", [1.0], 1j, {"text": 3}),
            "keep_special": ("yes", 3, 1.5, NAN, [1.5], ["a"], {}, Thing(), None),
            "distance": ("nonsense", 3, True, NAN, [], {}, Thing()),
        }.items():
            if option in method.options:
                for value in values:
                    yield Call("options", f"{name}({option}={shown(value)})", partial(call, **{option: value}))
    for name, metric in wf.list_metrics().items():
        if metric.needs & {"rationale", "region"}:
            continue
        for option, parameter in metric.options.items():
            for value in NONSENSE[kind_of(option, parameter.default) or "word"]:
                metrics = {name: {option: value}}
                judged = partial(wf.compare, stage.bert, stage.texts[:2], processor=stage.tokenizer, method=["random"])
                words = f"compare(metric={name}({option}={shown(value)}))"
                yield Call("options", words, partial(judged, metric=metrics))
    for name, check in CHECKS.items():
        for option, parameter in inspect.signature(check).parameters.items():
            kind = kind_of(option, parameter.default)
            if parameter.kind is parameter.KEYWORD_ONLY and kind:
                for value in NONSENSE[kind]:
                    checks = {name: {option: value}}
                    yield Call(
                        "options", f"check(checks={name}({option}={shown(value)}))",
                        partial(wf.check, stage.bert, stage.texts[:1], processor=stage.tokenizer, checks=checks),
                    )  # fmt: skip


def inputs(stage: Stage) -> Iterator[Call]:
    import numpy as np
    import torch
    from PIL import Image

    import whyformer as wf

    anything: tuple[Any, ...] = (
        None,
        3,
        1.7,
        NAN,
        True,
        b"x",
        1j,
        {},
        [],
        (),
        set(),
        Thing(),
        Thing,
        thing,
        [None],
        [3],
        [[]],
        [{}],
        {"a": 1},
    )
    ids = torch.tensor([[2, 6, 7, 8, 3]])
    mask = torch.ones_like(ids)
    texts: list[Any] = [
        *anything, "", "  ", "\n", [""], ["a", ""], ["a", 3], ["a", None], {"text": "i like it"}, [{"text": "x"}],
        ("a", "b", "c"), ["a", ["b", 3]], {"a", "b"}, np.array([1.0, 2.0]), np.zeros((2, 2)), b"i like it",
        {"input_ids": [[2, 6, 3]]}, {"input_ids": np.array([[2, 6, 3]])},
        torch.zeros(1, 0, dtype=torch.long), torch.zeros(0, 5, dtype=torch.long), ids[0], ids[None],
        {"input_ids": ids.float()}, {"input_ids": ids.to(torch.complex64)}, {"input_ids": ids.bool()},
        {"input_ids": -ids}, {"input_ids": ids + 1000}, {"input_ids": ids.repeat(1, 9)},
        {"input_ids": ids, "attention_mask": mask[:, :3]}, {"input_ids": ids, "attention_mask": mask * 0},
        {"input_ids": ids, "attention_mask": mask * NAN}, {"input_ids": ids, "attention_mask": mask.repeat(2, 1)},
        {"input_ids": ids, "attention_masks": mask}, {"inputs": ids}, {"input_ids": ids, "past_key_values": 3},
        {"input_ids": ids, "token_type_ids": mask * 99}, {"input_ids": ids, "attention_mask": mask.to(torch.complex64)},
    ]  # fmt: skip
    pixels = torch.rand(1, 3, 32, 32)
    pictures: list[Any] = [
        *anything, "nowhere.png", stage.folder, stage.folder / "tokenizer" / "vocab.txt", Image.new("RGB", (0, 5)),
        Image.new("RGB", (5, 0)), Image.new("F", (4, 4)), [Image.new("RGB", (0, 0))], np.full((32, 32, 3), 2.5),
        np.zeros((32, 32, 3), bool), np.zeros((0, 0, 3), np.uint8), pixels[0], pixels[:, :1], pixels[:, :, :0],
        pixels.to(torch.complex64), pixels > 0.5, pixels * NAN, pixels * INF, pixels[:0], pixels[:, :, :5, :5],
        {"pixel_values": pixels.long()}, {"pixels": pixels}, {"pixel_values": 3}, [pixels, "a"], pixels.flatten(),
        {"pixel_values": pixels, "bool_masked_pos": 3, "nonsense": pixels}, "", "\0",
    ]  # fmt: skip
    sound = stage.sound
    sounds: list[Any] = [
        *anything, "nowhere.wav", stage.folder, sound[:0], sound[None], sound > 0, sound.astype(complex), sound * NAN,
        np.array(["a", "b"]), (sound, 8000), (sound, "16000"), (sound, NAN), (sound, True), (sound, 16000, 1),
        [sound, "a"], torch.from_numpy(sound)[None].to(torch.complex64), torch.from_numpy(sound)[None] > 0,
        torch.from_numpy(sound)[None] * NAN, torch.zeros(1, 0), {"input_values": 3}, np.array([], dtype=object), "",
    ]  # fmt: skip
    row = stage.rows[0]
    today = np.datetime64("2024-01-01")
    rows: list[Any] = [
        *anything, {**row, "age": NAN}, {**row, "age": INF}, {**row, "age": "old"}, {**row, "age": None},
        {**row, "age": today}, {**row, "age": 1j}, {**row, "age": [1]}, {**row, "work": "nonsense"}, {**row, "work": 3},
        {**row, "work": NAN}, {**row, "work": [1]}, {k: v for k, v in row.items() if k != "age"}, {**row, "extra": 1},
        [row, {}], [row, 3], np.zeros((2, 3)), np.zeros((2, 5)), np.zeros((2, 2, 2)), np.zeros(0), [[1, 2, 3]], "age",
        [["a"] * 5], {k: [] for k in row}, {**{k: [v] for k, v in row.items()}, "age": [1, 2]},
        {"numerical": torch.zeros(1, 2), "categorical": torch.zeros(1, 2).long()},
        {"numerical": torch.zeros(1, 3) * NAN, "categorical": torch.zeros(1, 2).long()},
        {"numerical": torch.zeros(1, 3), "categorical": torch.ones(1, 2).long() * 99},
        {"numerical": torch.zeros(1, 3).to(torch.complex64), "categorical": torch.zeros(1, 2).long()},
        {"numerical": torch.zeros(1, 3)}, {**row, "age": np.timedelta64(3, "D")},
    ]  # fmt: skip
    several = [
        ("text", stage.text, texts, ("generic_attention", "occlusion", "saliency")),
        ("image", stage.image, pictures, ("generic_attention", "occlusion", "saliency")),
        ("sound", stage.audio, sounds, ("generic_attention", "saliency")),
        ("row", stage.columns, rows, ("generic_attention", "saliency", "occlusion")),
    ]
    for kind, explainer, wrong, methods in several:
        for number, value in enumerate(wrong):
            for method in methods:
                words = f"explain({kind} {number}: {shown(value)}, method={method})"
                yield Call("inputs", words, partial(explainer.explain, value, method=method))
            yield Call(
                "inputs",
                f"head_importance({kind} {number}: {shown(value)})",
                partial(wf.head_importance, explainer.model, value, processor=explainer.processor),
            )
            yield Call("inputs", f"record({kind} {number}: {shown(value)})", partial(explainer.record, value))
    for name in (
        "numerical",
        "categorical",
        "columns",
        "classes",
        "first_code",
        "tokens",
        "call",
        "reference",
        "preprocess",
    ):
        for value in ("nonsense", 3.5, NAN, Thing(), b"x", 1j, {"age": 3}, [["a"]]):
            usual: dict[str, Any] = {"numerical": ["age"], "categorical": {"sex": ["f", "m"]}}
            if (name, shown(value)) in {("classes", "[['a']]"), ("call", "<Thing>")}:
                continue
            yield Call("inputs", f"Table({name}={shown(value)})", partial(wf.Table, **(usual | {name: value})))


def targets(stage: Stage) -> Iterator[Call]:
    import whyformer as wf

    several = [
        ("text", stage.text, stage.texts[0]),
        ("image", stage.image, stage.picture),
        ("row", stage.columns, stage.rows[0]),
    ]
    for kind, explainer, one in several:
        for target in (*NONSENSE["target"], wf.Target(99), wf.Target(0, versus=99), wf.Target(-99)):
            for method in ("generic_attention", "saliency", "occlusion"):
                yield Call(
                    "targets",
                    f"explain({kind}, target={shown(target)}, method={method})",
                    partial(explainer.explain, one, target=target, method=method),
                )
            yield Call(
                "targets",
                f"record({kind}, target={shown(target)})",
                partial(explainer.record, one, grad=True, target=target),
            )


def results(stage: Stage) -> Iterator[Call]:
    import whyformer as wf
    from tests.views import results as made
    from tests.views import samples
    from whyformer import views

    text, image = made.explanation(), samples.image()
    record = stage.text.record(stage.texts[0])
    kinds = [make() for make in made.ALL.values()]
    for result in kinds:
        name = type(result).__name__
        for path in (
            *NONSENSE["path"],
            "x.gif",
            "noending",
            stage.folder / "no" / "x.json",
            stage.folder,
            "/dev/null/x.json",
            "x" * 300 + ".json",
        ):
            yield Call("results", f"{name}.save({shown(path)})", partial(result.save, path))
        for door in (result.show, result.to_html, result.view, result.plot):
            for more in ({"unknown": 1}, {"by": 3}, {"most": -1}, {"index": "a"}):
                yield Call("views", f"{name}.{door.__name__}({more})", partial(door, **more))
            yield Call("views", f"{name}.{door.__name__}(…, 7 values)", partial(door, *range(7)))
    yield from with_nonsense("results", "Explanation.words", text.words, wf.Explanation.words, ("self",))
    for value in NONSENSE["word"]:
        yield Call("results", f"Explanation.words({shown(value)})", partial(text.words, value))
        yield Call("results", f"CheckUp.of({shown(value)})", partial(made.check_up().of, value))
        yield Call("results", f"heatmap(interpolation={shown(value)})", partial(image.heatmap, interpolation=value))
        yield Call("results", f"Comparison[{shown(value)}]", partial(made.comparison().__getitem__, value))
    for value in NONSENSE["truth"]:
        yield Call("results", f"Explanation.ranked({shown(value)})", partial(text.ranked, value))
    for value in NONSENSE["pair"]:
        yield Call("results", f"heatmap({shown(value)})", partial(image.heatmap, value))
    for value in (None, 3, "x", [], [3], {}, Thing(), [text, 3], record):
        yield Call("results", f"to_shap({shown(value)})", partial(wf.to_shap, value))
        yield Call("views", f"view_of({shown(value)})", partial(views.view_of, value))
        yield Call("views", f"side_by_side({shown(value)})", partial(views.side_by_side, value))
        if value not in ([], {}):
            yield Call("views", f"page({shown(value)})", partial(views.page, value))
        yield Call("views", f"relevance_map({shown(value)})", partial(views.relevance_map, value))
        yield Call("views", f"table_map({shown(value)})", partial(views.table_map, value))
        if value is not record:
            for view in (views.attention_map, views.heads_grid, views.attention_streams):
                yield Call("views", f"{view.__name__}({shown(value)})", partial(view, value))
    for view in (views.attention_map, views.heads_grid, views.attention_streams):
        for parameter in inspect.signature(view).parameters:
            for value in {
                "site": NONSENSE["place"],
                "row": NONSENSE["place"],
                "layer": NONSENSE["place"],
                "head": NONSENSE["layer"],
                "sites": NONSENSE["list"],
                "labels": (3, NAN, True, Thing(), 1j),
            }.get(parameter, ()):
                yield Call(
                    "views", f"{view.__name__}({parameter}={shown(value)})", partial(view, record, **{parameter: value})
                )
    for parameter, values in {
        "image": ("nowhere.png", 3, Thing(), {}, 1j),
        "query": NONSENSE["place"],
        "site": NONSENSE["place"],
        "row": NONSENSE["place"],
        "units": (3, None, "x", text),
    }.items():
        for value in values:
            usual: dict[str, Any] = {"units": image}
            yield Call(
                "views",
                f"heads_over_image({parameter}={shown(value)})",
                partial(views.heads_over_image, stage.image.record(stage.picture), **(usual | {parameter: value})),
            )
    for parameter, values in {
        "image": ("nowhere.png", 3, Thing(), {}, 1j, NAN),
        "by": NONSENSE["word"],
        "most": (*NO_NUMBER, 0, -1, 1.7),
        "title": (3, NAN, True, [], Thing()),
    }.items():
        for value in values:
            for result in (text, image):
                yield Call(
                    "views",
                    f"{result.method}.to_html({parameter}={shown(value)})",
                    partial(result.to_html, **{parameter: value}),
                )
    for value in (*NONSENSE["path"], "nowhere.json", stage.folder, "/dev/null/x.json", "x" * 300):
        yield Call("files", f"load({shown(value)})", partial(wf.load, value))
        yield Call("files", f"Explanation.load({shown(value)})", partial(wf.Explanation.load, value))
        yield Call("files", f"tables.load_model({shown(value)})", partial(_load_model, value))
    yield from files(stage, kinds)


def _load_model(path: Any) -> Any:
    from whyformer.tables.table_results import load_model

    return load_model(path)


def files(stage: Stage, kinds: list[Any]) -> Iterator[Call]:
    """Saved results, damaged."""
    import whyformer as wf

    draw = random.Random(0)
    folder = stage.folder / "damaged"
    folder.mkdir(exist_ok=True)
    for number, result in enumerate(kinds):
        for ending in (".json", ".npz"):
            whole = result.save(folder / f"{number}{ending}").read_bytes()
            damages = {
                "cut": whole[: len(whole) // 2],
                "empty": b"",
                "one byte": whole[:1],
                "other": b"\x00\xff" * 50,
                "null": b"null",
                "list": b"[1, 2]",
                "deep": b"[" * 100_000,
            }
            if ending == ".json":
                plain = json.loads(whole)
                names = [k for k in plain if k not in ("format", "what")]
                for _ in range(4):
                    name = draw.choice(names)
                    damages[f"no {name}"] = json.dumps(
                        {k: v for k, v in plain.items() if k in ("format", "what")}
                    ).encode()
                    if isinstance(plain[name], (list, dict)) and plain[name]:
                        damages[f"{name} is 3"] = json.dumps({**plain, name: 3}).encode()
                damages["another format"] = json.dumps({**plain, "format": 99}).encode()
                damages["unknown field"] = json.dumps({**plain, "nonsense": 1}).encode()
                damages["of another kind"] = json.dumps({**plain, "what": "nonsense"}).encode()
            for damage, content in damages.items():
                path = folder / f"{number}-{''.join(c if c.isalnum() else '_' for c in damage)}{ending}"
                path.write_bytes(content)
                yield Call("files", f"load({type(result).__name__}{ending}, {damage})", partial(wf.load, path))


def commands(stage: Stage) -> Iterator[Call]:
    stage.bert.save_pretrained(stage.folder / "bert")
    stage.tokenizer.save_pretrained(stage.folder / "bert")
    model = ("--model", str(stage.folder / "bert"))
    text = "i like it"
    wrong: list[tuple[str, ...]] = [
        ("explain",), ("explain", "text"), ("nonsense",), ("--nonsense",),
        ("explain", "image", "nowhere.png", *model), ("explain", "table", "nowhere.csv", *model),
        ("capture", "--model", "nowhere/"), ("methods", "nonsense"), ("metrics", "nonsense"),
        ("demo", "--out", "/dev/null/x.html"), ("heads", text, *model, "--what", "nonsense"),
    ]  # fmt: skip
    numbers = ("-1", "1.5", "nan", "inf", "x", "")
    for command in (
        ("explain", "text", text),
        ("compare", text),
        ("recommend", text),
        ("check", text),
        ("heads", text),
    ):
        for option in ("--seed", "--batch-size"):
            wrong += [(*command, *model, option, number) for number in numbers]
        wrong += [
            (*command, *model, "--batch-size", "0"),
            (*command, *model, "--nonsense"),
            (*command, *model, "--model", ""),
        ]
        wrong += [(*command, *model, "--target", target) for target in ("nonsense", "99", "-99", "1.7", "True")]
        wrong += [(*command, *model, "--out", out) for out in ("x.gif", "/dev/null/x.html", "", "no/such/x.html")]
        wrong += [(*command[:-1], word, *model) for word in ("", " ")]
    for value in (
        "steps=0",
        "steps=nan",
        "steps=1.5",
        "steps='a'",
        "steps=[1]",
        "=3",
        "steps",
        "nonsense=1",
        "memory_mb=-1",
    ):
        wrong.append(("explain", "text", text, *model, "-m", "integrated_gradients", "-o", value))
    for value in ("heads=7", "heads=[]", "heads=True", "layers=1.5", "read=rows", "layers=None", "heads={}"):
        wrong.append(("explain", "text", text, *model, "-m", "raw_attention", "-o", value))
    for arguments in wrong:
        yield Call("commands", " ".join(("whyformer", *arguments)), partial(run_command, arguments))


AREAS: dict[str, Callable[[Stage], Iterator[Call]]] = {
    "verbs": verbs, "options": options, "inputs": inputs, "targets": targets, "results": results, "commands": commands,
    "language": language, **HOSTILE,
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
