"""What the sub-commands of ``whyformer explain`` share: their options, and what becomes of what was found."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from whyformer.brief import as_symbols, escaped_json
from whyformer.cli._input import DATA, PICTURES, check_out, options_from

if TYPE_CHECKING:
    from whyformer.results.types import Explanation


# Writing what was found: to the terminal, as JSON, or to files.

Results = list[list["Explanation"]]  # per input, one per method


def print_json(plain: Any, indent: int | None = 1) -> None:
    """JSON on stdout, which may be a terminal: what would steer it is written as JSON's own escapes."""
    typer.echo(escaped_json(json.dumps(plain, ensure_ascii=False, indent=indent)))


def plain_of(results: Results) -> list[dict[str, Any]]:
    """One object per input and method, as ``Explanation.save("x.json")`` writes it."""
    return [e.to_dict() for row in results for e in row]


def views_of(
    results: Results,
    *,
    images: list[Any] | None = None,
    titles: list[str] | None = None,
    by: str = "token",
    shared: bool = True,
    detail: bool = False,
    others: list[Any] | None = None,
) -> list[Any]:
    """One view per input: a single explanation in full, several side by side."""
    from whyformer.views import side_by_side, view_of

    views = []
    for i, row in enumerate(results):
        options: dict[str, Any] = {
            "image": images[i] if images else None,
            "title": titles[i] if titles else "",
            "by": by,
        }
        options |= {"detail": detail, "others": others[i] if others else ()}
        views.append(view_of(row[0], **options) if len(row) == 1 else side_by_side(row, shared=shared, **options))
    return views


def write(results: Results, views: list[Any], out: Path, title: str) -> list[Path]:
    """One HTML page for everything; one picture per input; one data file per explanation."""
    from whyformer.views import page

    if out.suffix == ".html":
        return [page(views, title).save(out)]
    if out.suffix in DATA:
        explanations = [(f"{i + 1}-{e.method}", e) for i, row in enumerate(results) for e in row]
        return [e.save(_numbered(out, name, len(explanations))) for name, e in explanations]
    return [view.save(_numbered(out, str(i + 1), len(views))) for i, view in enumerate(views)]


def _numbered(out: Path, name: str, count: int) -> Path:
    return out if count == 1 else out.with_name(f"{out.stem}-{name}{out.suffix}")


def say_written(paths: list[Path]) -> None:
    """On stderr, so that a pipe gets the result only."""
    for path in paths:
        typer.echo(as_symbols(f"wrote {path}"), err=True)


def deliver_results(results: list[Any], out: Path | None, as_json: bool) -> None:
    """Print results of one input, one per method, and write them: one page, or numbered files."""
    from whyformer.views import page

    if len(results) == 1:
        deliver_result(results[0], out, as_json)
        return
    if as_json:
        print_json([result.to_dict() for result in results])
    for result in [] if as_json else results:
        result.show()
    if out is not None and out.suffix == ".html":
        say_written([page([result.view() for result in results], "Why did the model say that?").save(out)])
    elif out is not None:
        say_written([r.save(_numbered(out, r.method, len(results))) for r in results])


def deliver_result(result: Any, out: Path | None, as_json: bool) -> None:
    """Print a result that can show and save itself, and write the file that was asked for."""
    if as_json:
        print_json(result.to_dict())
    else:
        result.show()
    if out is not None:
        result.save(out)
        say_written([out])


