"""Calls with hostile objects (bench/fuzz_objects.py), one area of bench/fuzz.py for each place that takes them."""

from __future__ import annotations

import contextlib
import inspect
import io
import json
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from bench.fuzz_nonsense import Call, run_command
from bench.fuzz_objects import (
    HUGE,
    broken_cells,
    broken_configs,
    broken_outputs,
    broken_pictures,
    broken_tensors,
    broken_texts,
    model_with,
    named,
    objects,
    odd_pictures,
    odd_tensors,
    odd_texts,
)


def texts(stage: Any) -> Iterator[Call]:
    import whyformer as wf

    bert, tokenizer, writer, words = stage.bert, stage.tokenizer, stage.writer, stage.words
    of_bert, of_writer = {"processor": tokenizer}, {"processor": words}
    some = stage.texts
    server = wf.CompletionServer(stage.server.url, "tiny")
    doors: dict[str, Callable[[Any], Any]] = {
        "explain": lambda t: wf.explain(bert, t, **of_bert),
        "explain, one of several": lambda t: wf.explain(bert, [some[0], t], **of_bert),
        "explain, a pair": lambda t: wf.explain(bert, [(some[0], t)], **of_bert),
        "explain, by occlusion": lambda t: wf.explain(bert, t, method="occlusion", **of_bert),
        "explain, by words": lambda t: wf.explain(bert, t, units="word", **of_bert),
        "explain, language": lambda t: wf.explain(writer, t, **of_writer),
        "explain, the answer": lambda t: wf.explain(writer, ("the cat", t), **of_writer),
        "explain, a chat": lambda t: wf.explain(writer, [{"role": "user", "content": t}], **of_writer),
        "explain, written": lambda t: wf.explain(writer, t, generate=1, **of_writer),
        "Explainer.record": stage.text.record,
        "Explainer.estimate": stage.text.estimate,
        "compare": lambda t: wf.compare(bert, [some[0], t], method=["random"], **of_bert),
        "recommend": lambda t: wf.recommend(bert, [*some[:4], t], method=["random"], spaces=(), **of_bert),
        "check": lambda t: wf.check(bert, [t], checks=["capture_audit"], **of_bert),
        "report": lambda t: wf.report(bert, [t], method=["random"], checks=[], **of_bert),
        "head_importance": lambda t: wf.head_importance(bert, [some[0], t], **of_bert),
        "tcav": lambda t: wf.tcav(bert, some[:2], {"c": [some[2], t]}, **of_bert),
        "cite, question": lambda t: wf.cite(writer, t, {"cats": "The cat sat ."}, answer="He ran .", **of_writer),
        "cite, document": lambda t: wf.cite(writer, "who ran ?", {"cats": t}, answer="He ran .", **of_writer),
        "cite, name": lambda t: wf.cite(writer, "who ran ?", {t: "The cat sat ."}, answer="He ran .", **of_writer),
        "cite, answer": lambda t: wf.cite(writer, "who ran ?", {"cats": "The cat sat ."}, answer=t, **of_writer),
        "server, prompt": lambda t: wf.explain(server, (t, " Paris"), method="occlusion"),
        "server, answer": lambda t: wf.explain(server, ("The capital is", t), method="occlusion"),
        "explain_dataset": lambda t: wf.explain_dataset(
            bert, [some[0], t], stage.folder / f"job{abs(hash(t))}", **of_bert
        ),
    }
    wishes: dict[str, Callable[[Any], Any]] = {
        "target": lambda t: wf.explain(writer, "the cat", target=t, **of_writer),
        "contrast": lambda t: wf.explain(writer, "the cat", target=(t, "a dog"), **of_writer),
        "choices": lambda t: wf.explain(writer, "the cat", choices=["sat", t], **of_writer),
        "class": lambda t: wf.explain(bert, some[0], target=t, **of_bert),
        "replace": lambda t: wf.explain(bert, some[0], method="occlusion", replace=t, **of_bert),
        "hold": lambda t: wf.explain(bert, some[0], method="shap", hold=t, **of_bert),
        "method": lambda t: wf.explain(bert, some[0], method=t, **of_bert),
        "model": lambda t: wf.explain(t, some[0]),
        "load": wf.load,
        "row": lambda t: stage.columns.explain({**stage.rows[0], "work": t}),
        "column": lambda t: stage.columns.explain({**stage.rows[0], t: 3}),
        "Table": lambda t: wf.Table(numerical=[t]),
        "Table, category": lambda t: wf.Table(numerical=["a"], categorical={"b": [t]}),
    }
    for name, door in (doors | wishes).items():
        for kind, text in broken_texts(some[0]):
            # A name may hold anything that a text holds.
            either = name in ("cite, name", "Table", "Table, category", "server, prompt", "server, answer")
            yield Call("texts", f"{name}({kind})", partial(door, text), either)
    for name, door in doors.items():
        for kind, text in odd_texts(some[0]):
            if ("megabyte" in kind or "long" in kind) and name not in (
                "explain",
                "explain, language",
                "compare",
                "cite, question",
            ):
                continue  # the same tokenizer, again and again
            yield Call("texts", f"{name}({kind})", partial(door, text), either=True)


