"""The options of all commands, each declared once, and the models that commands load."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from whyformer.cli import _input as read
from whyformer.cli._input import DATA, PICTURES, number_or_word
from whyformer.errors import BadInput
from whyformer.files import quiet
from whyformer.inputs.checkpoint import PROCESSORS, Checkpoint, is_image_model, kind_of
from whyformer.inputs.families import compares_texts, continues_text
from whyformer.options import Request, Writing, names_of

REQUIRED = inspect.Parameter.empty
ASKED = Request()  # the defaults of explain
CHECKS = (  # names of checks/check.py, whose import would slow down --help; a test compares them
    *("capture_audit", "faithfulness", "class_dependence", "randomisation", "invariance", "stability", "sinks"),
    *("jain_wallace", "serrano_smith", "wiegreffe_pinter"),
)
HEAD_RESULTS = ("importance", "roles", "layers", "pruning", "gates", "induction", "circuits")
ANSWER_LENGTH = 32  # tokens of an answer of ``whyformer ask``, unless --generate is given
SHIPPED_POOLING = "mean"  # the textures of the shipped model are spread over its tokens; wf.tcav has another default
SHIPPED_CLASS = "zebra-like"


def _known(kind: str) -> Callable[[Any], Any]:
    """Raise for unknown methods, or metrics, before a model is loaded."""

    def check(value: Any) -> Any:
        from whyformer import registry

        for name in [value] if isinstance(value, str) else value or []:
            getattr(registry, f"get_{kind}")(name)
        return value

    return check


def secret(value: str | None) -> str | None:
    """Read a secret from the file behind @: every user of the machine can read what stands on a command line."""
    if value is None or not value.startswith("@"):
        return value
    try:
        return Path(value[1:]).read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise typer.BadParameter(f"{value[1:]!r} cannot be read ({error})") from error


def _option(
    kind: Any, names: str, words: str, default: Any = None, shown: Any = None, **settings: Any
) -> tuple[Any, Any]:
    """Return annotation and default of an option; ``names``: its flags, then the name of its value in the help."""
    flags = [name for name in names.split() if name.startswith("-")]
    settings |= {"metavar": "".join(name for name in names.split() if not name.startswith("-")) or None}
    settings |= {} if shown is None else {"show_default": shown}
    return Annotated[kind | None if default is None else kind, typer.Option(*flags, help=words, **settings)], default


def _argument(kind: Any, metavar: str, words: str, default: Any = REQUIRED, shown: Any = None) -> tuple[Any, Any]:
    settings = {} if shown is None else {"show_default": shown}
    hint = kind | None if default is None else kind
    return Annotated[hint, typer.Argument(metavar=metavar, help=words, **settings)], default


def announced(model: str | None = None) -> str | None:
    """Write a line on a terminal before torch and the model are loaded, which takes seconds."""
    if sys.stderr.isatty():
        typer.echo("Loading the model …", err=True)
    return model


def _file(flag: str, words: str, endings: tuple[str, ...]) -> tuple[Any, Any]:
    return _option(
        Path, f"{flag} FILE", words, dir_okay=False, callback=lambda value: read.check_out(value, endings, flag)
    )


_READ: dict[str, Any] = {"exists": True, "dir_okay": False}
_FOLDER = "Folder or hub name."
_PREDICTION = "the prediction"
_text, _texts, _number, _path = (partial(_option, kind) for kind in (str, list[str], int, Path))
_flag = partial(_option, bool, default=False)
_model = partial(_text, "--model NAME", callback=announced, is_eager=True)  # before options whose checks import torch
_methods = partial(_texts, "--method -m NAME", callback=_known("method"))
_method = partial(_text, "--method -m NAME", callback=_known("method"), shown="the default method")
_secret = partial(_text, callback=secret)
_target = partial(_text, "--target -t CLASS", shown=_PREDICTION)


def _units(words: str, default: str, *names: str) -> tuple[Any, Any]:
    def check(value: str) -> str:
        if value not in names:
            raise typer.BadParameter(f"{value!r} is not one of {', '.join(names)}")
        return value

    return _text("--units UNIT", words, default, callback=check)


# Parameter name → annotation and default. The word after a slash distinguishes options of one name.
OPTIONS: dict[str, tuple[Any, Any]] = {
    # Inputs.
    "inputs": _argument(
        list[str], "TEXT...", "Texts (image files for an image model); '-' reads lines from stdin.", None
    ),
    "texts": _argument(list[str], "TEXT", "Texts; '-' reads one per line from stdin.", None),
    "pair": _texts("--pair TEXT", "Second text, for models of two texts (cross-encoders); repeatable."),
    "texts/pair": _argument(list[str], "TEXT", "Questions, captions or prompts about the image."),
    "text": _text("--text TEXT", "Text to run the model on.", "The quick brown fox jumps over the lazy dog"),
    "text/prompt": _argument(str, "TEXT", "The prompt; '-' reads it from stdin."),
    "run": _argument(Path, "RUN.JSON", "Messages of a run, or a dict with messages and tools."),
    "question": _argument(str, "QUESTION", "The question; '-' reads it from stdin."),
    "first": _argument(str, "TEXT", "A text."),
    "others": _argument(list[str], "OTHER", "Texts to compare it with."),
    "image": _path("--image FILE", "Image to run the model on.", shown="noise", **_READ),
    "image/prompt": _option(
        list[Path], "--image FILE", "An image of the prompt, for vision-language models; repeatable."
    ),
    "image/pair": _argument(Path, "IMAGE", "An image file."),
    "images": _argument(list[Path], "IMAGE", "Image files.", None, "a drawn cat and a drawn dog"),
    "clips": _argument(list[Path], "CLIP.WAV", "16-bit .wav files at the model's rate."),
    "rows": _argument(Path, "ROWS.CSV", "A CSV file with a header.", None, "40 rows of census data"),
    "row": _option(list[int], "--row -r N", "Row to explain, from 0; repeatable.", min=0),
    "overall": _flag("--overall", "Average over all rows instead."),
    "context": _path("--context TRAINING.CSV", "For in-context models: training rows with the table's target column."),
    "source": _argument(str, "INPUT", "A .csv, .tsv, .jsonl, .parquet or .txt file, or a folder of images."),
    "file": _path("--file -f FILE", "Read one text per line.", **_READ),
    "docs": _path("--docs FOLDER", "Answer from the .txt and .md files in here, with citations."),
    "system": _text("--system TEXT", "System message of the chat."),
    "name": _argument(str, "NAME", "Show one method with its options.", None),
    "name/metric": _argument(str, "NAME", "Show one metric with its options.", None),
    # The model.
    "model": _model(_FOLDER, shown="the shipped sentiment model"),
    "model/required": _model(_FOLDER, REQUIRED),
    "model/language": _model("Folder or hub name of a language model.", REQUIRED),
    "model/image": _model(
        "Folder or hub name of an image classifier or detector.", shown="the shipped model of cats and dogs"
    ),
    "model/textures": _model(_FOLDER, shown="the shipped texture model"),
    "model/table": _model(
        "Folder (tables.save_model), or module:function (or file.py:function) that returns model and Table.",
        shown="the shipped census model",
    ),
    "model/attention": _model(_FOLDER, shown="the shipped sentiment model; for colours, the model of cats and dogs"),
    "model/batch": _model(
        "Folder or hub name, or file.py:function that returns model and processor (Table).",
        shown="the shipped sentiment model",
    ),
    "model/serve": _texts(
        "--model NAME",
        "Folder or hub name, or file.py:function; repeatable.",
        shown="the shipped models",
    ),
    "trust_remote_code": _flag(
        "--trust-remote-code", "Run code that comes with the model. Read it first.", shown=False
    ),
    # The method, and the output that is explained.
    "method": _methods("Method, or the file of a learned one; repeatable. List: whyformer methods", shown="auto"),
    "method/compare": _methods("Method; repeatable. List: whyformer methods", shown="all"),
    "method/recommend": _methods("Method to choose from, besides attention aggregations; repeatable.", shown="all"),
    "method/check": _method("Method to check. List: whyformer methods"),
    "method/ask": _method("Method. List: whyformer methods"),
    "passes": _number(
        "--passes N",
        "Without --method: forwards per input, at most; a backward counts two, so 3 is one forward and one backward.",
        shown="128",
        min=1,
    ),
    "option": _texts("--option -o KEY=VALUE", "Option of the method, e.g. heads=max; repeatable."),
    "top": _number("--top N", "Sources of each step that are left out in turn, to verify them.", 1, min=1),
    "option/maximize": _texts("--option -o KEY=VALUE", "Option of activation_maximization, e.g. jitter=8; repeatable."),
    "target": _target("Class, by name or index."),
    "target/explain": _target("Class to explain, by name or index."),
    "target/token": _text("--target -t TOKEN", "Token to explain.", shown=_PREDICTION),
    "target/tcav": _text("--target -t CLASS", "Class, by name or index.", shown=False),
    "versus": _text("--versus CLASS", "Explain the target rather than this class."),
    "versus/token": _text("--versus TOKEN", "Explain the target rather than this token."),
    "scalar": _text("--scalar NAME", "Number to explain: centred, logit, log_odds or probability.", ASKED.scalar),
    "answer": _text("--answer TEXT", "Explain this answer.", shown="the model's own"),
    "answer/prompt": _text("--answer TEXT", "Explain this answer, token by token."),
    "generate": _number("--generate -g N", "Generate up to N tokens and explain each.", min=1),
    "generate/ask": _number("--generate -g N", "Longest answer, in tokens.", shown=str(ANSWER_LENGTH), min=1),
    "span": _flag("--span", "Explain the answer as a whole instead of each token."),
    "through": _text("--through PARTS", "Hand relevance of thoughts, a role or a text on to what produced them."),
    "hops": _number("--hops N", "With --through: passes for each part.", ASKED.hops, min=0, max=100),
    "choices": _text("--choices A,B", "Explain which of these comes next, e.g. yes,no."),
    "units": _units(
        "Features to score: token, word or sentence.", str(ASKED.units), "token", "word", "sentence", "role"
    ),
    "units/trace": _units("Sources: sentence, document or message.", "sentence", "sentence", "document", "message"),
    "units/table": _units(
        "Features to score: token (each column), or groups of columns that carry the same information.",
        str(ASKED.units),
        "token",
        "groups",
    ),
    "detail": _flag("--detail", "Show scores of single pixels if the method has them."),
    "one_scale": _flag("--one-scale", "With several methods: use one scale, shares of each method's total |score|."),
    "specials": _flag("--specials", "Show special tokens such as [CLS] and [SEP]."),
    # Evaluation.
    "metric": _texts(
        "--metric NAME", "Metric; repeatable. List: whyformer metrics", shown="five", callback=_known("metric")
    ),
    "replace": _text(
        "--replace WHAT",
        "Baseline of masked features. Text: mask, unk, pad, delete, resample. Images: mean, zero, blur, grey, black. "
        "Tables: rows, mean, zero.",
        shown="the first that the model supports",
    ),
    "hold": _texts(
        "--hold FEATURE",
        "Never mask this feature, e.g. the question of a prompt: its text or number (-1 is the last); repeatable.",
    ),
    "scope": _text("--scope SCOPE", "Choose one method for the dataset, per label or per instance.", "dataset"),
    "attention_only": _flag("--attention-only", "Choose among attention aggregations only."),
    "budget": _text("--budget COST", "Limit per explanation: forwards (20) or time (2s, 500ms)."),
    "checks": _texts("--checks -c NAME", f"Check; repeatable. One of: {', '.join(CHECKS)}.", shown="all"),
    "train": _path(
        "--train FILE",
        "Debate attention on text<TAB>label lines: shuffled, adversarial, and in copies of the model.",
        dir_okay=False,
    ),
    "epochs": _number("--epochs N", "With --train: epochs of training.", 3),
    # Attention maps and heads.
    "what/attention": _text(
        "--what WHAT",
        "map (one matrix), grid (every head), colours (heads over an image) or streams (self and cross).",
        shown="grid; with --layer or --head, map",
    ),
    "what/heads": _text("--what WHAT", f"One of: {', '.join(HEAD_RESULTS)}.", "importance"),
    "layer": _text("--layer -l LAYER", "Attention block by number, or module name."),
    "layer/mean": _text("--layer -l LAYER", "Maximize the mean of a layer: attention block by number, or module name."),
    "layer/number": _number("--layer -l N", "Attention layer by number; -1 is the last.", shown="-1"),
    "head": _text("--head HEAD", "Head by number, mean or max.", shown="mean"),
    "query": _number("--query N", "With colours: query position.", 0),
    "values": _flag("--values", "Write the weights into the cells (up to 400)."),
    "scale": _text(
        "--scale SCALE", "Colour scale: shared, free (one per map), full (0 to 1), or LOW,HIGH.", shown="shared"
    ),
    "kind": _text("--kind KIND", "Importance by gradient, confidence, relevance or ablation.", "gradient"),
    "per": _text("--per PER", "Take gradients per example, token or batch.", "example"),
    "normalize": _text("--normalize NAME", "Normalization: l2, minmax, l2_minmax or share."),
    "labels": _path(
        "--labels FILE", "Correct classes, one per line: for gates, and for the accuracy of pruning.", **_READ
    ),
    "order": _text("--order ORDER", "Pruning: order by importance (--kind), gates or random.", "importance"),
    "points": _number("--points N", "Pruning: points of the curve.", shown="all, 21", min=2),
    "penalty": _option(float, "--penalty COST", "Gates: penalty per open head.", 0.02),
    "steps/gates": _number("--steps N", "Gates: steps of training.", 200, min=1),
    # Concepts, and inputs that maximize an activation.
    "concept": _texts("--concept -c NAME=PATH", "Concept: folder of images, or file of texts; repeatable."),
    "random": _option(
        list[Path],
        "--random -r PATH",
        "Random set, or a folder of such sets; not needed with --relative.",
        exists=True,
    ),
    "inputs/tcav": _path("--inputs -i PATH", "Inputs of the target class.", exists=True),
    "relative": _flag("--relative", "Compare the concepts with each other."),
    "pooling": _text(
        "--pooling NAME", "Pooling of token vectors: cls, mean or flat.", shown=f"cls; shipped model: {SHIPPED_POOLING}"
    ),
    "classifier": _text("--classifier NAME", "Classifier: logistic or sgd.", "logistic"),
    "unit": _argument(str, "CLASS", "Class, by name or index.", None, f"shipped model: {SHIPPED_CLASS}"),
    "neuron": _number("--neuron -n N", "Maximize one neuron of the layer.", min=0),
    "position": _number("--position N", "Maximize the neuron at this token only.", min=0),
    "steps/maximize": _number("--steps N", "Optimization steps.", 256, min=1),
    "l2": _option(float, "--l2 LAMBDA", "Images: penalty LAMBDA·‖x‖².", 1e-4),
    "tv": _option(float, "--tv LAMBDA", "Images: penalty LAMBDA·TV(x).", 1e-4),
    # Datasets.
    "column": _texts("--column -c NAME", "Column that holds the input; twice for a pair of texts."),
    "key": _text("--key NAME", "Column with the names of rows."),
    "target_column": _text("--target-column NAME", "Column with the target of each row."),
    "too_long": _text("--too-long WHAT", "Texts longer than the model allows: error or cut.", "error"),
    "part_rows": _number("--part-rows N", "Rows per file.", shown="512", min=1),
    "batch_tokens": _number("--batch-tokens N", "Positions per pass.", shown="1024, 16384 on a GPU", min=1),
    "engine": _text("--engine NAME", "Engine: local, or ray (a Ray cluster).", "local"),
    "workers": _number(
        "--workers N",
        "Worker processes, each with a copy of the model.",
        shown="1; with ray one per GPU, or per CPU",
        min=1,
    ),
    "forwards": _number("--forwards N", "Masked variants of inputs to learn from, about.", 20_000, min=500),
    "linear": _flag("--linear", "Learn weights of attention heads only, and show them."),
    "address": _text("--address ADDRESS", "Address of a running Ray cluster.", shown="start a local one"),
    # The server.
    "learned": _texts(
        "--learned FILE", "Learned method to offer (whyformer learn); repeatable.", callback=_known("method")
    ),
    "port": _number("--port N", "Port; 0 selects a free one.", 8765, min=0, max=65535),
    "host": _text("--host ADDRESS", "Address to listen on. Non-local addresses require a token.", "127.0.0.1"),
    "store": _path("--store FILE", "Database of results.", Path("whyformer.sqlite")),
    "token": _secret(
        "--token WORD",
        "Require this token; @FILE reads it from a file.",
        envvar="WHYFORMER_TOKEN",
        shown="generated if needed",
    ),
    "server": _text("--server URL", "Server to pass requests on to, with OpenAI's API.", REQUIRED),
    "model/proxy": _model(
        "Folder or hub name of a language model that explains the answers.", shown="log-probabilities of the server"
    ),
    "all": _flag("--all", "Explain every chat completion.", shown="if the request has whyformer.cite"),
    "time_limit": _option(float, "--time-limit SECONDS", "Longest time for one explanation.", 30.0, min=0.001),
    "waiting": _number("--waiting N", "Answers that may wait for an explanation.", 8, min=1, max=1000),
    "longest": _number("--longest N", "Longest question, documents and answer, in characters.", 20_000, min=1),
    "key/server": _secret(
        "--key WORD",
        "Bearer token of the server; @FILE reads it from a file.",
        envvar="WHYFORMER_KEY",
        shown="that of the client",
    ),
    "trace": _flag("--trace", "Write an OpenTelemetry span per completion."),
    "trace_content": _flag("--trace-content", "With --trace: include texts in spans."),
    "port/proxy": _number("--port N", "Port; 0 selects a free one.", 8766, min=0, max=65535),
    "allow_models": _flag("--allow-models", "Let the page load models from the hub by name.", shown=False),
    # Execution.
    "batch_size": _number("--batch-size N", "Inputs per pass.", shown="16", min=1),
    "batch_size/rows": _number("--batch-size N", "Rows per pass.", shown="32, 256 on a GPU", min=1),
    "memory": _text("--memory WAY", "Attention maps: full (stored), fold (not stored) or auto.", ASKED.memory),
    "seed": _number("--seed N", "Random seed.", ASKED.seed),
    "cache": _path("--cache FOLDER", "Keep results in this folder; a stopped job resumes from it.", file_okay=False),
    "test": _option(bool, "--test/--no-test", "Explain a tiny model on every device.", True),
    # Output.
    "out": _file("--out", "Write .html, .png, .svg, .pdf, .json or .npz.", (*PICTURES, *DATA)),
    "out/explain": _file("--out", "Also write a file: .html, .png, .svg, .json or .npz.", (*PICTURES, *DATA)),
    "out/compare": _file("--out", "Write .html, .png, .svg or .json.", (*PICTURES, ".json")),
    "out/check": _file("--out", "Also write a file: .html, .png, .svg or .json.", (*PICTURES, ".json")),
    "out/attention": _file("--out", "Write .html, .png, .svg, .pdf or .json.", (*PICTURES, ".json")),
    "out/batch": _path("--out DIR", "New folder, or one to resume.", REQUIRED, file_okay=False),
    "out/demo": _path("--out FILE", "Page to write.", Path("whyformer-demo.html"), dir_okay=False),
    "out/learn": _file(
        "--out", "Write the method (.learned), or .html, .png, .svg, .json.", (".learned", *PICTURES, ".json")
    ),
    "report": _file(
        "--report", "Also write a report (.html): methods compared and checked on these inputs.", (*PICTURES, ".json")
    ),
    "json": _flag("--json", "Print JSON."),
    "json/explain": _flag("--json", "Print JSON instead of pictures."),
    "quiet": _flag("--quiet -q", "Hide progress and summary."),
    "log": _flag("--log", "Write progress as JSON lines to stderr; hide the summary."),
}
# Options that the Python functions have by the same name and with the same values.
SAME = (
    *(name for name in names_of(Writing) if name not in ("target", "choices", "passes")),
    *"cache l2 tv steps scope budget key target_column too_long".split(),
    *"part_rows batch_tokens engine workers address".split(),
)


class CommandArguments(SimpleNamespace):
    """The values of the options that a command takes from OPTIONS, by parameter name."""

    def __init__(self, **values: Any) -> None:
        super().__init__(**values)
        self.settings: dict[str, Any] = {name: values[name] for name in SAME if name in values}
        if "target" in values:
            target = None if self.target is None else number_or_word(self.target)
            versus = values.get("versus")
            self.settings["target"] = target if versus is None else (target, number_or_word(versus))
        if values.get("passes") is not None:
            self.settings["passes"] = self.passes
        if "replace" in values:
            self.settings["replace"] = None if self.replace is None else number_or_word(self.replace)
        if "hold" in values:
            self.settings["hold"] = [number_or_word(part) for part in self.hold or []] or None
        self.settings |= read.options_from(values.get("option") or [])

    def explain(self, explainer: Any, inputs: Any) -> Any:
        return explainer.explain(inputs, method=self.method or None, **self.settings)

    def explainer(self, kind: str) -> Any:
        from whyformer.verbs import Explainer

        return Explainer(*self.load(kind))

    def load(self, kind: str) -> tuple[Any, Any]:
        return load(kind, self.model, self.trust_remote_code)

    def load_any(self, shipped: str = "text", tables: bool = False) -> tuple[Any, Any, str]:
        """Load the model of --model, else a shipped one: model, processor, and the kind of its inputs."""
        if self.model is None:
            return *load(shipped, None), "text" if shipped == "text" else "image"
        return load_any(self.model, self.trust_remote_code, tables=tables)

    def load_with_inputs(self, command: str, demo: bool = True) -> tuple[Any, Any, list[Any]]:
        """Return model, processor and inputs; ``demo``: without texts, the sentences of the demo."""
        read.refuse_files(self.inputs or [], command)
        model, processor, kind = self.load_any()
        return model, processor, read.inputs_from(self.inputs or [], self.file, kind, command, demo)


def takes(names: str) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Add options of OPTIONS to a command, in this order; it receives their values as one CommandArguments."""
    declared = {key.partition("/")[0]: OPTIONS[key] for key in names.split()}

    def decorate(function: Callable[[Any], None]) -> Callable[..., None]:
        def command(**values: Any) -> None:
            function(CommandArguments(**values))

        command.__name__, command.__doc__ = function.__name__, function.__doc__
        command.__annotations__ = {name: hint for name, (hint, _) in declared.items()}
        parameters = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=hint, default=default)
            for name, (hint, default) in declared.items()
        ]
        command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        return command

    return decorate


