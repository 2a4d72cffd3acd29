"""What methods may rely on: records with their streams, and no map where the study says it would mislead."""

from __future__ import annotations

from dataclasses import replace

from whyformer.errors import NotOverUnits, PartlyCaptured
from whyformer.study.facts import Study
from whyformer.types import Record


def with_streams(record: Record, study: Study) -> Record:
    """The record with the streams (and kinds) that the study found."""
    facts = [f for f in study.sites if not f.parallel]
    if len(facts) != len(record.sites):
        return record
    sites = [replace(s, streams=f.streams, kind=f.kind) for s, f in zip(record.sites, facts, strict=True)]
    return replace(record, sites=tuple(sites))


def require_readable(study: Study, several: bool = False) -> None:
    """Refuse attention explanations that would be empty, partial, or not about the units.

    several: the method knows the rules for several streams.
    """
    if study.trouble is not None:
        raise type(study.trouble)(*study.trouble.args)  # a new one: the study outlives the frames it would hold
    if not study.sites:
        return  # the record itself says what is missing
    if study.unclaimed:
        return
    if several and (study.windows is not None or study.several):
        _refuse_leak(study)
        return
    if any(s.windows > 1 for s in study.sites):
        raise NotOverUnits(
            "attention runs inside windows of the image (Swin), so maps of different layers do not line up. Use "
            "generic_attention, attention_rollout, raw_attention or attention_gradcam, which lay them out over the "
            "image, or a gradient or perturbation method."
        )
    if not study.one_stream:
        raise NotOverUnits(
            "the model has several streams of tokens (cross-attention), or layers over different numbers of them: "
            + ", ".join(sorted({f"{s.kind} {s.queries}×{s.keys}" for s in study.sites}))
            + ". Use "
            + ("generic_attention, attention_rollout, raw_attention or attention_gradcam, or " * study.several)
            + "a gradient or perturbation method."
        )
    _refuse_leak(study)


def _refuse_leak(study: Study) -> None:
    if study.leak.found:
        raise PartlyCaptured(
            f"positions exchange information outside the captured attention (seen at {study.leak.path}: a change of "
            f"{study.leak.amount:.1e} where there should be none), so an attention map would be blind to part of the "
            "computation. Use a gradient or perturbation method (integrated_gradients, occlusion)."
        )