def tensors(stage: Any) -> Iterator[Call]:
    import torch

    import whyformer as wf

    ids = torch.tensor([[2, 6, 7, 8, 3]])
    places: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
        "ids": (stage.bert, ids, lambda t: {"input_ids": t}),
        "ids alone": (stage.bert, ids, lambda t: t),
        "mask": (stage.bert, torch.ones_like(ids), lambda t: {"input_ids": ids, "attention_mask": t}),
        "types": (stage.bert, torch.zeros_like(ids), lambda t: {"input_ids": ids, "token_type_ids": t}),
        "positions": (stage.bert, torch.arange(5)[None], lambda t: {"input_ids": ids, "position_ids": t}),
        "language": (stage.gpt, stage.ids["input_ids"] if isinstance(stage.ids, dict) else ids, lambda t: t),
        "pixels": (stage.vit, torch.rand(1, 3, 32, 32), lambda t: t),
        "pixels by name": (stage.vit, torch.rand(1, 3, 32, 32), lambda t: {"pixel_values": t}),
        "picture": (stage.image, torch.rand(3, 32, 32), lambda t: [t]),
        "sound": (stage.ears, torch.rand(1, 400), lambda t: t),
        "numbers": (
            stage.table_model, torch.zeros(1, 3),
            lambda t: {"numerical": t, "categorical": torch.zeros(1, 2).long()},
        ),
        "categories": (
            stage.table_model, torch.zeros(1, 2).long(), lambda t: {"numerical": torch.zeros(1, 3), "categorical": t},
        ),
    }  # fmt: skip
    masks = ("truth values",)
    for place, (model, tensor, given) in places.items():
        for method in (None, "occlusion", "saliency"):
            call = partial(wf.explain, model, method=method)
            for kind, broken in broken_tensors(tensor):
                # Truth values are a mask; the reading of others than the first input is the model's.
                either = (place == "mask" and kind in masks) or place in ("types", "positions", "categories", "mask")
                words = f"explain({place}: {kind}, method={method})"
                yield Call("tensors", words, partial(call, given(broken)), either)
            for kind, odd in odd_tensors(tensor):
                yield Call("tensors", f"explain({place}: {kind}, method={method})", partial(call, given(odd)), True)
        for verb in (wf.head_importance, wf.check, wf.compare):
            how = {"checks": ["capture_audit"]} if verb is wf.check else {}
            how |= {"methods": ["random"]} if verb is wf.compare else {}
            for kind, broken in broken_tensors(tensor):
                words = f"{verb.__name__}({place}: {kind})"
                yield Call("tensors", words, partial(verb, model, given(broken), **how), either=True)


