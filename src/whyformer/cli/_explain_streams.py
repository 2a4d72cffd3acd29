"""whyformer explain pair|similar|sound: an image with a text, two texts, a clip."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from whyformer.cli._explaining import (
    BatchSize,
    Json,
    Methods,
    Options,
    Out,
    Scalar,
    Seed,
    TargetName,
    asked,
    deliver,
    per_input,
    repeated,
    seen_by,
    written,
)
from whyformer.cli._input import target_from

Model = Annotated[str, typer.Option("--model", metavar="NAME", help="Folder or hub name.")]


def pair(
    image: Annotated[Path, typer.Argument(metavar="IMAGE", help="An image file.")],
    texts: Annotated[list[str], typer.Argument(metavar="TEXT", help="Questions, captions or prompts about it.")],
    model: Model,
    answer: Annotated[
        str | None,
        typer.Option("--answer", metavar="TEXT", help="Explain this answer.", show_default="what the model answers"),
    ] = None,
    method: Methods = None,
    target: TargetName = None,
    scalar: Scalar = "logit",
    option: Options = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Explain what a model says about an image with a text.

    \b
    Examples:
      whyformer explain pair cat.jpg "a photo of a cat" --model my-clip/
      whyformer explain pair cat.jpg "what is this?" --model my-blip/ \\
          --out why.html
      whyformer explain pair cat.jpg "a cat" "a dog" --model my-clip/ \\
          --scalar cosine
    """
    how = asked(out, option, method, target=target_from(target, None), scalar=scalar, batch_size=batch_size, seed=seed)
    from whyformer.cli._model import load_pair
    from whyformer.explainer import Explainer
    from whyformer.photo import open_image

    opened = open_image(image)
    explainer = Explainer(*load_pair(model))
    raw = [(opened, text) if answer is None else ((opened, text), answer) for text in texts]
    explained = explainer.explain(raw, method=method or None, **how)
    results = per_input(explained)
    titles = [
        f"{image.name}: {text} → {row[0].target.label}" if row[0].target.label else f"{image.name}: {text}"
        for text, row in zip(repeated(explained, texts), results, strict=True)
    ]
    seen = _pictures(explainer, raw, opened)
    deliver(results, out, json, images=repeated(explained, seen), titles=titles)


def similar(
    first: Annotated[str, typer.Argument(metavar="TEXT", help="A text.")],
    others: Annotated[list[str], typer.Argument(metavar="OTHER", help="Texts to compare it with.")],
    model: Model,
    method: Methods = None,
    option: Options = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Explain how close texts are: which words bring them together.

    Compares the model's vectors of the texts (the mean over their tokens).

    \b
    Examples:
      whyformer explain similar "A cat sleeps" "A kitten naps" \\
          --model my-encoder/
      whyformer explain similar "A cat sleeps" "A kitten naps" "Rain" \\
          --model my-encoder/ --out similar.html
    """
    how = asked(out, option, method, batch_size=batch_size, seed=seed)
    from whyformer.cli._model import load_encoder
    from whyformer.explainer import Explainer
    from whyformer.views.similarity import similarity_view

    explained = Explainer(*load_encoder(model)).explain(
        [(first, other) for other in others], method=method or None, **how
    )
    results = per_input(explained)
    views = [similarity_view(e) for row in results for e in row]
    deliver(results, out, json, views=views)


def sound(
    clips: Annotated[list[Path], typer.Argument(metavar="CLIP.WAV", help="16-bit .wav files at the model's rate.")],
    model: Model,
    method: Methods = None,
    target: TargetName = None,
    scalar: Scalar = "logit",
    option: Options = None,
    batch_size: BatchSize = None,
    seed: Seed = 0,
    out: Out = None,
    json: Json = False,
) -> None:
    """Explain what a model hears in a clip: which moments it came from.

    \b
    Examples:
      whyformer explain sound hello.wav --model my-whisper/ --out words.html
      whyformer explain sound dog.wav --model my-wav2vec2/ -t bark
    """
    how = asked(out, option, method, target=target_from(target, None), scalar=scalar, batch_size=batch_size, seed=seed)
    from whyformer.cli._model import load_sound
    from whyformer.explainer import Explainer

    explained = Explainer(*load_sound(model)).explain(list(clips), method=method or None, **how)
    titles = repeated(explained, [path.name for path in clips])
    deliver(per_input(explained), out, json, titles=titles, views=written(explained))


def _pictures(explainer: Any, raw: list[Any], opened: Any) -> list[Any]:
    """The image as the model saw it; packed patches (Qwen2-VL) are no picture, so the file itself is shown."""
    from whyformer.subjects.packed import SIZES

    subject, batch, _ = explainer.prepare(raw)
    if SIZES in batch.tensors or batch.tensors[subject.image].ndim != 4:
        return [opened] * len(raw)
    return seen_by(explainer, raw, subject.image)
