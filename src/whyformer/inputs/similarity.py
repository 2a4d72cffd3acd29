"""Two texts and how close they are: one encoder read twice, its pooled vectors compared."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, NotOffered
from whyformer.inputs.arguments import NOT_THE_MODELS, model_failed
from whyformer.inputs.base import Modality
from whyformer.inputs.batch import Batch, Raw
from whyformer.inputs.streams import without_each
from whyformer.inputs.text import TextInput
from whyformer.types import Units

SIDES = ("a", "b")


class SimilarityInput(TextInput):
    """A pair of texts per input; units are the tokens of both. What is explained is the cosine of the two vectors.

    The vector of a text is what the model itself calls one (``sentence_embedding``, ``text_embeds``), else the mean of
    its last hidden states over real tokens. Tensors are named ``a_input_ids``, ``b_input_ids``, and so on.
    """

    multi_input = True
    compares = True
    stream = "a"

    def __init__(self, model: nn.Module, processor: Any = None) -> None:
        processor = processor if processor is not None else getattr(model, "tokenizer", None)
        super().__init__(model, processor, main="a_input_ids")
        self._sides = {side: TextInput(model, processor, main=f"{side}_input_ids") for side in SIDES}
        self._plain = TextInput(model, processor)

    def scalar(self, scalar: str) -> str:
        if scalar not in {"logit", "cosine"}:
            raise BadInput(f"scalar={scalar!r}: the similarity of two texts is explained as scalar='cosine'.")
        return "cosine"

    # Inputs

    def encode(self, raw: Sequence[Raw]) -> Batch:
        for pair in raw:
            if not isinstance(pair, (tuple, list)) or len(pair) != 2:
                raise BadInput(f"expected a pair of texts, got {type(pair).__name__}: {str(pair)[:60]!r}")
        encoded = {side: self._plain.encode([pair[i] for pair in raw]) for i, side in enumerate(SIDES)}
        tensors = {f"{side}_{k}": v for side, batch in encoded.items() for k, v in batch.tensors.items()}
        for side, batch in encoded.items():
            assert batch.keep_BN is not None
            tensors.setdefault(f"{side}_attention_mask", batch.keep_BN.long())
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

    def inputs(self, batch: Batch) -> list[tuple[Tensor, str]]:
        return [(batch.tensors[f"{side}_input_ids"], side) for side in SIDES]

    # Outputs

    def call(self, batch: Batch, **extra: Any) -> Any:
        return tuple(self._read(batch, side, **extra) for side in SIDES)

    def _read(self, batch: Batch, side: str, **extra: Any) -> tuple[Tensor, Tensor | None]:
        """(B, D) the text's vector, and (B, N, D) shares of its tokens where it is their mean."""
        tensors = {k.removeprefix(f"{side}_"): v for k, v in batch.tensors.items() if k.startswith(f"{side}_")}
        names = self._plain.parameters
        try:
            output = self.model(**tensors, **extra) if "input_ids" in names else self.model(dict(tensors))
        except NOT_THE_MODELS:
            raise
        except Exception as error:
            raise model_failed(self.model, batch, error) from error
        known = [output[k] for k in ("sentence_embedding", "text_embeds") if k in output]
        mask = tensors["attention_mask"]
        hidden = next((output[k] for k in ("last_hidden_state", "token_embeddings") if k in output), None)
        if hidden is None and not known:
            raise NotOffered("the model returns neither token vectors nor a vector of the text: it cannot be compared.")
        shares = None
        if hidden is not None:
            weights = mask.to(hidden.dtype) / mask.sum(1, keepdim=True)
            shares = hidden * weights[..., None]
        if known:
            fits = shares is not None and shares.shape[-1] == known[0].shape[-1]
            return known[0], shares if fits and _aligned(shares, known[0]) else None
        assert shares is not None
        return shares.sum(1), shares

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        (a, _), (b, _) = output
        return nn.functional.cosine_similarity(a, b, dim=-1)[:, None]

    @torch.no_grad()
    def pairs(self, output: Any) -> Tensor | None:
        """(B, N_a, N_b) what each pair of tokens adds to the cosine (exact for mean pooling), else None."""
        (_, a_shares), (_, b_shares) = output
        if a_shares is None or b_shares is None:
            return None
        a_shares, b_shares = a_shares.float(), b_shares.float()
        scale = (a_shares.sum(1).norm(dim=-1) * b_shares.sum(1).norm(dim=-1))[:, None, None]
        return torch.einsum("bnd,bmd->bnm", a_shares, b_shares) / scale

    # Units

    def part(self, stream: str, batch: Batch) -> tuple[Modality, Batch]:
        tensors = {k: v for k, v in batch.tensors.items() if k.startswith(f"{stream}_")}
        facts = tuple(e[stream] for e in batch.encodings)
        keep = batch.tensors[f"{stream}_attention_mask"].bool()
        return self._sides[stream], replace(batch, tensors=tensors, keep_BN=keep, encodings=facts)

    @property
    def replacements(self) -> tuple[str, ...]:
        return tuple(r for r in self._plain.replacements if r in {"mask", "unk", "pad"}) or ("unk",)

    def without_unit(self, batch: Batch, row: int, units: Units, replacement: str | int) -> Batch:
        return without_each(self, batch, row, units, replacement)


def _aligned(shares_BND: Tensor | None, vector_BD: Tensor) -> bool:
    """Is the text's vector the mean of its tokens' up to a factor (many models bring it to length one)?"""
    assert shares_BND is not None
    cosine = nn.functional.cosine_similarity(shares_BND.sum(1).float(), vector_BD.float(), dim=-1)
    return bool((cosine > 1 - 1e-5).all())


def compares_texts(model: Any, inputs: Any) -> bool:
    """A pair of texts for an encoder without a head: their similarity is what can be explained."""
    if isinstance(inputs, dict):
        return {f"{side}_input_ids" for side in SIDES} <= set(inputs)
    first = inputs[0] if isinstance(inputs, list) and inputs else inputs
    if not (isinstance(first, tuple) and len(first) == 2 and all(isinstance(p, str) for p in first)):
        return False
    if callable(getattr(model, "encode", None)) and getattr(model, "tokenizer", None) is not None:
        return True  # a SentenceTransformer, or what looks like one
    writes = getattr(model, "can_generate", None)
    return type(model).__name__.endswith("Model") and not (callable(writes) and writes())