def outputs(stage: Any) -> Iterator[Call]:
    import whyformer as wf

    fine = {"numpy", "numbers", "a namespace", "many axes", "a dict with a truth values tensor"}
    for kind, change in broken_outputs():
        for method in (None, "occlusion", "saliency", "attn_lrp"):

            def explained(change: Callable[[Any], Any] = change, method: Any = method) -> Any:
                model = model_with(stage.bert, change)
                return wf.explain(model, stage.texts[0], processor=stage.tokenizer, method=method)

            either = kind in fine or any(word in kind for word in ("truth", "torch.", "quantized", "a scalar"))
            yield Call("outputs", f"explain(model that returns {kind}, method={method})", explained, either)

        def by_verb(verb: Any, how: dict[str, Any], change: Callable[[Any], Any] = change) -> Any:
            return verb(model_with(stage.bert, change), stage.texts[:2], processor=stage.tokenizer, **how)

        for verb, how in (
            (wf.head_importance, {}),
            (wf.check, {"checks": ["capture_audit", "class_dependence"]}),
            (wf.compare, {"methods": ["random"]}),
            (wf.report, {"methods": ["random"], "checks": []}),
        ):
            words = f"{verb.__name__}(model that returns {kind})"
            yield Call("outputs", words, partial(by_verb, verb, how), either=True)


def configs(stage: Any) -> Iterator[Call]:
    import copy

    import whyformer as wf

    for name, value in broken_configs():

        def explained(verb: Any, how: dict[str, Any], name: str = name, value: Any = value) -> Any:
            model = copy.deepcopy(stage.bert)
            object.__setattr__(model.config, name, value)
            return verb(model, stage.texts[:2], processor=stage.tokenizer, **how)

        for verb, how in (
            (wf.explain, {}),
            (wf.explain, {"target": "positive"}),
            (wf.compare, {"methods": ["random"]}),
            (wf.head_importance, {}),
        ):
            words = f"{verb.__name__}(config.{name}={named(value)}, {how})"
            yield Call("configs", words, partial(explained, verb, how), either=True)


def pictures(stage: Any) -> Iterator[Call]:
    import whyformer as wf

    how = {"processor": stage.processor}
    doors: dict[str, Callable[[Any], Any]] = {
        "explain": lambda p: wf.explain(stage.vit, p, **how),
        "explain, one of several": lambda p: wf.explain(stage.vit, [stage.picture, p], **how),
        "explain, by occlusion": lambda p: wf.explain(stage.vit, p, method="occlusion", **how),
        "record": stage.image.record,
        "compare": lambda p: wf.compare(stage.vit, [stage.picture, p], method=["random"], **how),
        "check": lambda p: wf.check(stage.vit, [p], checks=["capture_audit"], **how),
        "head_importance": lambda p: wf.head_importance(stage.vit, [p], **how),
        "tcav": lambda p: wf.tcav(stage.vit, stage.pictures[:2], {"c": [stage.picture, p]}, **how),
        "image=": lambda p: stage.image.explain(stage.picture).to_html(image=p),
    }
    for name, door in doors.items():
        for kind, picture in broken_pictures(stage.picture, stage.folder):
            # Bytes and file objects hold a whole picture; where they are taken, nothing is wrong.
            either = kind in ("bytes of a file", "a file object")
            yield Call("pictures", f"{name}({kind})", partial(door, picture), either)
        for kind, picture in odd_pictures(stage.picture):
            yield Call("pictures", f"{name}({kind})", partial(door, picture), either=True)


def cells(stage: Any) -> Iterator[Call]:
    import pandas as pd

    import whyformer as wf

    row = stage.rows[0]
    how = {"processor": stage.table}
    doors: dict[str, Callable[[Any], Any]] = {
        "explain": lambda r: wf.explain(stage.table_model, r, **how),
        "explain, one of several": lambda r: wf.explain(stage.table_model, [row, r], **how),
        "explain, a frame": lambda r: wf.explain(stage.table_model, _of_pandas(pd.DataFrame, [row, r]), **how),
        "explain, a series": lambda r: wf.explain(stage.table_model, _of_pandas(pd.Series, r), **how),
        "explain_global": lambda r: wf.explain_global(stage.table_model, [row, r], method="saliency", **how),
        "feature_permutation": lambda r: wf.feature_permutation(stage.table_model, [row, r] * 3, [0, 1] * 3, **how),
        "compare": lambda r: wf.compare(stage.table_model, [row, r], method=["random"], **how),
        "reference": lambda r: wf.Table(**_described(stage), reference=[row, r]),
    }
    for name, door in doors.items():
        for kind, value in broken_cells():
            for column in ("age", "work"):
                # A category may be anything that its list of categories holds; this one holds texts.
                either = kind in ("float beyond float32", "Inf text", "array", "nested", "range", "set", "generator")
                yield Call("cells", f"{name}({column}={kind})", partial(door, {**row, column: value}), either)
        for kind, value in objects():
            yield Call("cells", f"{name}(age={kind})", partial(door, {**row, "age": value}), either=True)
            yield Call("cells", f"{name}(work={kind})", partial(door, {**row, "work": value}), either=True)


