"""Inputs of several streams: vectors of image regions, two texts that are compared, encoder-decoders."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, NotOffered, NotOverUnits, UnknownName
from whyformer.inputs.audio import AudioInput
from whyformer.inputs.base import LearnedPositions, Mask, Mean, Modality, Place, Read
from whyformer.inputs.batch import NOT_THE_MODELS, Batch, Filling, Placed, Raw, SamplePool, signature_of
from whyformer.inputs.checkpoint import processed
from whyformer.inputs.decoding import Decoding
from whyformer.inputs.exchanges import wanted_steps
from whyformer.inputs.families import LATE, SIDES, task_of
from whyformer.inputs.image import ImageInput
from whyformer.inputs.stream_inputs import Layout, StreamInput, Vectors
from whyformer.inputs.text import TextInput, TextMask, TextPlace, TextRead
from whyformer.inputs.tokens import bare, last_real
from whyformer.inputs.units import Column, pick
from whyformer.results.types import Units
from whyformer.targets import logits_of


class VectorRead(Read):
    """Vectors of regions of an image, given as a (B, N, D) tensor. boxes: the argument with their coordinates."""

    stream = "image"

    def __init__(self, model: nn.Module, main: str, word: str = "box", boxes: str | None = None) -> None:
        super().__init__(model)
        self.main, self.word, self.boxes = main, word, boxes

    def encode(self, raw: Sequence[Raw]) -> Batch:
        raise NotOffered(f"{self.main} holds vectors that another model made: pass them as a tensor.")


class VectorPlace(Place):
    """Regions, with their boxes where these are given."""

    read: VectorRead

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        places = None if self.read.boxes is None else batch.tensors.get(self.read.boxes)
        result = []
        for row, keep in enumerate(self.keep(batch, length, front)):
            real, boxes = keep.nonzero()[:, 0].tolist(), None
            if places is not None and places.ndim == 3 and places.shape[2] >= 4:
                boxes = tuple(tuple(float(x) for x in places[row, i, :4]) for i in real)
            labels = tuple(f"{self.read.word} {i}" for i in real)
            result.append(Units(labels, (False,) * len(real), (self.read.stream,) * len(real), boxes=boxes))
        return result

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        keep = super().keep(batch, length, front)
        for name, mask in batch.tensors.items():
            if name.startswith(("visual", "pixel")) and "mask" in name and mask.shape == keep.shape:
                return mask.bool()
        return keep


class VectorMask(Mask):
    """Vectors of zeros, or the mean vector of the input."""

    replacements = ("zero", "mean")

    def stream_inputs(self, stream: str, layout: Layout, placed: Placed, whole: Modality | None) -> list[StreamInput]:
        return [Vectors(placed, stream, self, layout[stream])]


VectorInput = Modality.of(VectorRead, VectorPlace, VectorMask)


class StreamsMask(Mask):
    """Each stream is masked by its own modality. A mixin."""

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        return owners_by_stream(self, units, one)

    def filling(self, name: Any, units: Units, one: Batch, pool: SamplePool | None = None) -> list[Filling]:
        if pool is not None:
            return super().filling(name, units, one, pool)
        return filling_by_stream(self, name, units, one)


def _streams(mask: Mask, units: Units, one: Batch) -> Iterator[tuple[Mask, Batch, list[int], Units]]:
    """Yield how each stream is masked, the input as it reads it, and the numbers and names of its units."""
    for stream in dict.fromkeys(units.stream):
        members = [i for i, s in enumerate(units.stream) if s == stream]
        part, view = mask.place.part(stream, one)
        yield part.mask if part is not None else mask, view, members, pick(units, members)


def owners_by_stream(mask: Mask, units: Units, one: Batch) -> dict[str, Tensor]:
    """Return the unit of each entry, of all streams."""
    owners = {}
    for part, view, members, of_stream in _streams(mask, units, one):
        for name, owner in part.owners(of_stream, view).items():
            owners[name] = torch.tensor([*members, -1], device=owner.device)[owner]  # -1 stays
    return owners


def filling_by_stream(mask: Mask, name: str | int, units: Units, one: Batch) -> list[Filling]:
    """Return the baseline of all streams; ``name`` goes to those that have it (ids go to text)."""
    require_known(mask, name)
    filling: Filling = {}
    for part, view, _, of_stream in _streams(mask, units, one):
        filling |= part.filling(fitting(part, name), of_stream, view)[0]
    return [filling]


def require_known(mask: Mask, replacement: str | int) -> None:
    """Raise if no stream has the replacement: it would be ignored."""
    if not mask.takes_token_ids if isinstance(replacement, int) else replacement not in mask.replacements:
        hint = "A token id (an integer) works too." if mask.takes_token_ids else ""
        raise UnknownName("replacement", replacement, mask.replacements, hint)


def fitting(part: Mask, replacement: str | int) -> Any:
    """Return the replacement that was asked for if this stream has it, else its first one that keeps the length."""
    offered = [r for r in part.replacements if r not in {"delete", "attention_mask"}]
    if part.read.embeds:
        if isinstance(replacement, int) or replacement in offered:
            return replacement
        return offered[0] if offered else 0  # no tokenizer, no config: the first token of the vocabulary
    return replacement if replacement in offered or not offered else offered[0]


class SimilarityRead(TextRead):
    """A pair of texts per input; units are the tokens of both, and the cosine of their two vectors is explained.

    The vector of a text is the model's own (``sentence_embedding``, ``text_embeds``), else the mean of its last hidden
    states over real tokens. ``scalar="maxsim"``: late interaction (ColBERT), the sum over tokens of a of the largest
    cosine with a token of b; the only one of models that return a vector per token (``embeddings``, ColPali). Tensors
    are named ``a_input_ids``, ``b_input_ids``, and so on.
    """

    joint, kind, stream = True, "streams", "a"

    def __init__(self, model: nn.Module, processor: Any = None) -> None:
        processor = processor if processor is not None else getattr(model, "tokenizer", None)
        super().__init__(model, processor, main="a_input_ids")
        self.sides = {side: TextInput(model, processor, main=f"{side}_input_ids") for side in SIDES}
        self.plain = TextInput(model, processor)

    def encode(self, raw: Sequence[Raw]) -> Batch:
        for pair in raw:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise BadInput(f"expected a pair of texts, got {type(pair).__name__}: {str(pair)[:60]!r}")
        encoded = {side: self.plain.read.encode([pair[i] for pair in raw]) for i, side in enumerate(SIDES)}
        tensors = {f"{side}_{k}": v for side, batch in encoded.items() for k, v in batch.tensors.items()}
        for side, batch in encoded.items():
            tensors.setdefault(f"{side}_attention_mask", batch.real_BN.long())
        facts = zip(*(batch.encodings for batch in encoded.values()), strict=True)
        warnings = zip(*(batch.warnings for batch in encoded.values()), strict=True)
        return Batch(
            tensors,
            raw=tuple(tuple(p) for p in raw),
            warnings=tuple((*a, *b) for a, b in warnings),
            encodings=tuple({"a": a, "b": b} for a, b in facts),
        )

    def adopt(self, tensors: Any) -> Batch:
        named = {k: self.move(v) for k, v in dict(tensors).items()}
        missing = [f"{side}_input_ids" for side in SIDES if f"{side}_input_ids" not in named]
        if missing:
            raise BadInput(f"two texts are given as a_input_ids and b_input_ids (with masks); missing: {missing}.")
        for side in SIDES:
            named.setdefault(f"{side}_attention_mask", torch.ones_like(named[f"{side}_input_ids"]))
        return Batch(named)

    def call(self, batch: Batch, **extra: Any) -> Any:
        return tuple(self._read(batch, side, **extra) for side in SIDES)

    def _read(self, batch: Batch, side: str, **extra: Any) -> Side:
        """Run the model on one of the texts."""
        tensors = {k.removeprefix(f"{side}_"): v for k, v in batch.tensors.items() if k.startswith(f"{side}_")}
        if "input_ids" in self.parameters:
            output = self.run_model(batch, **tensors, **extra)
        else:
            output = self.run_model(batch, dict(tensors))
        known = [output[k] for k in ("sentence_embedding", "text_embeds") if k in output]
        mask = tensors["attention_mask"]
        hidden = next((output[k] for k in ("embeddings", "last_hidden_state", "token_embeddings") if k in output), None)
        if hidden is None and not known:
            raise NotOffered("the model returns neither token vectors nor a vector of the text: it cannot be compared.")
        shares = None
        if hidden is not None:
            weights = mask.to(hidden.dtype) / mask.sum(1, keepdim=True)
            shares = hidden * weights[..., None]
        if known:
            return Side(known[0], shares if _is_their_mean(known[0], shares) else None, hidden, mask)
        assert shares is not None
        return Side(shares.sum(1), shares, hidden, mask)


class SimilarityPlace(TextPlace):
    """The tokens of both texts."""

    read: SimilarityRead

    def inputs(self, batch: Batch) -> list[tuple[Tensor, str]]:
        return [(batch.tensors[f"{side}_input_ids"], side) for side in SIDES]

    def part(self, stream: str, batch: Batch) -> tuple[Modality | None, Batch]:
        tensors = {k: v for k, v in batch.tensors.items() if k.startswith(f"{stream}_")}
        facts = tuple(e[stream] for e in batch.encodings)
        keep = batch.tensors[f"{stream}_attention_mask"].bool()
        return self.read.sides[stream], replace(batch, tensors=tensors, keep_BN=keep, encodings=facts)


class SimilarityMask(StreamsMask, TextMask):
    """Tokens of both texts are replaced in place."""

    read: SimilarityRead

    @property
    def replacements(self) -> tuple[str, ...]:
        return tuple(r for r in self.read.plain.mask.replacements if r in {"mask", "unk", "pad"}) or ("unk",)


class SimilarityMean(Mean):
    """The cosine of two vectors, or the sum over tokens of a of the largest cosine with a token of b."""

    outcome = "similarity"

    def scalar(self, scalar: str) -> str:
        if scalar not in {"logit", "centred", "cosine", "maxsim"}:
            raise NotOffered(
                f"scalar={scalar!r}: the similarity of two texts is explained as scalar='cosine', or 'maxsim' (late "
                "interaction)."
            )
        late = scalar == "maxsim" or (scalar != "cosine" and task_of(self.read.model).endswith(LATE))
        return "maxsim" if late else "cosine"

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        a, b = output
        if scalar == "maxsim":
            return _largest(a, b).sum((1, 2))[:, None]
        return nn.functional.cosine_similarity(a.vector_BD, b.vector_BD, dim=-1)[:, None]

    @torch.no_grad()
    def pairs(self, output: Any, scalar: str) -> Tensor | None:
        """(B, N_a, N_b) what each pair of tokens adds to the similarity (to a cosine: of means), else None."""
        if scalar == "maxsim":
            return _largest(*output).float()
        shares = [side.shares_BND for side in output if side.shares_BND is not None]
        if len(shares) < 2:
            return None
        a_shares, b_shares = (each.float() for each in shares)
        scale = (a_shares.sum(1).norm(dim=-1) * b_shares.sum(1).norm(dim=-1))[:, None, None]
        return torch.einsum("bnd,bmd->bnm", a_shares, b_shares) / scale


SimilarityInput = Modality.of(SimilarityRead, SimilarityPlace, SimilarityMask, SimilarityMean)


class Side(NamedTuple):
    """One of two texts: its vector, the shares of its tokens where it is their mean, and their vectors."""

    vector_BD: Tensor
    shares_BND: Tensor | None
    tokens_BND: Tensor | None
    mask_BN: Tensor


def _largest(a: Side, b: Side) -> Tensor:
    """(B, N_a, N_b) the cosine of each token of a with the token of b that is most like it; 0 elsewhere."""
    if a.tokens_BND is None or b.tokens_BND is None:
        raise NotOffered("scalar='maxsim': the model returns no vectors of tokens. Use 'cosine'.")
    query, document = (nn.functional.normalize(vectors, dim=-1) for vectors in (a.tokens_BND, b.tokens_BND))
    cosine_BNM = torch.einsum("bnd,bmd->bnm", query, document)
    hidden_BNM = ~b.mask_BN.bool()[:, None].expand_as(cosine_BNM)
    best_BN1 = cosine_BNM.masked_fill(hidden_BNM, -torch.inf).argmax(2, keepdim=True)
    chosen = torch.zeros_like(cosine_BNM).scatter(2, best_BN1, 1.0)
    return cosine_BNM * chosen * a.mask_BN[:, :, None].to(cosine_BNM.dtype)


def _is_their_mean(vector_BD: Tensor, shares_BND: Tensor | None) -> bool:
    """Return whether the text's vector is the mean of its tokens', up to a factor (many models normalise it)."""
    if shares_BND is None or shares_BND.shape[-1] != vector_BD.shape[-1]:
        return False
    cosine = nn.functional.cosine_similarity(shares_BND.sum(1).float(), vector_BD.float(), dim=-1)
    return bool((cosine > 1 - 1e-5).all())


class Seq2SeqRead(TextRead):
    """A source (text, sound, image) and a target; of a source alone, each token of the greedy answer is explained."""

    joint, kind, stream = True, "streams", "source"

    def __init__(
        self, model: nn.Module, processor: Any = None, source: str = "input_ids", target: str = "decoder_input_ids"
    ) -> None:
        super().__init__(model, processor, main=source)
        self.target = target
        heads = ("ForSequenceClassification", "ForQuestionAnswering", "ForTokenClassification", "ForObjectDetection")
        writes = bool(getattr(self.config, "is_encoder_decoder", False)) and not task_of(model).endswith(heads)
        self.generates = target == "decoder_input_ids" and writes
        kinds = {"input_features": AudioInput, "input_values": AudioInput, "pixel_values": ImageInput}
        self.source: Modality = kinds.get(source, TextInput)(model, processor, main=source)
        self.answer = Answer(model, processor, target)

    def allowed(self, decoding: Decoding, segments: Any) -> Any:
        """Accept only a number of tokens to generate."""
        plain = decoding == Decoding(generate=decoding.generate, seed=decoding.seed)
        if not plain or not isinstance(decoding.generate, int | None):
            raise NotOffered(
                "span, choices and other settings are for models without an encoder: give generate=<tokens>."
            )
        return segments if segments == "token" else super().allowed(decoding, segments)

    def encode(self, raw: Sequence[Raw]) -> Batch:
        if not self.generates:
            return super().encode(raw)
        pairs = [r if isinstance(r, tuple) and len(r) == 2 and isinstance(r[1], str) else (r, None) for r in raw]
        batch = self.source.read.encode([source for source, _ in pairs])
        return self.answer.with_answers(batch, [answer for _, answer in pairs])

    def adopt(self, tensors: Any) -> Batch:
        if not isinstance(self.source.read, TextRead):
            return self.source.read.adopt(tensors)
        batch = super().adopt(tensors)
        mask = batch.tensors.get("attention_mask")  # the decoder's mask may have the source's width by chance
        return batch if mask is None else replace(batch, keep_BN=mask.bool())


class Seq2SeqPlace(TextPlace):
    """The units of the source; those of the target are tokens."""

    read: Seq2SeqRead

    def settle(self, one: Batch, grid: tuple[int, int] | None) -> int:
        return self.read.passes + self.read.source.place.settle(one, grid)

    def inputs(self, batch: Batch) -> list[tuple[Tensor, str]]:
        if self.read.target == "decoder_input_ids":  # as transformers calls it
            return super().inputs(batch)
        return [(batch.tensors[self.read.main], "source"), (batch.tensors[self.read.target], "target")]

    def beside(self, batch: Batch, length: int) -> dict[str, Column]:
        return {name: (name, ...) for name in self.read.unscored}

    def part(self, stream: str, batch: Batch) -> tuple[Modality | None, Batch]:
        if stream == "target" and (self.read.target in batch.tensors or isinstance(self.read.source.read, TextRead)):
            return self.read.answer.part(batch, self.read.main)
        if stream == "queries":
            return LearnedPositions(self.read.model, self.read.main), batch
        return self.read.source, batch

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        self._require_text()
        return super().units(batch, length, front, grid)

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        self._require_text()
        return super().keep(batch, length, front)

    def _require_text(self) -> None:
        """Raise for sources other than text: units of all streams are needed only where no streams were found."""
        if not isinstance(self.read.source.read, TextRead):
            raise NotOverUnits(
                "positions of the model's attention cannot be matched with the input: its encoder attends inside "
                "windows (Donut), or over positions that change from layer to layer."
            )


class Seq2SeqMask(StreamsMask, TextMask):
    """Both streams are masked in place."""

    read: Seq2SeqRead

    @property
    def replacements(self) -> tuple[str, ...]:
        offered = [r for r in self.read.source.mask.replacements if r not in {"delete", "attention_mask"}]
        return tuple(offered) or ("unk",)

    def owners(self, units: Units, one: Batch) -> dict[str, Tensor]:
        if self.read.target not in one.tensors:
            raise NotOffered("the decoder is fed the source itself, so a feature cannot be masked in one stream alone.")
        return super().owners(units, one)


class Seq2SeqMean(Mean):
    """The next token of the target, where the model generates it."""

    read: Seq2SeqRead

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        return self.read.answer.expanded(batch, target) if self.generates else (batch, target)

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        return self.read.answer.next_logits(output, batch) if self.generates else None


Seq2SeqInput = Modality.of(Seq2SeqRead, Seq2SeqPlace, Seq2SeqMask, Seq2SeqMean)


STEPS = 32  # generated tokens that are explained, unless the target is given


class Answer:
    """What a decoder generates after the prefix, the argument ``main``: a stream, explained at its next token."""

    model = property(lambda self: self.text.model)  # which a kind of input must not keep alive

    def __init__(self, model: nn.Module, processor: Any, main: str = "decoder_input_ids") -> None:
        self.main = main
        self.stream, self.text = TextInput(model, processor, main=main), TextRead(model, processor, main)
        self.configs = [self.text.config, getattr(self.text.config, "text_config", None)]

    # Inputs

    def with_answers(self, batch: Batch, texts: Sequence[str | None]) -> Batch:
        """Store the answers that the user gave, if any."""
        if all(t is None for t in texts):
            return batch
        if any(t is None for t in texts):
            raise BadInput("give a target text for every input, or for none.")
        tokenizer = self.text.tokenizer
        ids = [[int(i) for i in processed(tokenizer, text_target=str(t))["input_ids"]] for t in texts]
        return replace(batch, encodings=tuple({**e, "answer": i} for e, i in zip(_facts(batch), ids, strict=True)))

    def expanded(self, batch: Batch, target: Any, apart: bool = False) -> tuple[Batch, Any]:
        """Return one row per token of the answer, or for the token asked for; apart: generate without padding."""
        if self.main in batch.tensors:
            return batch, target
        answers = [facts.get("answer") for facts in _facts(batch)]
        if any(answer is None for answer in answers):
            answers = self._generated(batch, apart)
        else:
            answers = [[self.start(), *answer] for answer in answers]
        rows, prefixes, tokens = [], [], []
        for row, answer in enumerate(answers):
            wanted = target[row] if isinstance(target, list) else target
            for step in wanted_steps(self.text, answer[1:], wanted):
                rows.append(row)
                prefixes.append(answer[: step + 1])
                tokens.append(answer[step + 1])
        width = max(len(p) for p in prefixes)
        ids = torch.tensor([p + [self.start()] * (width - len(p)) for p in prefixes])
        mask = torch.tensor([[1] * len(p) + [0] * (width - len(p)) for p in prefixes])
        steps = batch.select(rows).with_tensors(**{self.main: self.text.move(ids)})
        if "decoder_attention_mask" in self.text.parameters:
            steps = steps.with_tensors(decoder_attention_mask=self.text.move(mask))
        elif len({len(p) for p in prefixes}) > 1:
            steps = replace(
                steps, encodings=tuple({**e, "written": len(p)} for e, p in zip(_facts(steps), prefixes, strict=True))
            )
        return replace(steps, groups=tuple(rows) if target is None else ()), tokens

    def _named_id(self, *names: str) -> Any:
        values = (getattr(config, name, None) for name in names for config in self.configs)
        return next((value for value in values if value is not None), None)

    def start(self) -> int:
        start_id = getattr(self.model, "decoder_start_token_id", None)  # BLIP keeps it on the model
        named = self._named_id("decoder_start_token_id", "bos_token_id", "pad_token_id")
        value = start_id if isinstance(start_id, int) else named
        if value is None:
            raise NotOffered("the model's config names no decoder_start_token_id: pass decoder_input_ids yourself.")
        return int(value)

    def _generated(self, batch: Batch, apart: bool) -> list[list[int]]:
        """Return the model's greedy answers, end of text included."""
        if not callable(getattr(self.model, "generate", None)):
            raise NotOffered(
                f"{type(self.model).__name__} has no head and does not write: load the same weights with their head "
                f"(AutoModelForSeq2SeqLM, AutoModelForSpeechSeq2Seq …), or pass {self.main}."
            )
        room = self._named_id("max_target_positions")  # Whisper raises for more
        wish = batch.asked.decoding.generate
        steps = wish if isinstance(wish, int) else STEPS
        steps = steps if room is None else min(steps, int(room) - 2)
        parts = [bare(batch.select([i])) for i in range(batch.size)] if apart else [batch]
        ids: list[list[int]] = []
        for part in parts:
            # A tokenizer of another family may make types: a forward with **kwargs ignores them, generate() does not.
            known = {k: v for k, v in part.tensors.items() if k != "token_type_ids" or k in signature_of(self.model)}
            try:
                with torch.no_grad():
                    written = self.model.generate(  # type: ignore[operator]
                        **known, max_new_tokens=steps, do_sample=False, num_beams=1
                    )
            except NOT_THE_MODELS:
                raise
            except Exception as error:
                said = " ".join(str(error).split())[:120]
                raise NotOffered(
                    f"{type(self.model).__name__}.generate raised {type(error).__name__} ({said}), so there is no "
                    f"answer to explain. Pass {self.main}, too."
                ) from error
            ids += written.tolist()
        ends = [self._named_id("eos_token_id"), self._named_id("sep_token_id")]
        stop = {e for end in ends for e in (end if isinstance(end, (list, tuple)) else [end])}
        answers = []
        for tokens in ids:
            # Whisper's generate leaves the prompt out; others begin with the start token.
            row = tokens if tokens[0] == self.start() else [self.start(), *tokens]
            end = next((i for i, token in enumerate(row[1:], 1) if token in stop), len(row) - 1)
            answers.append(row[: end + 1])
        return answers

    # Outputs

    def next_logits(self, output: Any, batch: Batch) -> Tensor | None:
        """(B, C) logits after the last written token."""
        logits = logits_of(output)
        if logits.ndim != 3:
            return None
        last = last_real(self.keep(batch)).to(logits.device)
        return logits[torch.arange(len(logits), device=logits.device), last]

    # Units

    def ids(self, batch: Batch, source: str = "") -> Tensor:
        if self.main in batch.tensors:
            return batch.tensors[self.main]
        if source not in batch.tensors:
            names = ", ".join(batch.tensors)
            raise NotOffered(
                f"{type(self.model).__name__} writes its answer with a decoder, and was given {names}: pass "
                f"{self.main}, too, the ids that it has written so far (at first {self.start()}, the start token)."
            )
        ids = batch.tensors[source]  # classifiers feed the source to the decoder, after a start token
        start = torch.full_like(ids[:, :1], self.start())
        return torch.cat([start, ids[:, :-1]], 1)

    def keep(self, batch: Batch, source: str = "") -> Tensor:
        """(B, N) real positions of the target."""
        ids = self.ids(batch, source)
        mask = batch.tensors.get("decoder_attention_mask")
        if mask is not None:
            return mask.bool()
        if self.main not in batch.tensors and batch.keep_BN is not None:
            return batch.keep_BN  # the source once more, moved on by one
        counts = [e.get("written") if isinstance(e, dict) else None for e in batch.encodings]
        if counts and all(c is not None for c in counts):
            return torch.arange(ids.shape[1], device=ids.device) < torch.tensor(counts, device=ids.device)[:, None]
        return torch.ones_like(ids, dtype=torch.bool)

    def part(self, batch: Batch, source: str = "") -> tuple[Modality, Batch]:
        return self.stream, Batch({self.main: self.ids(batch, source)}, keep_BN=self.keep(batch, source))


def _facts(batch: Batch) -> tuple[Any, ...]:
    return batch.encodings or ({},) * batch.size
