"""Vision-language models: a language model that reads images and videos among the tokens of its prompt."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from difflib import SequenceMatcher
from itertools import count, groupby
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import _get_current_function_mode_stack, _pop_mode, _push_mode

from whyformer.errors import BadInput, NotOffered
from whyformer.files import open_image
from whyformer.inputs import media
from whyformer.inputs import units as naming
from whyformer.inputs.base import Modality, Read
from whyformer.inputs.batch import Batch, Filling, Raw, SamplePool, on_host, signature_of
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.decoding import Decoding
from whyformer.inputs.exchanges import answered, without_end
from whyformer.inputs.families import continues_text, is_media, is_video
from whyformer.inputs.image import require_both
from whyformer.inputs.multi_input import StreamsMask, fitting, require_known
from whyformer.inputs.scenes import Scene, open_video, scene_of, with_regions, without_media
from whyformer.inputs.stream_inputs import Layout, StreamInput, WordEmbeddings
from whyformer.inputs.text import TextInput, TextMask, TextMean, TextPlace, TextRead
from whyformer.inputs.tokens import bare
from whyformer.results.types import Units

FEATURES = "mm_encoder_outputs"  # the argument by which a model takes images that its vision encoder has read
UNUSED = {"last_hidden_state", "hidden_states", "attentions"}  # of the encoder, which the language model does not read
BACKGROUNDS = ("mean", "zero", "blur")
FRAMES_AS_IMAGES = 'Pass frames of the video as images ({"text": …, "images": [frame, …]}).'
NO_GRID = (
    "the {count} image tokens of this text are no grid of pieces of the image (several views of it, or summaries of "
    "all of it), so {what}."
)


def reads_media(model: nn.Module) -> bool:
    """Return whether a language model takes images as its vision encoder returns them (transformers 5)."""
    return FEATURES in signature_of(model) and reads_images(model)


def reads_images(model: nn.Module) -> bool:
    """Return whether a language model reads images, as pixels at least (transformers 4)."""
    return continues_text(model) and hasattr(model, "get_image_features")


class VisionLanguageRead(TextRead):
    """A text with images and videos in it; units are its tokens, and pieces of the images.

    The vision encoder runs first, out of sight, and its result is handed to the language model: attention and relevance
    are those of the language model, whose image tokens each stand for a piece of an image. Masking a piece changes its
    pixels, and gradients are taken at them.
    """

    joint, kind = True, "language"

    def __init__(self, model: nn.Module, processor: Any = None) -> None:
        super().__init__(model, processor)
        self.place_ids = media.place_ids(self.config)
        self.text = TextInput(model, processor)
        # what is done to the features before they are handed over
        self._make: Callable[[Tensor, int], Tensor] | None = None

    def from_messages(self, inputs: Any) -> Any:
        if isinstance(inputs, Mapping):
            return scene_of(inputs) if "text" in inputs else inputs
        if naming.is_chat(inputs):
            return self.written_out(inputs)
        return [self.from_messages(one) if isinstance(one, (Mapping, list)) else one for one in inputs]

    def written_out(self, messages: Sequence[Mapping[str, Any]]) -> Scene:
        collected: dict[str, list[Any]] = {kind: [] for kind in media.KINDS}
        bare_messages = []
        for message in messages:
            content = message["content"]
            if not isinstance(content, str):
                content = [without_media(part, collected) for part in content]
            bare_messages.append({**message, "content": content})
        written = super().written_out(bare_messages)
        text, answer = written if isinstance(written, tuple) else (written, None)
        return Scene(text, tuple(collected["image"]), tuple(collected["video"]), answer)

    def is_prompt(self, raw: Raw) -> bool:
        return scene_of(raw).answer is None

    def allowed(self, decoding: Decoding, segments: Any) -> Any:
        return segments

    def encode(self, raw: Sequence[Raw]) -> Batch:
        scenes = [self._marked(scene_of(one)) for one in raw]
        encoded = [self._encoded(scene) for scene in scenes]
        facts = [
            self._aligned(scene.text, e["input_ids"][0].tolist()) for scene, e in zip(scenes, encoded, strict=True)
        ]
        texts, each = [], []
        for one in encoded:
            length = one["input_ids"].shape[1]
            each.append({n: t for n, t in one.items() if is_media(n)})
            texts.append({n: t[0] for n, t in one.items() if n not in each[-1] and t.shape[1:2] == (length,)})
        self._require_places({name for one in each for name in one})
        together, shapes = media.rows_together(each)
        width = max(len(one["input_ids"]) for one in texts)
        pad = {"input_ids": self.filler_id()}
        tensors = {
            n: torch.stack([nn.functional.pad(t[n], (0, width - len(t[n])), value=pad.get(n, 0)) for t in texts])
            for n in texts[0]
        }
        keep = torch.arange(width) < torch.tensor([len(one["input_ids"]) for one in texts])[:, None]
        tensors |= {"attention_mask": keep.long(), **together}
        self.check_vocabulary(torch.where(keep & ~self.is_place(tensors["input_ids"]), tensors["input_ids"], 0))
        answers = [scene.answer for scene in scenes]
        if any(a is None for a in answers) and any(a is not None for a in answers):
            raise BadInput("give an answer with every prompt, or with none of them.")
        return Batch(
            {n: self.move(t) for n, t in tensors.items() if self.takes(n)},
            keep_BN=self.move(keep),
            raw=tuple(s.text if s.answer is None else (s.text, s.answer) for s in scenes),
            warnings=tuple(self.unknown_words(f["ids"]) for f in facts),
            encodings=tuple({**f, "media": shape} for f, shape in zip(facts, shapes, strict=True)),
        )

    def _marked(self, scene: Scene) -> Scene:
        """Put marks for images in front of a text that has none."""
        text = scene.text
        for kind, items in (("image", scene.images), ("video", scene.videos)):
            if not items:
                continue
            names = [getattr(self.processor, name, None) for name in ("boi_token" * (kind == "image"), f"{kind}_token")]
            marks = [name for name in names if isinstance(name, str)]
            if marks and not any(mark in text for mark in marks):
                text = naming.PromptText(text, text.parts) if isinstance(text, naming.PromptText) else text
                start, end = self._around_marks()
                text = (start + marks[0] + end) * len(items) + "\n" + text
        return replace(scene, text=text)

    def _around_marks(self) -> tuple[str, str]:
        """Return the tokens around an image, by which Qwen tells it from the next one; empty where there are none."""
        ids = [getattr(self.config, f"vision_{side}_token_id", None) for side in ("start", "end")]
        tokenizer = getattr(self.processor, "tokenizer", None)
        if tokenizer is None or None in ids:
            return "", ""
        words = [word if isinstance(word, str) else "" for word in tokenizer.convert_ids_to_tokens(ids)]
        return words[0], words[1]

    def _encoded(self, scene: Scene) -> dict[str, Tensor]:
        """Return the processor's tensors of one input."""
        processor = require_both(self.processor)
        passed: dict[str, Any] = {"images": [[open_image(image) for image in scene.images]]} if scene.images else {}
        if scene.videos and not hasattr(processor, "video_processor"):
            raise BadInput(f"{type(processor).__name__} takes no videos. {FRAMES_AS_IMAGES}")
        passed |= {"videos": [[open_video(video) for video in scene.videos]]} if scene.videos else {}
        added = {"add_special_tokens": False} if isinstance(scene.text, naming.PromptText) else {}
        encoded = processed(processor, text=[scene.text], **passed, return_tensors="pt", **added)
        return {name: tensor for name, tensor in dict(encoded).items() if isinstance(tensor, Tensor)}

    def _aligned(self, text: str, ids: list[int]) -> dict[str, Any]:
        """Return facts about the tokens of a text whose marks of images were replaced by many tokens each."""
        written = self.encoding_of(text)
        plain = self.facts((text,), written)
        places = set(self.place_ids.values())
        mine = [i for i, token in enumerate(plain["ids"]) if token not in places]
        theirs = [i for i, token in enumerate(ids) if token not in places]
        matcher = SequenceMatcher(None, [plain["ids"][i] for i in mine], [ids[i] for i in theirs], autojunk=False)
        facts: dict[str, Any] = {"ids": ids, "pair": False, "text": str(text)}
        for name, nothing in (("word", -1), ("spans", None), ("role", naming.TEMPLATE)):
            if plain.get(name) is None:
                facts[name] = None
                continue
            facts[name] = [nothing] * len(ids)
            for block in matcher.get_matching_blocks():
                for step in range(block.size):
                    facts[name][theirs[block.b + step]] = plain[name][mine[block.a + step]]
        if facts["spans"] is not None:
            self._place_marks(facts["spans"], ids, plain)
        if facts["role"] is not None:
            facts["role"] = [naming.IMAGE if i in places else r for i, r in zip(ids, facts["role"], strict=True)]
        return facts

    def _place_marks(self, spans: list[Any], ids: list[int], plain: Mapping[str, Any]) -> None:
        """Give the tokens of each image the characters of its mark in the text, where every image has one."""
        places = set(self.place_ids.values())
        marks = [span for token, span in zip(plain["ids"], plain["spans"], strict=True) if token in places]
        runs = [list(run) for held, run in groupby(range(len(ids)), lambda i: ids[i] in places) if held]
        if len(runs) < len(marks) and len(runs) == 1 and len(runs[0]) % len(marks) == 0:  # images beside each other
            each = len(runs[0]) // len(marks)
            runs = [runs[0][i : i + each] for i in range(0, len(runs[0]), each)]
        if len(runs) == len(marks):
            for span, run in zip(marks, runs, strict=True):
                for i in run:
                    spans[i] = span

    def adopt(self, tensors: Any) -> Batch:
        tensors = dict(tensors)
        if "input_ids" not in tensors:
            raise BadInput("pixel_values without input_ids: give the text with the places of its images, too.")
        ids = tensors["input_ids"]
        held = {n: t for n, t in tensors.items() if is_media(n) and isinstance(t, Tensor)}
        words = {n: t for n, t in tensors.items() if n not in held}
        covered = self.is_place(ids) if isinstance(ids, Tensor) else ids
        batch = self.text.read.adopt(words | {"input_ids": torch.where(covered, 0, ids)})
        for name in held:
            if name not in self.parameters:
                advice = f" {FRAMES_AS_IMAGES}" if is_video(name) else ""
                raise BadInput(f"{type(self.model).__name__} takes no {name}.{advice}")
        self._require_places(held)
        each = media.split_by_input(held, ids, self.config)
        together, shapes = media.rows_together(each)
        facts = [
            {**f, "ids": row, "media": shape}
            for f, row, shape in zip(batch.encodings, ids.tolist(), shapes, strict=True)
        ]
        moved = {n: self.move(t) for n, t in {"input_ids": ids, **together}.items()}
        return replace(batch, tensors=batch.tensors | moved, encodings=tuple(facts))

    def _require_places(self, names: Collection[str]) -> None:
        for kind, (pixels, _, given_by) in media.KINDS.items():
            if pixels in names and kind not in self.place_ids:
                raise NotOffered(
                    f"the config of {type(self.model).__name__} has no {given_by[0]}, so the tokens of a {kind} cannot "
                    f"be found in the text. {FRAMES_AS_IMAGES if kind == 'video' else 'Pass the text alone.'}"
                )

    def prompt_tokens(self, batch: Batch, row: int) -> tuple[list[int], dict[str, Any]]:
        facts = batch.encodings[row]
        return without_end(self, batch.raw[row][0], facts["ids"]), facts

    def beside_prompt(self, batch: Batch, row: int, length: int) -> dict[str, Tensor]:
        real = batch.real_BN[row]
        words = {n: t for n, t in batch.tensors.items() if n not in {self.main, "attention_mask"} and not is_media(n)}
        real_words = {n: t[row : row + 1, real][:, :length] for n, t in words.items()}
        return real_words | media.row_of(batch.tensors, row, batch.encodings[row])

    def one_by_one(self, batch: Batch) -> bool:
        if batch.size == 1 or batch.trunks:
            return False
        shapes = [known.get("media") for known in batch.encodings]
        return any(shape != shapes[0] for shape in shapes) or not bool(on_host(batch.real_BN).all())

    def alone(self, one: Batch) -> Batch:
        return bare(one)

    def call(self, batch: Batch, **extra: Any) -> Any:
        facts: tuple[Any, ...] = batch.encodings or ({},) * batch.size
        rows = [media.row_of(batch.tensors, row, facts[row]) for row in range(batch.size)]
        tensors = {name: tensor for name, tensor in batch.tensors.items() if not is_media(name)}
        outputs = {}
        for kind, (name, _, _) in media.KINDS.items():
            if any(name in row for row in rows):
                outputs[kind] = self._features(kind, rows, tensors[self.main])
                rows = [{n: t for n, t in row.items() if n != name} for row in rows]
        for name in dict.fromkeys(name for row in rows for name in row):
            tensors[name] = torch.cat([row[name] for row in rows if name in row])
        return super().call(replace(batch, tensors=tensors), **extra, **({FEATURES: outputs} if outputs else {}))

    def _features(self, kind: str, rows: Sequence[Mapping[str, Tensor]], ids_BN: Tensor) -> Any:
        """Return what the vision encoder makes of the images of all inputs; equal ones are read once."""
        getter, pixels = self.getter(kind), media.KINDS[kind][0]
        known = [name for name in inspect.signature(getter).parameters if any(name in row for row in rows)]
        required = [n for n, p in inspect.signature(getter).parameters.items() if p.default is p.empty]
        missing = [n for n in required if n not in known and n not in ("args", "kwargs")]
        if missing:
            raise NotOffered(
                f"{type(self.model).__name__}.get_{kind}_features also takes {', '.join(missing)}, which is not passed "
                "on here. Pass the text alone, or wrap the model in a module whose forward returns its logits."
            )
        held = [row for row, entries in enumerate(rows) if pixels in entries]
        firsts = _firsts([[rows[row][name] for name in known] for row in held])
        chosen = sorted(set(firsts))
        with out_of_sight():
            output = getter(**{name: torch.cat([rows[held[i]][name] for i in chosen]) for name in known})
        if len(chosen) == len(firsts) and self._make is None:
            return output
        tokens = (ids_BN == self.place_ids[kind]).sum(1)[held].tolist()
        order = [chosen.index(first) for first in firsts]
        for name, value in list(output.items()):
            if name not in UNUSED:
                output[name] = self._arranged(value, order, [tokens[i] for i in chosen], self.place_ids[kind])
        return output

    def getter(self, kind: str) -> Callable[..., Any]:
        """Return the method that runs the vision encoder, of the model or of the one inside (Gemma 4's videos)."""
        for owner in (self.model, getattr(self.model, "model", None)):
            if callable(getter := getattr(owner, f"get_{kind}_features", None)):
                return getter
        raise NotOffered(f"{type(self.model).__name__} has no get_{kind}_features. {FRAMES_AS_IMAGES}")

    def _arranged(self, value: Any, order: list[int], tokens: list[int], place: int) -> Any:
        """Return features in the order of the batch, through ``make``. tokens: of each input whose images were read.

        Features have one vector per token: as one tensor, or as one for each image; of several layers, in a list.
        """
        parts = list(value) if isinstance(value, (list, tuple)) else [value]
        if not all(isinstance(part, Tensor) for part in parts) or _vectors(parts) != sum(tokens):
            return [self._arranged(part, order, tokens, place) for part in parts] if parts != [value] else value
        together = torch.cat([part.flatten(0, -2) for part in parts])
        if order != list(range(len(tokens))):
            each = together.split(tokens)
            together = torch.cat([each[first] for first in order])
        together = together if self._make is None else self._make(together, place)
        if not isinstance(value, (list, tuple)):
            return together.unflatten(0, (-1, *value.shape[1:-1]))
        sizes = [len(part.flatten(0, -2)) for part in parts]
        if len(together) != sum(sizes):  # several inputs with the same images: as many pieces for each of them
            sizes = [sum(tokens[first : first + 1]) for first in order]
        return list(together.split(sizes))

    def is_place(self, ids: Tensor) -> Tensor:
        return torch.isin(ids, torch.tensor(list(self.place_ids.values()), device=ids.device))

    def covered(self, batch: Batch) -> Tensor | None:
        return self.is_place(batch.tensors[self.main]) & batch.real_BN

    def vectors(self, one: Batch, kind: str) -> Tensor:
        """(tokens, D) what the vision encoder hands over for one input, under the function modes that are on."""
        of_row = media.row_of(one.tensors, 0, one.encodings[0] if one.encodings else {})
        getter = self.getter(kind)
        known = {name: of_row[name] for name in inspect.signature(getter).parameters if name in of_row}
        pooled = getter(**known).pooler_output
        parts = list(pooled) if isinstance(pooled, (list, tuple)) else [pooled]
        return torch.cat([part.flatten(0, -2) for part in parts])

    @contextmanager
    def handed_over(self, make: Callable[[Tensor, int], Tensor]) -> Iterator[list[tuple[Tensor, int]]]:
        made: list[tuple[Tensor, int]] = []

        def change(features: Tensor, token: int) -> Tensor:
            made.append((make(features, token), token))
            return made[-1][0].clone()

        self._make = change
        try:
            yield made
        finally:
            self._make = None