def _of_pandas(make: Callable[[Any], Any], rows: Any) -> Any:
    """Where pandas itself refuses a cell, nothing of ours is called."""
    from whyformer.errors import WhyformerError

    try:
        return make(rows)
    except Exception as error:
        raise WhyformerError("refused by pandas") from error


def _described(stage: Any) -> dict[str, Any]:
    table = stage.table
    return {"numerical": list(table.numerical), "categorical": dict(table.categorical)}


def any_object(stage: Any) -> Iterator[Call]:
    """Each object for each parameter of each public function."""
    for name, (function, usual) in _public(stage).items():
        parameters = {
            p: described
            for p, described in inspect.signature(function).parameters.items()
            if described.kind not in (described.VAR_KEYWORD, described.VAR_POSITIONAL) and p != "self"
        }
        for parameter in parameters:
            for kind, value in objects():
                if kind in ("long list", "long range", "megabyte") and parameter in ("inputs", "X", "documents"):
                    continue  # much work, and rightly
                call = partial(_called, function, usual | {parameter: value})
                yield Call("objects", f"{name}({parameter}: {kind})", call, either=True)
    import whyformer as wf

    for name, method in wf.list_methods().items():
        pictured = name in ("vit_cx", "grad_cam")
        explainer, one = (stage.image, stage.picture) if pictured else (stage.text, stage.texts[0])
        for option in method.options:
            for kind, value in objects():
                call = partial(explainer.explain, one, method=name, **{option: value})
                yield Call("objects", f"{name}({option}: {kind})", call, either=True)


def _called(function: Callable[..., Any], named: dict[str, Any]) -> Any:
    with contextlib.redirect_stdout(io.StringIO()):
        return function(**named)