SHIPPED = {"text": "load_sentiment", "image": "load_pets", "textures": "load_textures"}
PROCESSOR = {"image": ("AutoImageProcessor", "image processor"), "pair": ("AutoProcessor", "processor")}
TOKENIZER = ("AutoTokenizer", "tokenizer")  # of all other kinds
MISFITS: tuple[tuple[str, Callable[[Any], bool], str], ...] = (  # kind of command, models it cannot use, and why
    ("text", is_image_model, "is an image model: use 'whyformer explain image'."),
    ("image", lambda model: not is_image_model(model), "is not an image model: use 'whyformer explain text'."),
    (
        "sound",
        lambda model: kind_of(model) != "sound",
        "is not a sound model: use 'whyformer explain text' or 'image'.",
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
        "is not a model of images with texts: use 'whyformer explain text' or 'image'.",
    ),
    (
        "language",
        lambda model: not continues_text(model),
        "is a MODEL, not a generative language model: use 'whyformer explain text', or the command for its inputs.",
    ),
    (
        "encoder",
        lambda model: not compares_texts(model, ("", "")),
        "is a MODEL: it has a head, which classifies both texts together instead of comparing them. Give an "
        "encoder without a head (a SentenceTransformer, or what AutoModel.from_pretrained(…).save_pretrained(…) "
        "writes). For a classifier of pairs: whyformer explain text FIRST --pair SECOND.",
    ),
)