class VisionLanguagePlace(TextPlace):
    """The tokens of a text, some of which stand for pieces of images."""

    read: VisionLanguageRead

    def __init__(self, read: Read) -> None:
        super().__init__(read)
        self._seen: tuple[list[Tensor], str | None] = ([], None)  # the last images that were drawn, and their picture

    def part(self, stream: str, batch: Batch) -> tuple[Modality | None, Batch]:
        return None, batch

    def inputs(self, batch: Batch) -> list[tuple[Tensor, str]]:
        return [(batch.tensors[self.read.main], self.read.stream)]

    def tiles(self, batch: Batch, row: int = 0) -> list[media.Tile] | None:
        """Return the tiles of one input, in the order of their kinds."""
        of_row = media.row_of(batch.tensors, row, batch.encodings[row] if batch.encodings else {})
        ids = batch.tensors[self.read.main][row]
        counts = {kind: int((ids == token).sum()) for kind, token in self.read.place_ids.items()}
        return media.tiles_of(of_row, self.read.config, counts)

    def token_ranks(self, ids: Sequence[int]) -> dict[str, list[int]]:
        """Return the positions of the tokens of each kind of media."""
        return {
            kind: [i for i, token in enumerate(ids) if token == place] for kind, place in self.read.place_ids.items()
        }

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        texts = super().units(batch, length, front, None)
        result = []
        for row, units in enumerate(texts):
            ids = batch.tensors[self.read.main][row][batch.real_BN[row]].tolist()
            tiles, ranks = self.tiles(batch, row), self.token_ranks(ids)
            labels, boxes = list(units.labels), [(0.0, 0.0, 0.0, 0.0)] * len(units)
            held = [place for places in ranks.values() for place in places]
            for number, place in enumerate(sorted(held)):
                labels[place] = f"image {number}"
            shape: dict[str, Any] = {}
            if tiles is not None:
                named = zip(_places_of(tiles, ranks), _names_of(tiles), media.boxes_of(tiles), strict=True)
                for place, name, box in named:
                    labels[place], boxes[place] = name, box
                in_order = list(_places_of(tiles, ranks)) == sorted(held)
                shape = {"image_size": media.sheet_size(tiles)}
                shape |= (
                    {"grid": media.stacked(tiles)} if in_order and media.stacked(tiles) else {"boxes": tuple(boxes)}
                )
            inside = set(held)
            result.append(
                replace(
                    units,
                    labels=tuple(labels),
                    special=tuple(s and i not in inside for i, s in enumerate(units.special)),
                    stream=tuple("image" if i in inside else self.read.stream for i in range(len(units))),
                    **shape,
                )
            )
        return result

    def divided(self, units: Units, by: Any, facts: Mapping[str, Any]) -> tuple[list[list[int]], Units] | None:
        """Words or sentences for the text; the images stay in pieces, unless regions are given."""
        if by == "token":
            return None
        by = by if isinstance(by, Mapping) else {"text": by}
        if unknown := sorted(set(by) - {"text", "image", "images"}):
            raise BadInput(f'units has the key {unknown[0]!r}: give {{"text": …, "image": […]}}.')
        groups, joined = [[unit] for unit in range(len(units))], units
        if (size := by.get("text", "token")) != "token":
            groups, joined = naming.segmented(units, size, facts.get("whole"))
            boxes = units.boxes and tuple(units.boxes[group[0]] for group in groups)
            whole = joined.stream.count("image") == units.stream.count("image")  # neither joined nor left out
            joined = replace(
                joined, grid=units.grid if whole else None, image_size=units.image_size, boxes=boxes if whole else None
            )
        regions = by.get("images", by.get("image"))
        return (groups, joined) if regions is None else with_regions(units, groups, joined, regions)

    def picture(self, batch: Batch, row: int) -> str | None:
        tiles = self.tiles(batch, row)
        if tiles is None:
            return None
        processor = getattr(self.read.processor, "image_processor", None)
        scales = [getattr(processor, name, None) for name in ("image_mean", "image_std")]
        if not getattr(processor, "do_normalize", False):
            scales = [None, None]
        of_row = media.row_of(batch.tensors, row, batch.encodings[row] if batch.encodings else {})
        seen = [of_row[name] for name, _, _ in media.KINDS.values() if name in of_row]
        # The tokens of one answer have the same images.
        if len(seen) != len(self._seen[0]) or not all(_equal(a, b) for a, b in zip(seen, self._seen[0], strict=True)):
            self._seen = [tensor.clone() for tensor in seen], media.sheet(tiles, of_row, *scales)
        return self._seen[1]

    def pieces(self, one: Batch) -> dict[str, dict[str, Tensor]]:
        tiles = self.tiles(one)
        held = {kind: name for kind, (name, _, _) in media.KINDS.items() if name in one.tensors}
        if tiles is None:
            return {}
        return {kind: media.owners_of(tiles, {name: one.tensors[name][0]}) for kind, name in held.items()}

    def row_and_column(self, one: Batch, kind: str, token: int) -> str:
        """Return where a token of an image is in it."""
        tile = next(t for t in self.tiles(one) or () if t.kind == kind and token in t.tokens)
        row, column = divmod(token - tile.first, tile.grid[1])
        return f"{row}, column {column}"