def _public(stage: Any) -> dict[str, tuple[Callable[..., Any], dict[str, Any]]]:
    """Public functions by name, with arguments that make a short call."""
    import torch

    import whyformer as wf
    from tests.views import results as made
    from whyformer import heads, tables, views

    some, labels = stage.texts, [0, 1, 0, 1, 0]
    of_bert: dict[str, Any] = {"model": stage.bert, "inputs": some[:2], "processor": stage.tokenizer}
    of_rows: dict[str, Any] = {"model": stage.table_model, "processor": stage.table}
    explanation = made.explanation()
    one = {"inputs": some[0]}
    return {
        "explain": (wf.explain, of_bert),
        "Explainer": (wf.Explainer, {"model": stage.bert, "processor": stage.tokenizer}),
        "Explainer.explain": (stage.text.explain, one),
        "Explainer.record": (stage.text.record, one),
        "Explainer.audit": (stage.text.audit, one),
        "Explainer.estimate": (stage.text.estimate, one),
        "Explainer.compare": (stage.text.compare, {"inputs": some[:2], "methods": ["random"]}),
        "Explainer.check": (stage.text.check, {"inputs": some[:1], "checks": ["capture_audit"]}),
        "compare": (wf.compare, {**of_bert, "methods": ["random"]}),
        "recommend": (wf.recommend, {**of_bert, "inputs": some, "methods": ["random"], "spaces": ()}),
        "check": (wf.check, {**of_bert, "checks": ["capture_audit"]}),
        "report": (wf.report, {**of_bert, "inputs": some[0], "methods": ["random"], "checks": []}),
        "head_importance": (wf.head_importance, of_bert),
        "layer_profile": (heads.layer_profile, of_bert),
        "roles": (heads.roles, of_bert),
        "direct_logit": (heads.direct_logit, {"model": stage.gpt, "inputs": stage.ids}),
        "circuits": (heads.circuits, {"model": stage.gpt, "inputs": stage.ids}),
        "pruning_curve": (heads.pruning_curve, {**of_bert, "inputs": some, "labels": labels, "points": 1}),
        "tcav": (
            wf.tcav,
            {
                "model": stage.bert, "class_inputs": some[:2], "concepts": {"c": some[2:4]},
                "processor": stage.tokenizer, "sets": 1,
            },
        ),
        "activation_maximization": (
            wf.activation_maximization, {"model": stage.vit, "target": 0, "processor": stage.processor, "steps": 1},
        ),
        "explain_global": (wf.explain_global, {**of_rows, "inputs": stage.rows[:2], "method": "saliency"}),
        "feature_permutation": (
            wf.feature_permutation, {**of_rows, "X": stage.rows, "y": [0, 1] * 3, "repeats": 1},
        ),
        "row_attention": (tables.row_attention, {"model": stage.table_model, "inputs": stage.rows}),
        "explain_dataset": (
            wf.explain_dataset,
            {"model": stage.bert, "inputs": some[:1], "folder": stage.folder / "hostile", "processor": stage.tokenizer},
        ),
        "cite": (
            wf.cite,
            {
                "model": stage.writer, "question": "who ran ?", "documents": {"cats": "The cat sat ."},
                "answer": "He ran .", "processor": stage.words,
            },
        ),
        "load": (wf.load, {}),
        "to_shap": (wf.to_shap, {}),
        "to_captum": (wf.to_captum, {"explanations": [explanation]}),
        "to_quantus": (wf.to_quantus, {"explanations": [explanation], "inputs": torch.ones(1, len(explanation.units))}),
        "mark_attention": (wf.mark_attention, {"weights": torch.rand(1, 2, 3, 3), "layout": "b h q k"}),
        "Table": (wf.Table, {"numerical": ["age"], "categorical": {"sex": ["f", "m"]}}),
        "Table, standardized": (_standardized, {"mean": (1.0,), "std": (1.0,)}),
        "Target": (_aimed(stage), {"index": 0}),
        "list_methods": (wf.list_methods, {}),
        "list_metrics": (wf.list_metrics, {}),
        "Explanation.words": (explanation.words, {}),
        "Explanation.ranked": (explanation.ranked, {}),
        "views.view_of": (_drawn, {"result": explanation}),
        "views.page": (views.page, {}),
        "views.side_by_side": (views.side_by_side, {}),
        "CompletionServer": (wf.CompletionServer, {"url": stage.server.url}),
        "ChatServer": (wf.ChatServer, {"url": stage.server.url}),
    }  # fmt: skip


def _drawn(result: Any) -> Any:
    from whyformer import views

    return views.view_of(result)  # which takes its result by place


def _standardized(mean: Any, std: Any) -> Any:
    import whyformer as wf

    return wf.Table(numerical=["age"], preprocess=wf.Standardize(mean, std))


def _aimed(stage: Any) -> Callable[..., Any]:
    import whyformer as wf

    def explained(index: Any, versus: Any = None, position: Any = None, label: Any = "", end: Any = None) -> Any:
        target = wf.Target(index, label, versus=versus, position=position, end=end)
        return wf.explain(stage.bert, stage.texts[0], processor=stage.tokenizer, target=target)

    return explained


def signatures(stage: Any) -> Iterator[Call]:
    """Calls that no signature takes: with stars, with names that Python itself uses, with too much and too little."""
    import whyformer as wf

    for name, (function, usual) in _public(stage).items():
        first = next(iter(usual.values()), None)
        for words, call in {
            "self=3": partial(function, **usual, self=3),
            "cls=3": partial(function, **usual, cls=3),
            "args=()": partial(function, **usual, args=()),
            "kwargs={}": partial(function, **usual, kwargs={}),
            "function=3": partial(function, **usual, function=3),
            "nothing": function,
            "20 values": partial(function, *range(20)),
            "20 values and names": partial(function, *range(20), **usual),
            "the first twice": partial(function, first, **usual),
            "an empty name": partial(function, **usual, **{"": 3}),
            "a name of a surrogate": partial(function, **usual, **{"\ud83d": 3}),
        }.items():
            if not hasattr(function, "__wrapped__") and not isinstance(function, type):
                continue  # Python's own signature check
            fine = words == "nothing" and not any(
                p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
                for p in inspect.signature(function).parameters.values()
            )
            yield Call("signatures", f"{name}({words})", partial(_called, call, {}), fine)
    for owner in (wf.Explainer, wf.Table, wf.Target, wf.CompletionServer, wf.ChatServer, wf.Explanation):
        for verb, function in vars(owner).items():
            if (verb.startswith("_") and verb != "__init__") or not inspect.isfunction(function):
                continue
            if not hasattr(function, "__wrapped__"):
                continue  # Python's own signature check
            for words, call in {
                "nothing": function,
                "self=": partial(function, self=stage.text),
                "20 values": partial(function, *range(20)),
            }.items():
                yield Call("signatures", f"{owner.__name__}.{verb}({words})", partial(_called, call, {}), either=True)


