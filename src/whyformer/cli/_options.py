"""The options of all commands, each declared once, and the models that commands load."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import typer

from whyformer.cli._input import DATA, PICTURES, check_out, inputs_from, number_or_word, options_from
from whyformer.errors import BadInput
from whyformer.files import quiet
from whyformer.inputs.checkpoint import PROCESSORS, Checkpoint, is_image_model, kind_of
from whyformer.inputs.families import compares_texts, task_of

REQUIRED = inspect.Parameter.empty
HEAD_RESULTS = ("importance", "roles", "layers", "pruning", "gates", "induction", "circuits")
ANSWER_LENGTH = 32  # tokens of an answer of ``whyformer ask``, unless --generate is given
SHIPPED_POOLING = "mean"  # the textures of the shipped model are spread over its tokens; wf.tcav has another default
SHIPPED_CLASS = "zebra-like"


def known_methods(value: Any) -> Any:
    """Refuse unknown methods before a model is loaded."""
    from whyformer.registry import get_method

    for name in [value] if isinstance(value, str) else value or []:
        get_method(name)
    return value


def _one_of(*names: str) -> Callable[[str], str]:
    """Return a callback that refuses other values."""

    def check(value: str) -> str:
        if value not in names:
            raise typer.BadParameter(f"{value!r} is none of {', '.join(names)}")
        return value

    return check


def _option(
    kind: Any, names: str, words: str, default: Any = None, shown: Any = None, **settings: Any
) -> tuple[Any, Any]:
    """Annotation and default of an option; ``names``: its flags, then what stands for its value in the help."""
    flags = [name for name in names.split() if name.startswith("-")]
    settings |= {"metavar": "".join(name for name in names.split() if not name.startswith("-")) or None}
    settings |= {} if shown is None else {"show_default": shown}
    return Annotated[kind | None if default is None else kind, typer.Option(*flags, help=words, **settings)], default


def _argument(kind: Any, metavar: str, words: str, default: Any = REQUIRED, shown: Any = None) -> tuple[Any, Any]:
    settings = {} if shown is None else {"show_default": shown}
    hint = kind | None if default is None else kind
    return Annotated[hint, typer.Argument(metavar=metavar, help=words, **settings)], default


def _file(flag: str, words: str, endings: tuple[str, ...]) -> tuple[Any, Any]:
    """A file that is written: of one of these endings, and where it can be."""
    return _option(Path, f"{flag} FILE", words, dir_okay=False, callback=lambda value: check_out(value, endings, flag))


_READ: dict[str, Any] = {"exists": True, "dir_okay": False}
_FOLDER = "Folder or hub name."
_PREDICTION = "the prediction"
_text, _texts, _number, _path = (partial(_option, kind) for kind in (str, list[str], int, Path))
_flag = partial(_option, bool, default=False)
_model = partial(_text, "--model NAME")
_methods = partial(_texts, "--method -m NAME", callback=known_methods)
_target = partial(_text, "--target -t CLASS", shown=_PREDICTION)

# Parameter name → annotation and default. A name after a slash tells options of one name apart.
OPTIONS: dict[str, tuple[Any, Any]] = {
    # What is explained.
    "inputs": _argument(
        list[str], "TEXT...", "Texts (image files for an image model); '-' reads lines from stdin.", None
    ),
    "texts": _argument(list[str], "TEXT", "Texts; '-' reads one per line from stdin.", None),
    "texts/pair": _argument(list[str], "TEXT", "Questions, captions or prompts about it."),
    "text": _text("--text TEXT", "Text to run the model on.", "The quick brown fox jumps over the lazy dog"),
    "text/prompt": _argument(str, "TEXT", "The prompt; '-' reads it from stdin."),
    "question": _argument(str, "QUESTION", "What to ask; '-' reads it from stdin."),
    "first": _argument(str, "TEXT", "A text."),
    "others": _argument(list[str], "OTHER", "Texts to compare it with."),
    "image": _path("--image FILE", "Image to run the model on.", shown="noise", **_READ),
    "image/pair": _argument(Path, "IMAGE", "An image file."),
    "images": _argument(list[Path], "IMAGE", "Image files.", None, "a drawn cat and a drawn dog"),
    "clips": _argument(list[Path], "CLIP.WAV", "16-bit .wav files at the model's rate."),
    "rows": _argument(Path, "ROWS.CSV", "A CSV file with a header.", None, "40 rows of census data"),
    "row": _option(list[int], "--row -r N", "Row to explain, from 0; repeatable.", min=0),
    "overall": _flag("--overall", "Average over all rows instead."),
    "context": _path(
        "--context TRAINING.CSV", "Training rows, with the table's target column, of a model that learns in context."
    ),
    "source": _argument(str, "INPUT", "A .csv, .tsv, .jsonl, .parquet or .txt file, or a folder of images."),
    "file": _path("--file -f FILE", "Read one text per line.", **_READ),
    "docs": _path("--docs FOLDER", "Answer from the .txt and .md files in here, with citations."),
    "system": _text("--system TEXT", "What the model is told first."),
    "name": _argument(str, "NAME", "Show one method with its options.", None),
    "name/metric": _argument(str, "NAME", "Show one metric with its options.", None),
    # By which model.
    "model": _model(_FOLDER, shown="the shipped sentiment model"),
    "model/given": _model(_FOLDER, REQUIRED),
    "model/language": _model("Folder or hub name of a language model.", REQUIRED),
    "model/image": _model(
        "Folder or hub name of an image classifier or detector.", shown="the shipped model of cats and dogs"
    ),
    "model/textures": _model(_FOLDER, shown="the shipped texture model"),
    "model/table": _model(
        "A folder (tables.save_model), or module:function (or file.py:function) that returns model and Table.",
        shown="the shipped census model",
    ),
    "model/attention": _model(_FOLDER, shown="the shipped sentiment model; for colours, that of cats and dogs"),
    "model/batch": _model(
        "Folder or hub name; of a table, also file.py:function that returns model and Table.",
        shown="the shipped sentiment model",
    ),
    "model/serve": _texts(
        "--model NAME",
        "Folder or hub name, or a table model's folder or file.py:function; repeatable.",
        shown="the shipped models",
    ),
    "trust_remote_code": _flag(
        "--trust-remote-code", "Run code that comes with the model. Read it first.", shown=False
    ),
    # By which method, and of which output.
    "method": _methods("A method; repeat for several. See: whyformer methods", shown="auto"),
    "method/compare": _methods("A method; repeat for several.", shown="all"),
    "method/recommend": _methods("A method that stands too; repeat.", shown="all"),
    "method/check": _text("--method -m NAME", "Whose explanations are checked.", shown="the default method"),
    "method/ask": _text(
        "--method -m NAME", "See: whyformer methods", shown="the one for texts", callback=known_methods
    ),
    "passes": _number(
        "--passes N", "Without --method: passes that one input may take; 3 is one pass.", shown="128", min=1
    ),
    "option": _texts("--option -o KEY=VALUE", "An option of the method, e.g. heads=max; repeatable."),
    "option/maximize": _texts(
        "--option -o KEY=VALUE", "An option of activation_maximization, e.g. jitter=8; repeatable."
    ),
    "target": _target("Class, by name or index."),
    "target/explain": _target("Class to explain, by name or index."),
    "target/token": _text("--target -t TOKEN", "Token to explain.", shown=_PREDICTION),
    "target/tcav": _text("--target -t CLASS", "Class, by name or index.", shown=False),
    "versus": _text("--versus CLASS", "Explain the target rather than this class."),
    "versus/token": _text("--versus TOKEN", "Explain the target rather than this token."),
    "scalar": _text("--scalar NAME", "What is explained: logit, log_odds or probability.", "logit"),
    "answer": _text("--answer TEXT", "Explain this answer.", shown="what the model answers"),
    "answer/prompt": _text("--answer TEXT", "Explain this answer, token by token."),
    "generate": _number("--generate -g N", "Explain what the model writes, N tokens at most.", min=1),
    "generate/ask": _number("--generate -g N", "Tokens the answer may have.", shown=str(ANSWER_LENGTH), min=1),
    "span": _flag("--span", "The answer as a whole instead of token by token."),
    "choices": _text("--choices A,B", "Which of these comes next: yes,no"),
    "units": _text(
        "--units UNIT",
        "What gets a score: token, word or sentence.",
        "token",
        callback=_one_of("token", "word", "sentence", "role"),
    ),
    "units/table": _text(
        "--units UNIT",
        "What gets a score: token (each column), or groups of columns that carry the same information.",
        "token",
        callback=_one_of("token", "groups"),
    ),
    "by": _text("--by UNIT", "Highlight by token or by word.", "token", callback=_one_of("token", "word")),
    "detail": _flag("--detail", "Scores of single pixels, too, of methods that have them."),
    "one_scale": _flag("--one-scale", "With several methods: all on one scale, shares of each method's total |score|."),
    "specials": _flag("--specials", "Show special tokens such as [CLS] and [SEP] in lists, too."),
    # How methods are evaluated.
    "metric": _texts("--metric NAME", "A metric; repeat. See: whyformer metrics", shown="five"),
    "replace": _text(
        "--replace WHAT",
        "What stands for absent parts: mask, unk, pad, delete, resample; mean, zero, blur, grey, black.",
        shown="the first that the model has",
    ),
    "hold": _texts(
        "--hold PART",
        "Always there, such as the question of a prompt: its text, or a number (-1: the last unit); repeatable.",
    ),
    "scope": _text("--scope SCOPE", "One choice for the dataset, per label or per instance.", "dataset"),
    "attention_only": _flag("--attention-only", "Choose among attention aggregations only."),
    "budget": _text("--budget COST", "The best within so many forwards (20), or a time (2s, 500ms)."),
    "checks": _texts("--checks -c NAME", "A check; repeatable.", shown="all"),
    "train": _path(
        "--train FILE",
        "Train twins of the model on text<TAB>label lines: is its attention needed, could it be another?",
        dir_okay=False,
    ),
    "epochs": _number("--epochs N", "Of the training, with --train.", 3),
    # Attention maps and heads.
    "what/attention": _text(
        "--what WHAT",
        "map (one matrix), grid (every head), colours (heads over an image) or streams (each kind).",
        shown="grid; with --layer or --head, map",
    ),
    "what/heads": _text("--what WHAT", f"One of: {', '.join(HEAD_RESULTS)}.", "importance"),
    "layer": _text("--layer -l LAYER", "Attention block by number, or module name."),
    "layer/mean": _text("--layer -l LAYER", "Attention block by number, or module name; its mean."),
    "layer/number": _number("--layer -l N", "Attention call by number; -1 is the last.", shown="-1"),
    "head": _text("--head HEAD", "A number, mean or max.", shown="mean"),
    "query": _number("--query N", "With colours: the position that looks.", 0),
    "values": _flag("--values", "Write the weights into the cells (up to 400)."),
    "scale": _text(
        "--scale SCALE", "shared by all maps, free (each its own), full (0 to 1), or LOW,HIGH.", shown="shared"
    ),
    "kind": _text("--kind KIND", "Importance by gradient, confidence, relevance or ablation.", "gradient"),
    "per": _text("--per PER", "Gradients per example, token or batch.", "example"),
    "normalize": _text("--normalize HOW", "l2, minmax, l2_minmax or share."),
    "labels": _path("--labels FILE", "Right classes, one per line: for gates, and the accuracy of pruning.", **_READ),
    "order": _text("--order ORDER", "Pruning: importance (by --kind), gates or random.", "importance"),
    "points": _number("--points N", "Pruning: numbers of heads tried.", shown="all, 21", min=2),
    "penalty": _option(float, "--penalty COST", "Gates: what an open head costs.", 0.02),
    "steps/gates": _number("--steps N", "Gates: steps of training.", 200, min=1),
    # Concepts and inputs that drive a unit.
    "concept": _texts("--concept -c NAME=PATH", "A concept: folder of images, or file of texts."),
    "random": _option(
        list[Path],
        "--random -r PATH",
        "A random set, or a folder of such sets; not needed with --relative.",
        exists=True,
    ),
    "inputs/tcav": _path("--inputs -i PATH", "Inputs of the class that is asked about.", exists=True),
    "relative": _flag("--relative", "Compare the concepts with each other."),
    "pooling": _text("--pooling HOW", "cls, mean or flat.", shown=f"cls; shipped model: {SHIPPED_POOLING}"),
    "classifier": _text("--classifier NAME", "logistic or sgd.", "logistic"),
    "unit": _argument(str, "CLASS", "Class, by name or index.", None, f"shipped model: {SHIPPED_CLASS}"),
    "neuron": _number("--neuron -n N", "One neuron of the layer.", min=0),
    "position": _number("--position N", "The neuron at this token only.", min=0),
    "steps/maximize": _number("--steps N", "Steps uphill.", 256, min=1),
    "l2": _option(float, "--l2 LAMBDA", "Pictures: penalty LAMBDA·‖x‖².", 1e-4),
    "tv": _option(float, "--tv LAMBDA", "Pictures: penalty LAMBDA·TV(x).", 1e-4),
    "length": _number("--length N", "Texts: how many tokens.", 8, min=1),
    # Datasets.
    "column": _texts("--column -c NAME", "Column that holds the input; twice for a pair of texts."),
    "key": _text("--key NAME", "Column that names the rows."),
    "target_column": _text("--target-column NAME", "Column that says what to explain of a row."),
    "too_long": _text("--too-long WHAT", "Texts beyond the model's length: error or cut.", "error"),
    "part_rows": _number("--part-rows N", "Rows per file.", shown="512", min=1),
    "batch_tokens": _number("--batch-tokens N", "Positions per pass.", shown="1024, 16384 on a GPU", min=1),
    "engine": _text("--engine NAME", "local, or ray: parts on a Ray cluster.", "local"),
    "workers": _number(
        "--workers N",
        "Processes that explain, each with a copy of the model.",
        shown="this one; of ray one per GPU, or per CPU",
        min=1,
    ),
    "address": _text("--address ADDRESS", "Of a running Ray cluster.", shown="one started here"),
    # The server.
    "port": _number("--port N", "0 takes any that is free.", 8765, min=0, max=65535),
    "host": _text("--host ADDRESS", "Another than this machine's own asks for a token.", "127.0.0.1"),
    "store": _path("--store FILE", "Where results are kept.", Path("whyformer.sqlite")),
    "token": _text("--token WORD", "Ask for this token.", shown="made up where one is needed"),
    "allow_models": _flag("--allow-models", "Let the page load models from the hub by name.", shown=False),
    # How it is run.
    "batch_size": _number("--batch-size N", "Inputs per pass.", shown="16", min=1),
    "batch_size/rows": _number("--batch-size N", "Rows per pass.", shown="32, 256 on a GPU", min=1),
    "memory": _text("--memory WAY", "Attention maps: full (stored), fold (never), or as fits.", "auto"),
    "seed": _number("--seed N", "Seed of what is drawn at random.", 0),
    "seed/explain": _number("--seed N", "Seed of methods that draw at random.", 0),
    "cache": _path("--cache FOLDER", "Keep results here; a stopped job goes on.", file_okay=False),
    "test": _option(bool, "--test/--no-test", "Explain a tiny model on every device.", True),
    # What becomes of the result.
    "out": _file("--out", "Write .html, .png, .svg, .pdf, .json or .npz.", (*PICTURES, *DATA)),
    "out/explain": _file("--out", "Write a file too: .html, .png, .svg, .json or .npz.", (*PICTURES, *DATA)),
    "out/compare": _file("--out", "Write .html, .png, .svg or .json.", (*PICTURES, ".json")),
    "out/check": _file("--out", "Write a file too: .html, .png, .svg or .json.", (*PICTURES, ".json")),
    "out/attention": _file("--out", "Write .html, .png, .svg, .pdf or .json.", (*PICTURES, ".json")),
    "out/batch": _path("--out DIR", "A new folder, or one to go on in.", REQUIRED, file_okay=False),
    "out/demo": _path("--out FILE", "Where the page is written.", Path("whyformer-demo.html"), dir_okay=False),
    "report": _file(
        "--report", "Write a report too (.html): methods compared and checked on these inputs.", (*PICTURES, ".json")
    ),
    "json": _flag("--json", "Print JSON."),
    "json/explain": _flag("--json", "Print JSON instead of pictures."),
    "quiet": _flag("--quiet -q", "No progress and no summary."),
    "log": _flag("--log", "Progress as JSON lines on stderr, no summary."),
}
# Options that the Python functions have by the same name.
AS_GIVEN = (
    "scalar batch_size memory seed units cache generate span l2 tv length steps scope budget "
    "key target_column too_long part_rows batch_tokens engine workers address"
).split()


class CommandArguments(SimpleNamespace):
    """The values of the options that a command takes from OPTIONS, by parameter name."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.settings: dict[str, Any] = {name: given[name] for name in AS_GIVEN if name in given}
        if "target" in given:
            target = None if self.target is None else number_or_word(self.target)
            versus = given.get("versus")
            self.settings["target"] = target if versus is None else (target, number_or_word(versus))
        if given.get("passes") is not None:
            self.settings["passes"] = self.passes
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
        model, processor, kind = self.load_any()
        return model, processor, inputs_from(self.inputs or [], self.file, kind, command, demo)


def takes(names: str) -> Callable[[Callable[[Any], None]], Callable[..., None]]:
    """Give a command options of OPTIONS, in this order; it gets their values as one CommandArguments."""
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
        lambda model: not compares_texts(model, ("", "")),
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
