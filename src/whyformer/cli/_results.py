"""Print results, and write them to files and reports."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from whyformer.brief import as_symbols, escaped_json
from whyformer.cli._input import DATA, PICTURES, options_from

if TYPE_CHECKING:
    from whyformer.cli._options import CommandArguments
    from whyformer.results.types import Explanation

WHY = "Why did the model say that?"
PER_INPUT = {"image": "images", "title": "titles", "others": "others"}  # option of one picture → list for all


def print_json(plain: Any) -> None:
    """Print JSON; control characters are written as JSON escapes, since stdout may be a terminal."""
    typer.echo(escaped_json(json.dumps(plain, ensure_ascii=False, indent=1)))


def say_written(*paths: Path) -> None:
    """Name written files on stderr, so that a pipe gets the result only."""
    for path in paths:
        typer.echo(as_symbols(f"wrote {path}"), err=True)


def deliver(result: Any, asked: CommandArguments, plain: Any = None, **drawn: Any) -> None:
    """Print a result, or its JSON with --json, and write --out; the same for several inputs, a row of results each.

    ``plain``: what --json prints instead of one whole result.
    """
    if type(result) is list:  # a Generation is a list, too
        _deliver_rows(result, asked, **drawn)
        return
    if asked.json:
        print_json(result.to_dict() if plain is None else plain)
    else:
        result.show(**drawn)
    if asked.out is not None:
        say_written(result.save(asked.out, **(drawn if asked.out.suffix in PICTURES else {})))


def _deliver_rows(
    rows: list[list[Any]],
    asked: CommandArguments,
    views: list[Any] | None = None,
    names: list[str] | None = None,
    title: str = WHY,
    **drawn: Any,
) -> None:
    """Write one HTML page, one picture per input (``views``, if given), or one data file per result.

    ``names``: of files, for rows of one result. ``drawn``: options of pictures; PER_INPUT are lists.
    """
    from whyformer.views import page, side_by_side, view_of

    if asked.json:
        print_json([result.to_dict() for row in rows for result in row])
        if asked.out is None:
            return
    if views is None:
        views, shared = [], drawn.pop("shared", False)
        lists = {name: drawn.pop(plural, None) for name, plural in PER_INPUT.items()}
        for i, row in enumerate(rows):
            options = {name: values[i] for name, values in lists.items() if values} | drawn
            views.append(view_of(row[0], **options) if len(row) == 1 else side_by_side(row, shared=shared, **options))
    for view in [] if asked.json else views:
        view.show()
    if asked.out is None:
        return
    if asked.out.suffix == ".html":
        say_written(page(views, title).save(asked.out))
        return
    if asked.out.suffix not in DATA:
        files = [*zip(names or map(str, range(1, len(views) + 1)), views, strict=True)]
    elif names is not None:
        files = [(name, row[0]) for name, row in zip(names, rows, strict=True)]
    else:
        files = [(f"{i}-{result.method}", result) for i, row in enumerate(rows, 1) for result in row]
    for name, each in files:
        out = asked.out if len(files) == 1 else asked.out.with_name(f"{asked.out.stem}-{name}{asked.out.suffix}")
        say_written(each.save(out))


def _by_method(explained: Any) -> list[Any]:
    return list(explained.values()) if isinstance(explained, dict) else [explained]


def per_input(explained: Any) -> list[list[Explanation]]:
    """Return, per input, one explanation per method."""
    rows: list[list[Explanation]] = []
    for row in zip(*_by_method(explained), strict=True):
        # An input can give several: one per written token, or per detected object.
        rows += [list(r) for r in zip(*row, strict=True)] if isinstance(row[0], list) else [list(row)]
    return rows


def repeated(explained: Any, values: list[Any]) -> list[Any]:
    """Repeat a value per input for each of the input's explanations."""
    counts = [len(one) if isinstance(one, list) else 1 for one in _by_method(explained)[0]]
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


CHEAP = 4  # passes, at most, of a method that also explains other classes for a saved page


def next_classes(explainer: Any, raw: Any, explained: Any, asked: CommandArguments) -> list[Any] | None:
    """Explain, per input, the prediction against the next classes: a saved page cannot compute them later."""
    if asked.out is None or asked.out.suffix != ".html" or asked.settings["target"] is not None:
        return None
    from whyformer.registry import get_method
    from whyformer.reports.report import contrasts

    def ask(method: str, targets: list[Any]) -> Any:
        names = {"scalar", "batch_size", "memory", "seed", "units", *get_method(method).options}
        fitting = {name: value for name, value in asked.settings.items() if name in names}
        return explainer.explain(raw, method=method, target=targets, progress=False, **fitting)

    by_method = _by_method(explained)
    others: list[list[Explanation]] = [[] for _ in by_method[0]]
    for explanations in by_method:
        first = explanations[0]
        if isinstance(first, list) or first.cost.forwards + first.cost.backwards > CHEAP:
            continue
        for number, answers in enumerate(contrasts(partial(ask, first.method), explanations) or ()):
            others[number] += answers
    return others if any(others) else None


REPORTED = ("target", "scalar", "batch_size", "seed", "units")


def deliver_report(explainer: Any, raw: Any, asked: CommandArguments) -> None:
    """Write the report of --report. Several methods are compared with each other, one with the usual ones."""
    if asked.report is None:
        return
    from whyformer.registry import get_method
    from whyformer.reports.report import usual_methods

    settings, arguments = options_from(asked.option or []), asked.settings
    shared = {name: arguments[name] for name in REPORTED if name in arguments}
    usual = usual_methods(explainer.source(raw).modality.kind)
    methods = asked.method or (usual[:1] if settings else [])
    if not methods:
        say_written(explainer.report(raw, **shared).save(asked.report))
        return
    named: list[Any] = []
    for name in methods:  # with several methods, an option goes to those that have it
        of_method = {k: v for k, v in settings.items() if k in get_method(name).options and k != "hold"}
        named.append({"method": name, **of_method} if of_method else name)
    named += [name for name in usual if name not in methods] if len(named) < 2 else []
    shared["hold"] = settings.get("hold")  # the evaluation holds the same
    say_written(explainer.report(raw, method=named, **shared).save(asked.report))


def seen_by(explainer: Any, images: list[Any], main: str = "") -> list[Any]:
    """Return the images as the model received them (resized, cropped), so that patches are in place."""
    from whyformer.views.image_marks import unnormalized

    modality, batch, _ = explainer.prepare(images)
    processor = getattr(explainer.processor, "image_processor", explainer.processor)
    mean, std = getattr(processor, "image_mean", None), getattr(processor, "image_std", None)
    if not getattr(processor, "do_normalize", True):
        mean = std = None
    pictures, masks = batch.tensors[main or modality.main], batch.tensors.get("pixel_mask")
    if masks is not None and masks.ndim == 3:  # smaller images were padded at the right and bottom
        sizes = [(int(m.any(1).sum()), int(m.any(0).sum())) for m in masks]
        pictures = [pixels[:, :high, :wide] for pixels, (high, wide) in zip(pictures, sizes, strict=True)]
    return [unnormalized(pixels.float().cpu().numpy(), mean, std) for pixels in pictures]


def written(explained: Any) -> list[Any] | None:
    """Return one source × target view per input for one method on an encoder-decoder, instead of one per token."""
    if isinstance(explained, dict) or not explained or not isinstance(explained[0], list):
        return None
    from whyformer.views.several import steps_view

    return [steps_view(steps) for steps in explained]