def layouts(stage: Any) -> Iterator[Call]:
    """Layouts of home-made attention: of every kind, and of every count of letters."""
    import torch

    import whyformer as wf

    wrong = ("", " ", "b", "b h", "b h q", "q k", "b h q k x", "b b q k", "B H Q K", "bhqk", "b,h,q,k",
             "\ud83d", "((b h) q k", "(b h) q k)", "()", "b (h) q k", "²", "b h q k " * 5)  # fmt: skip
    for module in ("*", "*.attention.*", "encoder.layer.0", "*attention.self", "classifier", "*dropout*"):
        for layout in (*wrong, "b h q k"):
            call = partial(_recorded, stage, {f"*{module}" if module != "*" else "*": layout})
            yield Call(
                "layouts", f"record(attention_at={{{module!r}: {named(layout)}}})", call, layout in ("b h q k", "q k")
            )
    for kind, value in objects():
        yield Call("layouts", f"attention_at: {kind}", partial(_recorded, stage, value), either=True)
        yield Call("layouts", f"layout: {kind}", partial(_recorded, stage, {"*": value}), either=True)
        yield Call("layouts", f"mark_attention({kind})", partial(wf.mark_attention, value, "b h q k"), either=True)
        maps = torch.rand(1, 2, 3, 3)
        yield Call("layouts", f"mark_attention(layout: {kind})", partial(wf.mark_attention, maps, value), either=True)
    for layout in wrong:
        call = partial(wf.mark_attention, torch.rand(1, 2, 3, 3), layout)
        yield Call("layouts", f"mark_attention({named(layout)})", call, layout == "bhqk")


def _recorded(stage: Any, attention_at: Any) -> Any:
    import whyformer as wf

    return wf.Explainer(stage.bert, stage.tokenizer, attention_at=attention_at).record(stage.texts[0])


def saved(stage: Any) -> Iterator[Call]:
    """Saved results with every number in turn that is none: a warning or an error, never silence."""
    from tests.views import results as made

    folder = stage.folder / "no numbers"
    folder.mkdir(exist_ok=True)
    kinds = {kind.__name__: make for kind, make in made.ALL.items()}
    for kind in (
        *("Explanation", "HeadImportance", "GlobalExplanation"),
        *("FeaturePermutation", "Comparison", "TCAVResult"),
    ):
        result = kinds[kind]()
        plain = json.loads(result.save(folder / f"{kind}.json").read_text())
        for place in _numbers(plain):
            for value in (None, "inf", "-inf", "nan", True, "3", [], HUGE):
                path = folder / f"{kind}-{'-'.join(map(str, place))}-{str(value)[:5]}.json"
                path.write_text(json.dumps(_replaced(plain, place, value)))
                words = f"load({kind}, {'.'.join(map(str, place))}={str(value)[:9]})"
                either = (kind, place[0]) not in MUST_BE_FINITE
                yield Call("saved", words, partial(_loaded, path), either)


MUST_BE_FINITE = (("Explanation", "scores"), ("Explanation", "value"), ("GlobalExplanation", "mean"))


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