def load(kind: str, name: str | None, trusted: bool = False) -> tuple[Any, Any]:
    """Return model and processor for a kind of command; a shipped model if ``name`` is None.

    "encoder": a model whose token vectors are averaged, or the SentenceTransformer that the folder holds.
    """
    if name is None:
        from whyformer import demo

        return getattr(demo, SHIPPED[kind])()
    if is_function(name):
        return _made(name)
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
        reads_images = kind == "language" and kind_of(model) == "pair"
        return model, checkpoint.processor(*PROCESSOR.get("pair" if reads_images else kind, TOKENIZER))


def is_function(name: str) -> bool:
    """Return whether a name is that of a function which makes the model: file.py:function."""
    return ":" in name and not Path(name).exists()


def _made(name: str) -> tuple[Any, Any]:
    """Return what the user's function makes: a model, and its processor where it has one."""
    made = read.made_by(name)
    return made if isinstance(made, tuple) and len(made) == 2 else (made, None)


def load_any(name: str, trusted: bool = False, pickles: bool = True, tables: bool = False) -> tuple[Any, Any, str]:
    """Return model, processor and the kind of inputs: "text", "image", "pair", "regions", "sound", or "table".

    ``pickles=False``: weights are read from safetensors files only. ``tables``: models of tables are accepted.
    """
    if is_function(name) or (Path(name) / "table.json").is_file():
        from whyformer.inputs.table_schema import Table
        from whyformer.run.session import LoadedModel

        model, processor = _made(name) if is_function(name) else read.load_table(name)
        table = isinstance(processor, Table)
        if table and not tables:
            raise BadInput(
                f"{name!r} is a model of tables, and this command takes texts, images and sound. For tables: whyformer "
                "explain table, batch and serve; in Python also whyformer.compare, check and recommend."
            )
        loaded = LoadedModel(model, processor)
        return loaded.model, loaded.processor, "table" if table else kind_of(loaded.model) or "text"
    checkpoint = _checkpoint(name, trusted)
    with quiet():
        model = checkpoint.model(headless=True, pickles=pickles)
        kind = kind_of(model)
        if not kind:
            raise BadInput(
                f"{name!r} takes {model.main_input_name}: the command line supports text, image and sound models. In "
                "Python, pass the model's own tensors: whyformer.Explainer(model).study(tensors)."
            )
        if kind == "sound":
            return model, checkpoint.sound_processor(), kind
        return model, checkpoint.processor(PROCESSORS[kind], "processor"), kind


def _checkpoint(name: str, trusted: bool) -> Checkpoint:
    return Checkpoint(name, trusted, to_trust="add --trust-remote-code", called="--model")