class VisionLanguageMask(StreamsMask, TextMask):
    """Other tokens, and other pixels of a piece of an image, stand in place of masked ones."""

    read: VisionLanguageRead
    place: VisionLanguagePlace

    def stream_inputs(self, stream: str, layout: Layout, placed: Any, whole: Modality | None) -> list[StreamInput]:
        entries: list[StreamInput] = [WordEmbeddings(placed, stream, self, layout[stream], whole)]
        for kind, (name, _, _) in media.KINDS.items():
            if name in placed.batch.tensors:
                self.require_tiles(placed.batch, "gradients at pixels cannot be assigned to them")
                entries.append(media.MediaPixels(placed, kind, self, layout[stream], name))
        return entries

    def require_tiles(self, batch: Batch, what: str, row: int = 0) -> list[media.Tile]:
        tiles = self.place.tiles(batch, row)
        if tiles is None:
            held = self.read.is_place(batch.tensors[self.read.main][row])
            raise NotOffered(NO_GRID.format(count=int(held.sum()), what=what))
        return tiles

    @property
    def replacements(self) -> tuple[str, ...]:
        """Of the text, then of the images: each takes the one it has."""
        known = [r for r in self.read.text.mask.replacements if r in {"mask", "unk", "pad"}]
        return (*known, *BACKGROUNDS)

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        real = one.real_BN[0]
        words = [-1 if stream == "image" else i for i, stream in enumerate(units.stream)]
        owner = torch.full_like(real, -1, dtype=torch.long)
        owner[real] = torch.tensor(words, device=owner.device)
        owners = {self.read.main: owner}
        if "image" not in units.stream:
            return owners
        tiles, tensors = self.require_tiles(one, "they cannot be masked one by one"), one.tensors
        ranks = self.place.token_ranks(tensors[self.read.main][0][real].tolist())
        pixels = {n: tensors[n][0] for n, _, _ in media.KINDS.values() if n in tensors}
        for name, token in media.owners_of(tiles, pixels).items():
            kind = next(kind for kind, (first, _, _) in media.KINDS.items() if first == name)
            places = torch.tensor([*ranks[kind], -1], device=token.device)
            owners[name] = places[token]
        return owners

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        require_known(self, name)
        word = self.replacement_id(fitting(self.read.text.mask, name))
        if word in self.read.place_ids.values():
            raise BadInput(f"replace={name!r} is the token that holds the place of an image: choose another.")
        filling = {self.read.main: torch.full_like(one.tensors[self.read.main], word)}
        background = name if name in BACKGROUNDS else BACKGROUNDS[0]
        tiles = self.place.tiles(one) or []
        for kind, (pixels, _, _) in media.KINDS.items():
            if pixels in one.tensors:
                of_kind = [tile for tile in tiles if tile.kind == kind]
                filling[pixels] = media.filled(one.tensors[pixels][0], of_kind, background)[None]
        return [filling]