def lines(stage: Any) -> Iterator[Call]:
    """Numbers and words of the command line that Python reads in another way than people do."""
    model = ("--model", str(stage.folder / "bert"))
    if not (stage.folder / "bert").exists():
        stage.bert.save_pretrained(stage.folder / "bert")
        stage.tokenizer.save_pretrained(stage.folder / "bert")
    values = ("²", "٣٤", "--5", "-", "--", "1_0", "0x1", "1e400", " ", "\ud83d", "½", "+1", "1,2", "-0", "9" * 5000,
              "nan", "∞", "１", "\0", "a:b", "=", "''", "[]", "{", "None", "true")  # fmt: skip
    for verb in (
        ("explain", "text"),
        ("compare",),
        ("check",),
        ("heads",),
        ("recommend",),
        ("attention",),
        ("capture",),
    ):
        for option in (
            "--target",
            "--seed",
            "--batch-size",
            "--method",
            "--out",
            "--layer",
            "--head",
            "--top",
            "-o",
            "-m",
        ):
            for value in values:
                for arguments in ((option, value), (f"{option}={value}",)):
                    line = (*verb, "i like it", *model, *arguments)
                    yield Call("lines", " ".join(map(named, line)), partial(run_command, line), either=True)
    for value in values:
        for verb in (
            ("explain", "text"),
            ("compare",),
            ("explain", "image"),
            ("explain", "table"),
            ("tcav",),
            ("batch",),
        ):
            line = (*verb, value, *model)
            yield Call("lines", " ".join(map(named, line)), partial(run_command, line), either=True)


def posts(stage: Any) -> Iterator[Call]:
    """Questions to the server, as JSON: every field of a good one with every value that JSON can hold."""
    from tests.serve.served import asked, client, served

    whole = served("text", "language", "table")
    stage.doors.callback(whole.jobs.close)
    ask = client(whole, raise_server_exceptions=True)
    text, row = asked("text"), {"model": "table", "input": {"row": {"age": 39, "workclass": "Private"}}, "wait": 60}
    prompt = asked("language", generate=1)
    whole_numbers = "1" + "0" * 400
    values = (
        "null", "true", "3", "-1", "1.5", "1e400", "NaN", "-Infinity", whole_numbers, '""', '" "', '"\\ud83d"',
        '"\\u0000"', '"\\u202e"', '"²"', "[]", "[null]", "{}", '{"": 1}', '{"\\ud83d": "\\ude00"}', "[[[[1]]]]",
        '"--5"', "[" * 500 + "]" * 500, '"' + "a" * 30_000 + '"',
    )  # fmt: skip
    for question in (text, row, prompt):
        for place in _places(question):
            for value in values:
                body = json.dumps(_replaced(question, place, "\0")).replace(json.dumps("\0"), value)
                words = f"POST /api/explain {'.'.join(map(str, place))}={value[:30]}"
                yield Call("posts", words, partial(_posted, ask, "/api/explain", body.encode()), either=True)
    for path in ("/api/explain", "/api/compare", "/api/predict", "/api/heads", "/api/trust"):
        for body in (b"", b"{", b"\xff\xfe", b"\x00" * 9, *(value.encode() for value in values)):
            yield Call("posts", f"POST {path} {body[:30]!r}", partial(_posted, ask, path, body), either=True)


def _places(plain: Any, place: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Every field, and every field of a field; two that the question does not have yet."""
    if isinstance(plain, dict):
        extra = () if place else ("target", "options", "method", "units", "seed")
        for key in (*plain, *extra):
            yield (*place, key)
            yield from _places(plain.get(key), (*place, key))


def _posted(client: Any, path: str, body: bytes) -> Any:
    from whyformer.errors import WhyformerError

    reply = client.post(path, content=body, headers={"content-type": "application/json"})
    if reply.status_code >= 500:
        raise RuntimeError(f"{reply.status_code}: {reply.text}")
    for entry in [reply.json()] if reply.status_code < 400 else []:
        failed = json.dumps(entry)
        if '"status": "failed"' in failed and "Error" in failed and "BadInput" not in failed:
            raise RuntimeError(failed[:300])
    if reply.status_code >= 400:
        raise WhyformerError(reply.text)
    return reply


HOSTILE: dict[str, Callable[[Any], Iterator[Call]]] = {
    "texts": texts, "tensors": tensors, "outputs": outputs, "configs": configs, "pictures": pictures, "cells": cells,
    "objects": any_object, "signatures": signatures, "layouts": layouts, "saved": saved, "lines": lines, "posts": posts,
}  # fmt: skip
