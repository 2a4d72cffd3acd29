"""The options of all commands, each declared once, and the models that commands load."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_type_hints

import typer

from whyformer.cli._input import DATA, PICTURES, check_out, number_or_word, options_from, target_from
from whyformer.errors import BadInput
from whyformer.files.paths import quiet
from whyformer.inputs.checkpoint import PROCESSORS, Checkpoint, is_image_model, kind_of
from whyformer.inputs.families import task_of

REQUIRED = inspect.Parameter.empty
TEXT_UNITS = ("token", "word", "sentence", "role")


def known_methods(value: Any) -> Any:
    """Refuse unknown methods before a model is loaded."""
    from whyformer.registry import get_method

    for name in [value] if isinstance(value, str) else value or []:
        get_method(name)
    return value


def known_units(value: str) -> str:
    """Refuse units that texts do not have."""
    if value not in TEXT_UNITS:
        raise typer.BadParameter(f"{value!r} is none of token, word, sentence and role", param_hint="--units")
    return value


def _writable(endings: tuple[str, ...], flag: str = "--out") -> Callable[[Any], Any]:
    def check(value: Any) -> Any:
        check_out(value, endings, flag)
        return value

    return check


def _option(kind: Any, *flags: str, default: Any = None, **settings: Any) -> tuple[Any, Any]:
    """Annotation and default of a parameter."""
    return Annotated[kind, typer.Option(*flags, **settings)], default


def _file(flag: str, words: str, endings: tuple[str, ...]) -> tuple[Any, Any]:
    written = {"dir_okay": False, "metavar": "FILE", "callback": _writable(endings, flag)}
    return _option(Path | None, flag, help=words, **written)


_model = partial(_option, str | None, "--model", metavar="NAME")
_method = partial(_option, list[str] | None, "--method", "-m", metavar="NAME", callback=known_methods)
_one_method = partial(_option, str | None, "--method", "-m", metavar="NAME")
_target = partial(_option, str | None, "--target", "-t", metavar="CLASS", show_default="the prediction")
_seed = partial(_option, int, "--seed", default=0, metavar="N")
_json = partial(_option, bool, "--json", default=False)
_passes = partial(_option, int | None, "--batch-size", min=1, metavar="N")
_FOLDER = "Folder or hub name."

# Parameter name → annotation and default. What follows a stroke tells apart options that commands word differently.
OPTIONS: dict[str, tuple[Any, Any]] = {
    "inputs": (
        Annotated[
            list[str] | None,
            typer.Argument(
                metavar="TEXT...", help="Texts (image files for an image model); '-' reads lines from stdin."
            ),
        ],
        None,
    ),
    "file": _option(
        Path | None, "--file", "-f", exists=True, dir_okay=False, metavar="FILE", help="Read one text per line."
    ),
    "model": _model(help=_FOLDER, show_default="the shipped sentiment model"),
    "model/given": _option(str, "--model", default=REQUIRED, metavar="NAME", help=_FOLDER),
    "model/language": _option(
        str, "--model", default=REQUIRED, metavar="NAME", help="Folder or hub name of a language model."
    ),
    "model/image": _model(
        help="Folder or hub name of an image classifier or detector.", show_default="the shipped model of cats and dogs"
    ),
    "model/textures": _model(help=_FOLDER, show_default="the shipped texture model"),
    "model/table": _model(
        help="A folder (tables.save_model), or module:function (or file.py:function) that returns model and Table.",
        show_default="the shipped census model",
    ),
    "model/attention": _model(
        help=_FOLDER, show_default="the shipped sentiment model; for colours, that of cats and dogs"
    ),
    "model/batch": _model(
        help="Folder or hub name; of a table, also file.py:function that returns model and Table.",
        show_default="the shipped sentiment model",
    ),
    "trust_remote_code": _option(
        bool,
        "--trust-remote-code",
        default=False,
        help="Run code that comes with the model. Read it first.",
        show_default=False,
    ),
    "answer": _option(
        str | None, "--answer", metavar="TEXT", help="Explain this answer.", show_default="what the model answers"
    ),
    "method": _method(help="A method; repeat for several. See: whyformer methods", show_default="the modality's own"),
    "method/compare": _method(help="A method; repeat for several.", show_default="all"),
    "method/recommend": _method(help="A method that stands too; repeat.", show_default="all"),
    "method/check": _one_method(help="Whose explanations are checked.", show_default="the default method"),
    "method/ask": _one_method(help="See: whyformer methods", show_default="the one for texts", callback=known_methods),
    "target": _target(help="Class, by name or index."),
    "target/explain": _target(help="Class to explain, by name or index."),
    "target/token": _target(metavar="TOKEN", help="Token to explain."),
    "target/tcav": _target(help="Class, by name or index.", show_default=False),
    "versus": _option(str | None, "--versus", metavar="CLASS", help="Explain the target rather than this class."),
    "versus/token": _option(str | None, "--versus", metavar="TOKEN", help="Explain the target rather than this token."),
    "scalar": _option(
        str, "--scalar", default="logit", metavar="NAME", help="What is explained: logit, log_odds or probability."
    ),
    "option": _option(
        list[str] | None,
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="An option of the method, e.g. heads=max; repeatable.",
    ),
    "option/maximize": _option(
        list[str] | None,
        "--option",
        "-o",
        metavar="KEY=VALUE",
        help="An option of activation_maximization, e.g. jitter=8; repeatable.",
    ),
    "layer": _option(str | None, "--layer", "-l", metavar="LAYER", help="Attention block by number, or module name."),
    "layer/mean": _option(
        str | None, "--layer", "-l", metavar="LAYER", help="Attention block by number, or module name; its mean."
    ),
    "units": _option(
        str,
        "--units",
        default="token",
        metavar="UNIT",
        help="What gets a score: token, word or sentence.",
        callback=known_units,
    ),
    "replace": _option(
        str | None,
        "--replace",
        metavar="WHAT",
        help="What stands for absent parts: mask, unk, pad, delete, resample; mean, zero, blur, grey, black.",
        show_default="the first that the model has",
    ),
    "hold": _option(
        list[str] | None,
        "--hold",
        metavar="PART",
        help="Always there, such as the question of a prompt: its text, or a number (-1: the last unit); repeatable.",
    ),
    "batch_size": _passes(help="Inputs per pass.", show_default="16"),
    "batch_size/rows": _passes(help="Rows per pass.", show_default="32, 256 on a GPU"),
    "memory": _option(
        str,
        "--memory",
        default="auto",
        metavar="WAY",
        help="Attention maps: full (stored), fold (never), or as fits.",
    ),
    "seed": _seed(help="Seed of what is drawn at random."),
    "seed/explain": _seed(help="Seed of methods that draw at random."),
    "cache": _option(
        Path | None, "--cache", file_okay=False, metavar="FOLDER", help="Keep results here; a stopped job goes on."
    ),
    "own_scale": _option(bool, "--own-scale", default=False, help="With several methods: a colour scale for each."),
    "out": _file("--out", "Write .html, .png, .svg, .pdf, .json or .npz.", (*PICTURES, *DATA)),
    "out/explain": _file("--out", "Write a file too: .html, .png, .svg, .json or .npz.", (*PICTURES, *DATA)),
    "out/compare": _file("--out", "Write .html, .png, .svg or .json.", (*PICTURES, ".json")),
    "out/check": _file("--out", "Write a file too: .html, .png, .svg or .json.", (*PICTURES, ".json")),
    "out/attention": _file("--out", "Write .html, .png, .svg, .pdf or .json.", (*PICTURES, ".json")),
    "report": _file(
        "--report", "Write a report too (.html): methods compared and checked on these inputs.", (*PICTURES, ".json")
    ),
    "json": _json(help="Print JSON."),
    "json/explain": _json(help="Print JSON instead of pictures."),
}
AS_GIVEN = ("scalar", "batch_size", "memory", "seed", "units", "cache")


class CommandArguments(SimpleNamespace):
    """The values of the options that a command takes from OPTIONS, by parameter name."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        # Options of the Python functions, by the names they have there.
        self.settings: dict[str, Any] = {name: given[name] for name in AS_GIVEN if name in given}
        if "target" in given:
            self.settings["target"] = target_from(self.target, given.get("versus"))
        if "replace" in given:
            self.settings["replace"] = None if self.replace is None else number_or_word(self.replace)
        if "hold" in given:
            self.settings["hold"] = [number_or_word(part) for part in self.hold or []] or None
        self.settings |= options_from(given.get("option") or [])

    def explain(self, explainer: Any, inputs: Any) -> Any:
        """Explain inputs by the methods of --method, or the default one."""
        return explainer.explain(inputs, method=self.method or None, **self.settings)

    def explainer(self, kind: str) -> Any:
        """Load the model of --model for a kind of command."""
        from whyformer.verbs import Explainer

        return Explainer(*self.load(kind))

    def load(self, kind: str) -> tuple[Any, Any]:
        """Load the model of --model and its processor."""
        return load(kind, self.model, self.trust_remote_code)

    def load_any(self, shipped: str = "text") -> tuple[Any, Any, str]:
        """Load the model of --model, else a shipped one: model, processor, and what it takes."""
        if self.model is None:
            return *load(shipped, None), "text" if shipped == "text" else "image"
        return load_any(self.model, self.trust_remote_code)

    def load_with_inputs(self, command: str, demo: bool = True) -> tuple[Any, Any, list[Any]]:
        """Model, processor, inputs; ``demo``: without texts, the sentences of the demo."""
        from whyformer.cli._input import inputs_from

        model, processor, kind = self.load_any()
        return model, processor, inputs_from(self.inputs or [], self.file, kind, command, demo)


