"""The models that are served: what each takes, samples of it, and what a client's input becomes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from whyformer.advice import trouble_with
from whyformer.errors import BadInput, NotOffered, UnknownName
from whyformer.explainer import Explainer
from whyformer.inputs.families import task_of
from whyformer.inputs.table_schema import Standardize, Table
from whyformer.registry import Method, default_method, list_methods
from whyformer.serve.question import Input
from whyformer.serve.safety import opened_picture
from whyformer.serve.store import Store

KINDS = ("text", "language", "image", "table")
TAKES = {"text": ("text",), "language": ("prompt", "text"), "image": ("image",), "table": ("row",)}
SENTENCE = "This is a sentence to try the model on."
PROMPT = "The capital of France is"
MOST_CLASSES = 2000  # that a page is told by name
# Methods that take long on inputs of many units, whatever the passes they declare; shap's package takes long to import.
DEAR = ("attention_flow", "decompx", "smooth_grad", "two_ended", "value_zeroing", "vit_cx")
MANY_UNITS = 64
MOST_MODELS = 8  # that clients may load, beside those that were named at the start

Loader = Callable[[str], "ServedModel"]


@dataclass(eq=False)
class ServedModel:
    """One copy of a model. Only its line of jobs (jobs.py) runs it."""

    name: str
    kind: str
    explainer: Explainer
    samples: Sequence[Any] = ()  # texts, rows or PIL images
    troubles: dict[str, str] | None = None  # method -> why it does not explain this model; None: not yet known

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BadInput(
                f"{self.name!r} takes {self.kind}: the server knows models of text, images and tables, and language "
                "models. Others are explained in Python, whyformer.explain(…)."
            )
        if not self.samples:
            self.samples = [_sample_of(self)]

    @property
    def default(self) -> str:
        return default_method(self.kind)

    @property
    def labels(self) -> list[str]:
        """Names of the classes; a language model has too many to list."""
        processor = self.explainer.processor
        if self.kind == "language":
            return []
        if isinstance(processor, Table):
            return list(processor.classes)
        named = getattr(getattr(self.explainer.model, "config", None), "id2label", None) or {}
        return [str(named[index]) for index in sorted(named)][:MOST_CLASSES]

    def described(self) -> dict[str, Any]:
        """As the page shows it."""
        shown = [] if self.kind == "image" else list(self.samples)
        return {
            "name": self.name,
            "kind": self.kind,
            "takes": TAKES[self.kind],
            "class": type(self.explainer.model).__name__,
            "labels": self.labels,
            "default": self.default,
            "samples": shown,
            "pictures": len(self.samples) if self.kind == "image" else 0,
            "columns": self._columns(),
            "chat": bool(getattr(self.explainer.processor, "chat_template", None)),
        }

    def _columns(self) -> list[dict[str, Any]] | None:
        table = self.explainer.processor
        if not isinstance(table, Table):
            return None
        return [
            {"name": n, "categories": list(table.categorical[n]) if n in table.categorical else None}
            for n in table.columns
        ]

    def opened(self, asked: Input, store: Store) -> Any:
        """What the explainer takes. A string reaches text models only: to others it would be the name of a file."""
        way = next(n for n in ("text", "prompt", "row", "image", "sample") if getattr(asked, n) is not None)
        value = getattr(asked, way)
        if way == "sample":
            if value >= len(self.samples):
                raise BadInput(f"{self.name!r} has {len(self.samples)} samples, numbered from 0: there is no {value}.")
            return self.erased(self.samples[value], asked) if self.kind == "image" else self.samples[value]
        if way not in TAKES[self.kind]:
            raise BadInput(f"{self.name!r} is a model of {self.kind}: give {' or '.join(TAKES[self.kind])}, not {way}.")
        if way == "row":
            return dict(value)
        if way == "image":
            data = store.picture(value)
            if data is None:
                raise BadInput("this picture is not known here: upload it again.")
            return self.erased(opened_picture(data), asked)
        if not value.strip():
            raise BadInput("there is nothing to explain: the text is empty.")
        if self.kind == "text":
            return value
        return self._prompt(value, asked)

    def _prompt(self, words: str, asked: Input) -> Any:
        if asked.chat and getattr(self.explainer.processor, "chat_template", None):
            said = [] if asked.answer is None else [{"role": "assistant", "content": asked.answer}]
            return [{"role": "user", "content": words}, *said]
        return words if asked.answer is None else (words, asked.answer)

    def erased(self, image: Any, asked: Input) -> Any:
        """The picture with some patches in its mean colour; patches are counted as ``Explanation.units`` has them."""
        if not asked.erased:
            return image
        from PIL import Image

        units = self.explainer.explain(image, method="random").units
        if units.grid is None or units.picture_size is None:
            raise NotOffered(
                "patches can be erased where the model sees the whole picture, squeezed; this one crops it or reads no "
                "grid of patches."
            )
        rows, columns = units.grid
        patches = [i for i in range(len(units)) if units.is_patch(i)]
        pixels = np.array(image)
        mean = pixels.reshape(-1, 3).mean(0).round().astype(np.uint8)
        height, width = pixels.shape[:2]
        for unit in asked.erased:
            if unit not in patches:
                raise BadInput(f"unit {unit} is no patch of this picture: it has {rows} × {columns} of them.")
            row, column = divmod(patches.index(unit), columns)
            top, bottom = round(row * height / rows), round((row + 1) * height / rows)
            left, right = round(column * width / columns), round((column + 1) * width / columns)
            pixels[top:bottom, left:right] = mean
        return Image.fromarray(pixels)

    # Which methods explain it

    def rehearsal(self) -> Generator[None, None, None]:
        """Tries methods on a sample in a few passes each; those that take long are left untried."""
        troubles: dict[str, str] = {}
        units = len(self.explainer.explain([self.samples[0]], method="random")[0].units)
        for name, method in list_methods().items():
            if not is_dear(name, units):
                with self.explainer.session([self.samples[0]]) as session:
                    troubles[name] = trouble_with(method, session, {})
            yield
        self.troubles = troubles

    def methods(self) -> list[dict[str, Any]]:
        """All methods, with why one does not apply; ``applies`` is None where that was not tried."""
        return [self._told(method) for method in list_methods().values()]

    def _told(self, method: Method) -> dict[str, Any]:
        trouble = None if self.troubles is None else self.troubles.get(method.name)
        return {
            "name": method.name,
            "idea": method.idea,
            "paper": method.paper,
            "cost": method.cost_text,
            "signed": method.signed,
            "class_specific": method.class_specific,
            "looks_at": method.specificity,
            "options": {name: _plain(parameter.default) for name, parameter in method.options.items()},
            "default": method.name == self.default,
            "applies": None if trouble is None else not trouble,
            "reason": trouble or None,
        }


def is_dear(method: str, units: int) -> bool:
    """Too long to be run unasked."""
    return method == "shap" or (method in DEAR and units > MANY_UNITS)


def _plain(value: Any) -> Any:
    return value if value is None or isinstance(value, (bool, int, float, str)) else str(value)


def _sample_of(served: ServedModel) -> Any:
    """Something to try a model on, of which nothing else is known."""
    processor = served.explainer.processor
    if served.kind == "text":
        return SENTENCE
    if served.kind == "language":
        return PROMPT
    if isinstance(processor, Table):
        scaled = processor.preprocess if isinstance(processor.preprocess, Standardize) else None
        means = scaled.mean if scaled is not None else (0.0,) * len(processor.numerical)
        numbers = {name: float(mean) for name, mean in zip(processor.numerical, means, strict=True)}
        first = {name: values[0] for name, values in processor.categorical.items()}
        return {name: numbers.get(name, first.get(name)) for name in processor.columns}
    from PIL import Image

    ramp = np.linspace(0, 255, 224, dtype=np.uint8)
    return Image.fromarray(
        np.stack([np.tile(ramp, (224, 1)), np.tile(ramp[:, None], (1, 224)), np.full((224, 224), 128, np.uint8)], -1)
    )


class Models:
    """Those that are served, by name."""

    def __init__(self, served: Sequence[ServedModel], loader: Loader | None = None) -> None:
        self.by_name: dict[str, ServedModel] = {}
        for model in served:
            count = sum(name.partition(" #")[0] == model.name for name in self.by_name)
            model.name += f" #{count + 1}" if count else ""  # folders of one name in different places
            self.by_name[model.name] = model
        self.loader = loader  # None: clients may not load any
        self._started_with, self._lock = len(self.by_name), threading.Lock()

    def __getitem__(self, name: str) -> ServedModel:
        if name not in self.by_name:
            raise UnknownName("model", name, self.by_name)
        return self.by_name[name]

    def load(self, name: str) -> ServedModel:
        """By its name on the hub. Never by a path: which folders are here is nobody's business."""
        if self.loader is None:
            raise NotOffered(
                "models are loaded at the start only: begin the server with --allow-models, or --model NAME."
            )
        with self._lock:
            if name in self.by_name:
                return self.by_name[name]
            if len(self.by_name) - self._started_with >= MOST_MODELS:
                raise NotOffered(f"{MOST_MODELS} models were loaded already: begin the server anew.")
            self.by_name[name] = self.loader(name)
            return self.by_name[name]


def kind_of(explainer: Explainer, kind: str) -> str:
    """Of a model of text, whether it writes."""
    writes = task_of(explainer.model).endswith(("ForCausalLM", "LMHeadModel"))
    return "language" if kind == "text" and writes else kind


def shipped_models() -> list[ServedModel]:
    """Those that come with the package, with something to try each on."""
    from PIL import Image

    from whyformer import demo
    from whyformer.demo.census import adult_rows
    from whyformer.demo.faces import face
    from whyformer.demo.pictures import picture

    faces = [Image.fromarray(face(animal)) for animal in ("cat", "dog")]
    shapes = [Image.fromarray(picture(*what, seed=1)) for what in (("horse", "striped"), ("fish", "plain"))]
    table_model, table = demo.load_adult()
    rows = [{k: v for k, v in row.items() if k != table.target} for row in adult_rows()]
    return [
        ServedModel("sentiment", "text", Explainer(*demo.load_sentiment()), demo.SENTENCES),
        ServedModel("pets", "image", Explainer(*demo.load_pets()), faces),
        ServedModel("textures", "image", Explainer(*demo.load_textures()), shapes),
        ServedModel("adult", "table", Explainer(table_model, table), rows),
    ]
