"""Options that several commands have, each written once."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.errors import BadInput
from whyformer.files.paths import quiet
from whyformer.inputs.checkpoint import PROCESSORS, Checkpoint, is_image_model, kind_of

# Models that commands name: loaded (inputs/checkpoint.py), and refused where the command is for another kind.


def load_text(name: str | None, trusted: bool = False) -> tuple[Any, Any]:
    """Model and tokenizer; the shipped sentiment model where no name is given."""
    if name is None:
        from whyformer.demo import load_sentiment

        return load_sentiment()
    with quiet():
        model = _model(name, trusted)
        if is_image_model(model):
            raise BadInput(f"{name!r} is a model of images: use 'whyformer explain image'.")
        return model, _processor(name, trusted, "AutoTokenizer", "tokenizer")


def load_language(name: str, trusted: bool = False) -> tuple[Any, Any]:
    """A model that writes, and its tokenizer."""
    from whyformer.inputs.families import task_of

    with quiet():
        model = _model(name, trusted)
        if not task_of(model).endswith(("ForCausalLM", "LMHeadModel")):
            raise BadInput(
                f"{name!r} is a {type(model).__name__}, no language model that writes: use 'whyformer explain text', "
                "or the command for what it takes."
            )
        return model, _processor(name, trusted, "AutoTokenizer", "tokenizer")


def load_image(name: str | None, trusted: bool = False) -> tuple[Any, Any]:
    """Model and image processor; the shipped model of cats and dogs where no name is given."""
    if name is None:
        from whyformer.demo import load_pets

        return load_pets()
    with quiet():
        model = _model(name, trusted)
        if not is_image_model(model):
            raise BadInput(f"{name!r} is no model of images: use 'whyformer explain text'.")
        return model, _processor(name, trusted, "AutoImageProcessor", "image processor")


def load_textures() -> tuple[Any, Any]:
    """The shipped model of shapes and textures, and its image processor."""
    from whyformer import demo

    return demo.load_textures()


def load_pair(name: str, trusted: bool = False) -> tuple[Any, Any]:
    """A model of images with texts, and its processor."""
    with quiet():
        model = _model(name, trusted, headless=True)
        if kind_of(model) == "regions":
            raise BadInput(
                f"{name!r} reads vectors of image regions, which a detector makes. In Python: "
                "whyformer.explain(model, ({'visual_feats': …, 'visual_pos': …}, text), processor=tokenizer)."
            )
        if kind_of(model) != "pair":
            raise BadInput(f"{name!r} is no model of images with texts: use 'whyformer explain text' or 'image'.")
        return model, _processor(name, trusted, "AutoProcessor", "processor")


def load_encoder(name: str, trusted: bool = False) -> tuple[Any, Any]:
    """A text encoder whose token vectors are averaged, or the SentenceTransformer that the folder holds."""
    from whyformer.inputs.similarity import compares_texts

    checkpoint = _checkpoint(name, trusted)
    with quiet():
        if checkpoint.pools_its_own_way:
            return checkpoint.sentence_transformer(), None
        model = _model(name, trusted, headless=True)
        if not compares_texts(model, ("", "")):
            raise BadInput(
                f"{name!r} is a {type(model).__name__}: it has a head, and would be asked about both texts together, "
                "not how alike they are. Give an encoder without a head (a SentenceTransformer, or what "
                "AutoModel.from_pretrained(…).save_pretrained(…) writes); what a classifier of pairs says is explained "
                "in Python, whyformer.explain(model, (first, second), processor=tokenizer)."
            )
        return model, _processor(name, trusted, "AutoTokenizer", "tokenizer")


def load_sound(name: str, trusted: bool = False) -> tuple[Any, Any]:
    """A model of sound, and its processor or feature extractor."""
    with quiet():
        model = _model(name, trusted)
        if kind_of(model) != "sound":
            raise BadInput(f"{name!r} is no model of sound: use 'whyformer explain text' or 'image'.")
        return model, _checkpoint(name, trusted).sound_processor()


def load_any(name: str, trusted: bool = False, pickles: bool = True) -> tuple[Any, Any, str]:
    """Model, processor, and what it takes: "text", "image", "pair", "regions" or "sound".

    ``pickles=False``: weights are read from safetensors files, and from nothing else.
    """
    with quiet():
        model = _model(name, trusted, headless=True, pickles=pickles)
        kind = kind_of(model)
        if not kind:
            raise BadInput(
                f"{name!r} takes {model.main_input_name}: the command line knows text, image and sound models. In "
                "Python, pass the model's own tensors: whyformer.Explainer(model).study(tensors)."
            )
        if kind == "sound":
            return model, _checkpoint(name, trusted).sound_processor(), kind
        return model, _processor(name, trusted, PROCESSORS[kind], "processor"), kind


def _checkpoint(name: str, trusted: bool) -> Checkpoint:
    return Checkpoint(name, trusted, to_trust="add --trust-remote-code", called="--model")


def _model(name: str, trusted: bool, headless: bool = False, pickles: bool = True) -> Any:
    return _checkpoint(name, trusted).model(headless=headless, pickles=pickles)


def _processor(name: str, trusted: bool, auto: str, what: str) -> Any:
    return _checkpoint(name, trusted).processor(auto, what)


# What compare, recommend and check share: the model with its inputs, and options by their Python names.


def loaded(
    model: str | None, trusted: bool, arguments: list[str], file: Path | None, command: str, demo: bool = True
) -> tuple[Any, Any, list[Any]]:
    """Model, processor, inputs; ``demo``: without texts, the sentences of the demo."""
    from whyformer.cli._input import inputs_from

    transformer, processor, modality = (*load_text(None), "text") if model is None else load_any(model, trusted)
    return transformer, processor, inputs_from(arguments, file, modality, command, demo)


def common(
    target: str | None,
    replace: str | None,
    units: str,
    hold: list[str] | None,
    batch_size: int | None,
    seed: int,
    cache: Path | None,
) -> dict[str, Any]:
    """Options by the names they have in Python."""
    from whyformer.cli._input import number_or_word, target_from

    token = None if replace is None else number_or_word(replace)
    aim = target_from(target, None)
    held = [number_or_word(part) for part in hold or []] or None
    options = {"target": aim, "replace": token, "units": units, "hold": held}
    return options | {"batch_size": batch_size, "seed": seed, "cache": cache}


# Options that several commands have, each written once.


Inputs = Annotated[
    list[str] | None,
    typer.Argument(metavar="TEXT...", help="Texts (image files for an image model); '-' reads lines from stdin."),
]
File = Annotated[
    Path | None,
    typer.Option("--file", "-f", exists=True, dir_okay=False, metavar="FILE", help="Read one text per line."),
]
Model = Annotated[
    str | None,
    typer.Option("--model", metavar="NAME", help="Folder or hub name.", show_default="the shipped sentiment model"),
]
Trusted = Annotated[
    bool,
    typer.Option("--trust-remote-code", help="Run code that comes with the model. Read it first.", show_default=False),
]
LanguageModel = Annotated[str, typer.Option("--model", metavar="NAME", help="Folder or hub name of a language model.")]
Method = Annotated[
    str | None,
    typer.Option("--method", "-m", metavar="NAME", help="See: whyformer methods", show_default="the one for texts"),
]
TextUnits = Annotated[str, typer.Option("--units", metavar="UNIT", help="What gets a score: token, word or sentence.")]
Replace = Annotated[
    str | None,
    typer.Option(
        "--replace",
        metavar="WHAT",
        help="What stands for absent parts: mask, unk, pad, delete, resample; mean, zero, blur, grey, black.",
        show_default="the first that the model has",
    ),
]
Hold = Annotated[
    list[str] | None,
    typer.Option(
        "--hold",
        metavar="PART",
        help="Always there, such as the question of a prompt: its text, or a number (-1: the last unit); repeatable.",
    ),
]
Target = Annotated[
    str | None,
    typer.Option("--target", "-t", metavar="CLASS", help="Class, by name or index.", show_default="the prediction"),
]
BatchSize = Annotated[
    int | None, typer.Option("--batch-size", min=1, metavar="N", help="Inputs per pass.", show_default="16")
]
Seed = Annotated[int, typer.Option("--seed", metavar="N", help="Seed of what is drawn at random.")]
Cache = Annotated[
    Path | None,
    typer.Option("--cache", file_okay=False, metavar="FOLDER", help="Keep results here; a stopped job goes on."),
]
Out = Annotated[
    Path | None, typer.Option("--out", dir_okay=False, metavar="FILE", help="Write .html, .png, .svg or .json.")
]
AnyOut = Annotated[
    Path | None,
    typer.Option("--out", dir_okay=False, metavar="FILE", help="Write .html, .png, .svg, .pdf, .json or .npz."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