def takes(names: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command options of OPTIONS, in this order; it gets their values as its first argument, an ``Asked``.

    Parameters of its own stand where their names do, or else in front.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        own = {name: (hints[name], p.default) for name, p in [*inspect.signature(function).parameters.items()][1:]}
        declared = {key.partition("/")[0]: own.get(key) or OPTIONS[key] for key in names.split()}
        declared = {name: own[name] for name in own if name not in declared} | declared
        shared = [name for name in declared if name not in own]

        @wraps(function)
        def command(**values: Any) -> None:
            function(CommandArguments(**{name: values.pop(name) for name in shared}), **values)

        command.__annotations__ = {name: hint for name, (hint, _) in declared.items()}
        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
            for name, (hint, default) in declared.items()
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        del command.__wrapped__  # type: ignore[attr-defined]  # inspect and typer would look through it
        return command

    return decorate


# Models by name: loaded (inputs/checkpoint.py), and refused where the command is for another kind.

SHIPPED = {"text": "load_sentiment", "image": "load_pets", "textures": "load_textures"}
PROCESSOR = {"image": ("AutoImageProcessor", "image processor"), "pair": ("AutoProcessor", "processor")}
TOKENIZER = ("AutoTokenizer", "tokenizer")  # of all other kinds
MISFITS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (  # kind of command, models it cannot use, and why
    ("text", is_image_model, "is a model of images: use 'whyformer explain image'."),
    ("image", lambda model: not is_image_model(model), "is no model of images: use 'whyformer explain text'."),
    (
        "sound",
        lambda model: kind_of(model) != "sound",
        "is no model of sound: use 'whyformer explain text' or 'image'.",
    ),
    (
        "pair",
        lambda model: kind_of(model) == "regions",
        "reads vectors of image regions, which a detector makes. In Python: "
        "whyformer.explain(model, ({'visual_feats': …, 'visual_pos': …}, text), processor=tokenizer).",
    ),
    (
        "pair",
        lambda model: kind_of(model) != "pair",
        "is no model of images with texts: use 'whyformer explain text' or 'image'.",
    ),
    (
        "language",
        lambda model: not task_of(model).endswith(("ForCausalLM", "LMHeadModel")),
        "is a MODEL, no language model that writes: use 'whyformer explain text', or the command for what it takes.",
    ),
    (
        "encoder",
        lambda model: not _compares_texts(model),
        "is a MODEL: it has a head, and would be asked about both texts together, not how alike they are. Give an "
        "encoder without a head (a SentenceTransformer, or what AutoModel.from_pretrained(…).save_pretrained(…) "
        "writes); what a classifier of pairs says is explained in Python, whyformer.explain(model, (first, second), "
        "processor=tokenizer).",
    ),
)


def load(kind: str, name: str | None, trusted: bool = False) -> tuple[Any, Any]:
    """Model and processor for a kind of command; a shipped model if ``name`` is None.

    "encoder": a model whose token vectors are averaged, or the SentenceTransformer that the folder holds.
    """
    if name is None:
        from whyformer import demo

        return getattr(demo, SHIPPED[kind])()
    checkpoint = _checkpoint(name, trusted)
    with quiet():
        if kind == "encoder" and checkpoint.pools_its_own_way:
            return checkpoint.sentence_transformer(), None
        model = checkpoint.model(headless=kind in ("pair", "encoder"))
        for command, unusable, words in MISFITS:
            if command == kind and unusable(model):
                raise BadInput(f"{name!r} {words.replace('MODEL', type(model).__name__)}")
        if kind == "sound":
            return model, checkpoint.sound_processor()
        return model, checkpoint.processor(*PROCESSOR.get(kind, TOKENIZER))


def _compares_texts(model: Any) -> bool:
    from whyformer.inputs.families import compares_texts

    return compares_texts(model, ("", ""))


def load_any(name: str, trusted: bool = False, pickles: bool = True) -> tuple[Any, Any, str]:
    """Model, processor, and what it takes: "text", "image", "pair", "regions" or "sound".

    ``pickles=False``: weights are read from safetensors files, and from nothing else.
    """
    checkpoint = _checkpoint(name, trusted)
    with quiet():
        model = checkpoint.model(headless=True, pickles=pickles)
        kind = kind_of(model)
        if not kind:
            raise BadInput(
                f"{name!r} takes {model.main_input_name}: the command line knows text, image and sound models. In "
                "Python, pass the model's own tensors: whyformer.Explainer(model).study(tensors)."
            )
        if kind == "sound":
            return model, checkpoint.sound_processor(), kind
        return model, checkpoint.processor(PROCESSORS[kind], "processor"), kind


def _checkpoint(name: str, trusted: bool) -> Checkpoint:
    return Checkpoint(name, trusted, to_trust="add --trust-remote-code", called="--model")