Methods = Annotated[
    list[str] | None,
    typer.Option(
        "--method",
        "-m",
        metavar="NAME",
        help="A method; repeat for several. See: whyformer methods",
        show_default="the modality's own",
    ),
]
TargetName = Annotated[
    str | None,
    typer.Option(
        "--target", "-t", metavar="CLASS", help="Class to explain, by name or index.", show_default="the prediction"
    ),
]
Versus = Annotated[
    str | None, typer.Option("--versus", metavar="CLASS", help="Explain the target rather than this class.")
]
Scalar = Annotated[
    str, typer.Option("--scalar", metavar="NAME", help="What is explained: logit, log_odds or probability.")
]
Options = Annotated[
    list[str] | None,
    typer.Option("--option", "-o", metavar="KEY=VALUE", help="An option of the method, e.g. heads=max; repeatable."),
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, metavar="N", help="Inputs per pass.", show_default="16")
]
MemoryWay = Annotated[
    str, typer.Option("--memory", metavar="WAY", help="Attention maps: full (stored), fold (never), or as fits.")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of methods that draw at random.")]
OwnScale = Annotated[bool, typer.Option("--own-scale", help="With several methods: a colour scale for each.")]
Out = Annotated[
    Path | None,
    typer.Option("--out", dir_okay=False, metavar="FILE", help="Write a file too: .html, .png, .svg, .json or .npz."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON instead of pictures.")]
ReportFile = Annotated[
    Path | None,
    typer.Option(
        "--report",
        dir_okay=False,
        metavar="FILE",
        help="Write a report too (.html): methods compared and checked on these inputs.",
    ),
]


def asked(
    out: Path | None, option: list[str] | None, method: list[str] | None, report: Path | None = None, **arguments: Any
) -> dict[str, Any]:
    """What ``explain`` is asked for; names and files that cannot be are refused before a model is loaded."""
    from whyformer.registry import get_method

    check_out(out)
    check_out(report, (*PICTURES, ".json"), hint="--report")
    settings = options_from(option or [])
    for name in method or []:
        get_method(name)
    return {**arguments, **settings}


def per_input(explained: Any) -> list[list[Explanation]]:
    """What Explainer gave for a list of inputs → per input, one explanation per method."""
    per_method = list(explained.values()) if isinstance(explained, dict) else [explained]
    rows: list[list[Explanation]] = []
    for row in zip(*per_method, strict=True):
        # An input can give several: one per written token, or per detected object.
        rows += [list(r) for r in zip(*row, strict=True)] if isinstance(row[0], list) else [list(row)]
    return rows


def repeated(explained: Any, values: list[Any]) -> list[Any]:
    """One value per input → one per explanation."""
    explanations = next(iter(explained.values())) if isinstance(explained, dict) else explained
    counts = [len(one) if isinstance(one, list) else 1 for one in explanations]
    return [value for value, count in zip(values, counts, strict=True) for _ in range(count)]


def deliver(
    results: list[list[Explanation]], out: Path | None, json: bool, views: list[Any] | None = None, **arguments: Any
) -> None:
    """Print, and write the file that was asked for. ``views``: pictures to show in place of one per input."""

    if json:
        print_json(plain_of(results))
        if out is None:
            return
    views = views_of(results, **arguments) if views is None else views
    if not json:
        for view in views:
            view.show()
    if out is not None:
        say_written(write(results, views, out, "Why did the model say that?"))


CHEAP = 4  # passes of a method whose explanations of other classes are put on a page unasked


def next_classes(
    explainer: Any, raw: Any, explained: Any, out: Path | None, arguments: dict[str, Any]
) -> list[Any] | None:
    """Per input, why the prediction rather than the next classes: a page that cannot ask has them with it."""
    by_method = explained if isinstance(explained, dict) else {None: explained}
    if out is None or out.suffix != ".html" or arguments["target"] is not None:
        return None
    from whyformer.reports.report import contrasts

    others: list[list[Explanation]] = [[] for _ in next(iter(by_method.values()))]
    for explanations in by_method.values():
        first = explanations[0]
        if isinstance(first, list) or first.cost.forwards + first.cost.backwards > CHEAP:
            continue
        ask = partial(_towards, explainer, raw, first.method, arguments)
        for number, answers in enumerate(contrasts(ask, explanations) or ()):
            others[number] += answers
    return others if any(others) else None


def _towards(explainer: Any, raw: Any, method: str, arguments: dict[str, Any], targets: list[Any]) -> Any:
    """As it was asked for, with those of the options that this method has."""
    from whyformer.registry import get_method

    names = {"scalar", "batch_size", "memory", "seed", *get_method(method).options}
    fitting = {name: value for name, value in arguments.items() if name in names}
    return explainer.explain(raw, method=method, target=targets, progress=False, **fitting)


REPORTED = ("target", "scalar", "batch_size", "seed")


def deliver_report(
    explainer: Any,
    raw: Any,
    report: Path | None,
    method: list[str] | None,
    option: list[str] | None,
    arguments: dict[str, Any],
) -> None:
    """Write the report that was asked for. Several methods are compared with each other, one with the usual ones."""
    if report is None:
        return
    from whyformer.registry import get_method
    from whyformer.reports.report import usual_methods

    settings = options_from(option or [])
    usual = usual_methods(explainer.source(raw).modality.kind)
    if settings and not method:
        method = usual[:1]
    named: list[Any] = []
    for name in method or []:  # with several methods, an option goes to those that have it
        of_method = {k: v for k, v in settings.items() if k in get_method(name).options and k != "hold"}
        named.append({"method": name, **of_method} if of_method else name)
    named += [name for name in usual if name not in (method or [])] if len(named) < 2 else []
    shared = {name: arguments[name] for name in REPORTED} | {"hold": settings.get("hold")}  # the judge's, too
    result = explainer.report(raw, methods=named, **shared)
    say_written([result.save(report)])


def seen_by(explainer: Any, images: list[Any], main: str = "") -> list[Any]:
    """The images as the model saw them (resized, cropped), so that patches lie where they belong."""
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
    """For one method on an encoder-decoder: one source × target picture per input, in place of one per token."""
    if isinstance(explained, dict) or not explained or not isinstance(explained[0], list):
        return None
    from whyformer.views.several import steps_view

    return [steps_view(steps) for steps in explained]
