"""Text that a unit likes best: soft embeddings, then the nearest tokens."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from whyformer.capture.inputs.embedding import SwapEmbedding
from whyformer.concepts.maximized import Maximized
from whyformer.concepts.unit import Unit
from whyformer.errors import BadInput, NotOffered
from whyformer.explainer import Explainer
from whyformer.subjects.text import TextSubject


def maximized_text(
    explainer: Explainer, unit: Any, settings: dict[str, Any], draw: Any, track: Any, stepper: Any
) -> Maximized:
    """``length`` embeddings between the tokens that every text has."""
    ids_1N, free_N = _frame(explainer, settings["length"])
    subject, batch, _ = explainer.prepare({"input_ids": ids_1N})
    if not isinstance(subject, TextSubject):
        raise NotOffered("activation maximisation is for models of one image or one text.")
    table = subject.table()
    weight_VD = getattr(table, "weight", None)
    if weight_VD is None:
        raise NotOffered("the model does not say which table holds its word embeddings.")
    allowed_V = torch.ones(len(weight_VD), dtype=torch.bool)
    allowed_V[[i for i in subject.special_ids() if i < len(weight_VD)]] = False
    words_VD = weight_VD.detach()[allowed_V]
    typical = words_VD.norm(dim=1).median()
    noise = torch.randn((settings["length"], weight_VD.shape[1]), generator=draw).to(words_VD)
    soft_ND = (words_VD.mean(0) + noise * words_VD.std(0) * 0.1).requires_grad_()
    step = stepper(soft_ND, settings["optimizer"], settings["lr"])
    ids = batch.tensors[subject.main]
    spots = free_N.to(ids.device)

    def placed(embedding: Tensor) -> Tensor:
        other = embedding.clone()
        other[0, spots] = soft_ND.to(other)
        return other

    history: list[float] = []
    with Unit(subject, batch, unit) as sought:
        for _ in track(range(settings["steps"]), "maximising"):
            with SwapEmbedding(ids, table, placed):
                value = sought.value(batch)
            strange = (soft_ND.norm(dim=1) / typical - 1).square().mean()
            step(value - settings["norm"] * strange)
            history.append(float(value.detach()))
        nearest = torch.cdist(soft_ND.detach().float(), words_VD.float()).argmin(1)
        chosen = allowed_V.nonzero()[:, 0].to(nearest.device)[nearest]
        hard = ids.clone()
        hard[0, spots] = chosen.to(ids)
        final = float(sought.value(batch.with_tensors(**{subject.main: hard})).detach())
    fell = history[-1] - final
    notes = (f"the tokens reach {final:.3g}, the soft embeddings {history[-1]:.3g}.",) if fell > 0 else ()
    return Maximized(
        unit=sought.name,
        value=final,
        history=tuple(history),
        tokens=tuple(subject.labels(chosen.tolist())),
        start=history[0],
        options=settings,
        warnings=notes,
        model=type(explainer.model).__name__,
    )


def _frame(explainer: Explainer, length: int) -> tuple[Tensor, Tensor]:
    """Ids with room for ``length`` tokens between those that the tokenizer adds, and where the room is."""
    if not isinstance(length, int) or length < 1:
        raise BadInput(f"length={length!r}: a whole number of at least 1.")
    tokenizer = getattr(explainer.processor, "tokenizer", explainer.processor)

    def known(*names: str) -> list[int]:
        values = [getattr(tokenizer, f"{name}_token_id", None) for name in names]
        return [int(v) for v in values if v is not None][:1]

    front, back = known("cls"), known("sep")
    filler = known("mask", "unk", "pad") or [0]
    ids = torch.tensor([[*front, *filler * length, *back]])
    return ids, torch.arange(length) + len(front)
