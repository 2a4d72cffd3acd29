"""The served models: the inputs of each, samples, and the conversion of a client's input."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from whyformer.choices import default_method
from whyformer.errors import SHIPPED, BadInput, NotOffered, UnknownName, WhyformerError, require
from whyformer.estimates import trouble_with
from whyformer.explainer import CoreExplainer
from whyformer.inputs.families import class_names, compares_texts, continues_text, task_of
from whyformer.inputs.table_schema import Standardize, Table
from whyformer.learned.learned import fingerprint_of
from whyformer.registry import Method, get_method, learned_methods, list_methods
from whyformer.results.types import Explanation
from whyformer.serve.messages import Input
from whyformer.serve.safety import opened_picture, opened_sound
from whyformer.serve.store import Store

# What a model is asked with: its kind, the fields that a question about it has, and something to try it on.

# Of each kind, the fields of a question (serve/messages.py) that it takes, all of a row together.
TAKES: dict[str, tuple[tuple[str, ...], ...]] = {
    "text": (("text",),),
    "language": (("prompt",), ("text",)),
    "image": (("image",),),
    "table": (("row",),),
    "pair": (("image", "text"),),
    "similarity": (("text",),),
    "sound": (("sound",),),
    "detector": (("image",),),
}
PICTURES = ("image", "pair", "detector")
SENTENCE = "This is a sentence to try the model on."
OTHER_SENTENCE = "Here is another one."
PROMPT = "The capital of France is"
CAPTION = "a picture of many colours"
RATE = 16_000  # samples a second, where the processor does not say
Words = tuple[str, str]

# Models that read two texts, by how transformers ends their class: what each text is, and whether it can be missing.
SECOND: dict[str, Words] = {
    "QuestionAnswering": ("question", "text that holds the answer"),
    "MultipleChoice": ("question", "answers, one per line"),
}
MAY_HAVE_SECOND = "SequenceClassification"


def kind_of(explainer: CoreExplainer, kind: str) -> str:
    """Return the kind of question for a model, from its kind on the command line and its task."""
    task = task_of(explainer.model)
    if kind == "text" and continues_text(explainer.model):
        return "language"
    if kind == "text" and compares_texts(explainer.model, ("", "")):
        return "similarity"
    return "detector" if kind == "image" and task.endswith("ForObjectDetection") else kind


def second_of(explainer: CoreExplainer, kind: str) -> tuple[Words, bool] | None:
    """Return the names of two texts, and whether the second is required; None for models of one text."""
    if kind == "similarity":
        return ("first text", "second text"), True
    if kind != "text":
        return None
    task = task_of(explainer.model).rpartition("For")[2]
    if task in SECOND:
        return SECOND[task], True
    return (("text", "second text"), False) if task == MAY_HAVE_SECOND else None


def rate_of(explainer: CoreExplainer) -> int:
    """Samples a second that a model of sound wants."""
    extractor = getattr(explainer.processor, "feature_extractor", explainer.processor)
    return int(getattr(extractor, "sampling_rate", RATE))


def sample_of(explainer: CoreExplainer, kind: str) -> Any:
    """Return a default input for a model."""
    if kind in ("text", "similarity"):
        second, task = second_of(explainer, kind), task_of(explainer.model)
        if second is None or not second[1]:
            hidden = getattr(explainer.processor, "mask_token", None) if task.endswith("MaskedLM") else None
            return SENTENCE if hidden is None else SENTENCE.replace("sentence", hidden)
        return (SENTENCE, [OTHER_SENTENCE, SENTENCE] if task.endswith("MultipleChoice") else OTHER_SENTENCE)
    if kind == "language":
        return PROMPT
    if kind == "table":
        table = explainer.processor
        scaled = table.preprocess if isinstance(table.preprocess, Standardize) else None
        means = scaled.mean if scaled is not None else (0.0,) * len(table.numerical)
        row = {name: values[0] for name, values in table.categorical.items()}
        row |= {name: float(mean) for name, mean in zip(table.numerical, means, strict=True)}
        return {name: row.get(name) for name in table.columns}
    if kind == "sound":  # a second that rises from 200 to 1,000 Hz, loudest in its middle
        rate = rate_of(explainer)
        time = np.arange(rate, dtype=np.float32) / rate
        chirp = 0.5 * np.sin(np.pi * time) * np.sin(2 * np.pi * (200 * time + 400 * time**2))
        return chirp.astype(np.float32), rate
    require("PIL", why="a picture to try a model on")
    from PIL import Image

    down, across = np.meshgrid(*[np.linspace(0, 255, 224, dtype=np.uint8)] * 2, indexing="ij")
    ramp = Image.fromarray(np.stack([across, down, np.full_like(down, 128)], -1))
    return (ramp, CAPTION) if kind == "pair" else ramp


MOST_CLASSES = 2000  # that a page is told by name
MANY_UNITS = 64
MOST_MODELS = 8  # that clients may load, beside those that were named at the start

log = logging.getLogger("whyformer.serve")


@dataclass(eq=False)
class ServedModel:
    """One copy of a model. Only the thread of its queue (jobs.py) runs it."""

    name: str
    kind: str
    explainer: CoreExplainer
    samples: Sequence[Any] = ()  # texts, pairs, rows, PIL images or (samples, rate) of sounds
    troubles: dict[str, str] | None = None  # method -> why it does not explain this model; None: not yet known
    trouble: str = ""  # why the model could not be tried at all

    def __post_init__(self) -> None:
        if self.kind not in TAKES:
            raise BadInput(
                f"{self.name!r} takes {self.kind}, which the server does not support: it serves models of texts, "
                "images, tables, sound, images with texts, detectors and language models. For others use Python: "
                "whyformer.explain(…)."
            )
        if not self.samples:
            self.samples = [sample_of(self.explainer, self.kind)]

    @cached_property
    def default(self) -> str:
        """The default method of ``explain`` for this model."""
        return default_method(self.explainer.source(self.samples[0]).modality.kind)

    @property
    def classes(self) -> dict[int, str]:
        """Class names by number; none for other tasks, whose configuration names two classes all the same."""
        processor, task = self.explainer.processor, task_of(self.explainer.model)
        if isinstance(processor, Table):
            return dict(enumerate(processor.classes))
        if "Classification" not in task and task != "ViltForQuestionAnswering":
            return {}
        return dict(sorted(class_names(self.explainer.model).items())[:MOST_CLASSES])

    def described(self) -> dict[str, Any]:
        """Return the description of the model for the page."""
        second, table, classes = second_of(self.explainer, self.kind), self.explainer.processor, self.classes
        columns = None
        if isinstance(table, Table):
            kinds = {name: list(values) for name, values in table.categorical.items()}
            columns = [{"name": name, "categories": kinds.get(name)} for name in table.columns]
        return {
            "name": self.name,
            "kind": self.kind,
            "takes": [" and ".join(names) for names in TAKES[self.kind]],
            "class": type(self.explainer.model).__name__,
            "labels": list(classes.values()),
            "indices": list(classes),
            "default": self.default,
            "samples": [_shown(sample) for sample in self.samples] if self.kind not in ("image", "detector") else [],
            "pictures": len(self.samples) if self.kind in PICTURES else 0,
            "columns": columns,
            "chat": bool(getattr(self.explainer.processor, "chat_template", None)),
            "second": None if second is None else {"names": second[0], "must": second[1]},
            "rate": rate_of(self.explainer) if self.kind == "sound" else None,
            "trouble": self.trouble or None,
        }

    # From what a client sends to what the explainer takes

    def opened(self, asked: Input, store: Store) -> Any:
        """Return the input for the explainer. Only text models get strings: others would open a file of that name."""
        sample = None
        if asked.sample is not None:
            if asked.sample >= (count := len(self.samples)):
                raise BadInput(f"sample {asked.sample} does not exist: {self.name!r} has {count}, numbered from 0.")
            sample = self.samples[asked.sample]
            sample = (sample,) if self.kind in ("image", "detector") else sample
        ways = asked.ways - {"sample"}
        allowed = [set(names) for names in TAKES[self.kind]]
        if sample is not None:  # of a picture with a text, the text may be another
            ways = set(TAKES[self.kind][0]) if not ways or self.kind == "pair" else ways | {"sample"}
        if ways not in allowed:
            wanted = " or ".join(" and ".join(names) for names in TAKES[self.kind])
            raise BadInput(f"{self.name!r} is a model of {self.kind}: give {wanted}, not {' and '.join(sorted(ways))}.")
        if (asked.answer is not None or asked.chat) and self.kind != "language":
            raise BadInput("answer and chat are for language models.")
        if self.kind in PICTURES:
            image = opened_picture(_uploaded(asked.image, store, "image")) if sample is None else sample[0]
            if self.kind != "pair":
                return self.erased(image, asked)
            text = _filled(asked.text if asked.text is not None or sample is None else sample[1])
            return self.erased(image, asked, text), text
        if asked.erased:
            raise BadInput("erased is for patches of an image.")
        if sample is not None and self.kind != "language":
            return sample
        if self.kind == "sound":
            return self._sound(_uploaded(asked.sound, store, "sound"))
        if self.kind == "table":
            return dict(asked.row or {})
        words = sample or _filled(asked.prompt if asked.text is None else asked.text)
        if self.kind != "language":
            return self._texts(words, asked.second)
        if asked.chat and getattr(self.explainer.processor, "chat_template", None):
            said = [] if asked.answer is None else [{"role": "assistant", "content": asked.answer}]
            return [{"role": "user", "content": words}, *said]
        return words if asked.answer is None else (words, asked.answer)

    def _sound(self, data: bytes) -> Any:
        """At the rate that the model wants."""
        from scipy.signal import resample_poly

        samples, rate = opened_sound(data)
        wanted = rate_of(self.explainer)
        if rate != wanted:
            common = int(np.gcd(rate, wanted))
            samples = resample_poly(samples, wanted // common, rate // common).astype(np.float32)
        return samples, wanted

    def _texts(self, words: str, second: str | None) -> Any:
        pair = second_of(self.explainer, self.kind)
        if second is None or not second.strip():
            if pair is not None and pair[1]:
                raise BadInput(f"{self.name!r} needs two texts, {pair[0][0]} and {pair[0][1]}: give the second, too.")
            return words
        if pair is None:
            raise BadInput(f"{self.name!r} takes one text: omit the second.")
        lines = [line.strip() for line in second.splitlines() if line.strip()]
        return (words, lines if "one per line" in pair[0][1] else second)

    def erased(self, image: Any, asked: Input, text: str | None = None) -> Any:
        """The picture with some patches in its mean colour; patches are counted as ``Explanation.units`` has them."""
        if not asked.erased:
            return image
        require("PIL", why="erasing patches")
        from PIL import Image

        units = first_of(self.explainer.explain(image if text is None else (image, text), method="random")).units
        if not erasable(units):
            raise NotOffered(
                "patches can be erased only if the image is resized as a whole; this model crops it, keeps its "
                "proportions, or has no grid of patches."
            )
        rows, columns = units.grid or (0, 0)
        patches = [i for i in range(len(units)) if units.is_patch(i)]
        pixels = np.array(image)
        mean = pixels.reshape(-1, 3).mean(0).round().astype(np.uint8)
        height, width = pixels.shape[:2]
        for unit in asked.erased:
            if unit not in patches:
                raise BadInput(f"unit {unit} is not a patch of this image, which has {rows} × {columns} patches.")
            row, column = divmod(patches.index(unit), columns)
            top, bottom = round(row * height / rows), round((row + 1) * height / rows)
            left, right = round(column * width / columns), round((column + 1) * width / columns)
            pixels[top:bottom, left:right] = mean
        return Image.fromarray(pixels)

    # Which methods explain it

    def rehearsal(self) -> Generator[None, None, None]:
        """Try methods on a sample in a few passes each; slow ones are left untried."""
        troubles: dict[str, str] = {}
        try:
            units = len(first_of(self.explainer.explain([self.samples[0]], method="random")).units)
        except WhyformerError as reason:  # all of them would say the same
            self.trouble, self.troubles = str(reason), {}
            log.warning("%s could not be tried on a sample: %s", self.name, reason)
            return
        for name, method in self._known().items():
            if not is_dear(name, units):
                with self.explainer.session([self.samples[0]]) as session:
                    troubles[name] = trouble_with(method, session, {})
            yield
        self.troubles = troubles

    def _known(self) -> dict[str, Method]:
        """Return all methods, with those that were learned for this model (whyformer serve --learned)."""
        learned = learned_methods()
        fingerprint = fingerprint_of(self.explainer.model) if learned else ""
        return {**list_methods(), **{name: m for name, m in learned.items() if m.fingerprint == fingerprint}}

    def methods(self) -> list[dict[str, Any]]:
        """Return all methods, with the reason if one does not apply; ``applies`` is None if it was not tried."""
        listed = []
        for name, method in self._known().items():
            trouble = None if self.troubles is None else self.troubles.get(name)
            told: dict[str, Any] = {"name": name, "cost": method.cost_text, "looks_at": method.specificity}
            told |= {each: getattr(method, each) for each in ("idea", "paper", "signed", "class_specific")}
            defaults = {key: option.default for key, option in method.options.items()}
            plain = (bool, int, float, str, type(None))
            told |= {"options": {key: v if isinstance(v, plain) else str(v) for key, v in defaults.items()}}
            told |= {"default": name == self.default, "applies": None if trouble is None else not trouble}
            listed.append(told | {"reason": trouble or None})
        return listed


def is_dear(method: str, units: int) -> bool:
    """Whether a method is too slow to be tried by default; the shap package takes long to import."""
    return method == "shap" or (get_method(method).slow and units > MANY_UNITS)


def erasable(units: Any) -> bool:
    return units.grid is not None and units.picture_size is not None


def first_of(result: Any) -> Explanation:
    """Return the first explanation of an input that has several (objects, generated tokens)."""
    while not isinstance(result, Explanation):
        if not result:
            raise NotOffered("the model has no prediction for this input.")
        result = result[0]
    return result


def _uploaded(identity: str | None, store: Store, what: str) -> bytes:
    data = store.upload(identity or "")
    if data is None:
        raise BadInput(f"unknown {what}: upload it again.")
    return data


def _filled(words: str | None) -> str:
    if words is None or not words.strip():
        raise BadInput("the text is empty: give some text to explain.")
    return words


def _shown(sample: Any) -> Any:
    """A sample as a page can write it into its form; of pictures with texts the text, of sounds nothing."""
    if isinstance(sample, tuple):
        words = [part for part in sample if isinstance(part, (str, list))]
        texts = [part if isinstance(part, str) else "\n".join(part) for part in words]
        return texts if isinstance(sample[0], str) else texts[0] if texts else None
    return sample


class Models:
    """The served models, by name."""

    def __init__(self, served: Sequence[ServedModel], loader: Callable[[str], ServedModel] | None = None) -> None:
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
        """Load a model by its name on the hub, never by a path."""
        if self.loader is None:
            raise NotOffered(
                "loading models is not allowed: start the server with --allow-models, or with --model NAME."
            )
        with self._lock:
            if name in self.by_name:
                return self.by_name[name]
            if len(self.by_name) - self._started_with >= MOST_MODELS:
                raise NotOffered(f"{MOST_MODELS} models are loaded already: restart the server.")
            self.by_name[name] = self.loader(name)
            return self.by_name[name]


def shipped_models() -> list[ServedModel]:
    """Return the models of whyformer-models, with samples for each."""
    require(*SHIPPED, why="serving the shipped models")
    from PIL import Image

    from whyformer import demo
    from whyformer.demo.census import adult_rows
    from whyformer.demo.pictures import face, picture

    faces = [Image.fromarray(face(animal)) for animal in ("cat", "dog")]
    shapes = [Image.fromarray(picture(*what, seed=1)) for what in (("horse", "striped"), ("fish", "plain"))]
    table_model, table = demo.load_adult()
    rows = [{k: v for k, v in row.items() if k != table.target} for row in adult_rows()]
    return [
        ServedModel("sentiment", "text", CoreExplainer(*demo.load_sentiment()), demo.SENTENCES),
        ServedModel("pets", "image", CoreExplainer(*demo.load_pets()), faces),
        ServedModel("textures", "image", CoreExplainer(*demo.load_textures()), shapes),
        ServedModel("adult", "table", CoreExplainer(table_model, table), rows),
    ]