class VisionLanguageMean(TextMean):
    """The next token of the text."""

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        steps, target = answered(self, batch, target)
        if steps is batch:
            return steps, target
        shapes = [facts["media"] for facts in batch.encodings]
        rows = steps.groups or steps.trunks or tuple(range(batch.size))
        return replace(
            steps, encodings=tuple({**f, "media": shapes[r]} for f, r in zip(steps.encodings, rows, strict=True))
        ), target


VisionLanguageInput = Modality.of(VisionLanguageRead, VisionLanguagePlace, VisionLanguageMask, VisionLanguageMean)


def _places_of(tiles: Sequence[media.Tile], ranks: Mapping[str, Sequence[int]]) -> Iterator[int]:
    """Yield the position in the text of each token of the tiles."""
    for tile in tiles:
        yield from (ranks[tile.kind][token] for token in tile.tokens)


def _names_of(tiles: Sequence[media.Tile]) -> Iterator[str]:
    """Yield the names of the tokens of the tiles: "patch 2,3", with the number of the tile where there are several."""
    numbers = {kind: count(1) for kind in media.KINDS}
    for tile in tiles:
        number = next(numbers[tile.kind])
        word = "frame" if tile.kind == "video" else "image"
        front = f"{word} {number} " if len(tiles) > 1 else ""
        rows, columns = tile.grid
        yield from (f"{front}patch {r},{c}" for r in range(1, rows + 1) for c in range(1, columns + 1))


def _firsts(rows: Sequence[Sequence[Tensor]]) -> list[int]:
    """Return for each input the first one that has the same images."""
    firsts: list[int] = []
    for number, entries in enumerate(rows):
        traced = any(tensor.requires_grad for tensor in entries)
        same = (f for f in dict.fromkeys(firsts) if all(_equal(a, b) for a, b in zip(rows[f], entries, strict=True)))
        firsts.append(number if traced else next(same, number))
    return firsts


def _vectors(parts: Sequence[Tensor]) -> int:
    return sum(part.numel() // part.shape[-1] for part in parts if part.ndim > 1)


def _equal(a: Tensor, b: Tensor) -> bool:
    return a.shape == b.shape and torch.equal(a, b)


@contextmanager
def out_of_sight() -> Iterator[None]:
    """Run what is inside without the function modes that are on: interceptors see the language model alone."""
    modes = [_pop_mode() for _ in _get_current_function_mode_stack()]
    try:
        yield
    finally:
        for mode in reversed(modes):
            _push_mode(mode)
