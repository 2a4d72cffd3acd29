"""What to do instead, where a method refuses: only what was tried on this model and this input, and ran."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from whyformer.borrow import refuse_without_gradients
from whyformer.errors import CaptureError, NotOffered
from whyformer.inputs.batch import Batch
from whyformer.registry import Method, default_method, list_methods
from whyformer.run import Run
from whyformer.session import Session

# One way of looking each: the first that runs is named, with the options that it takes.
WAYS: tuple[tuple[tuple[str, dict[str, Any]], ...], ...] = (
    (("generic_attention", {}),),
    (("attention_rollout", {}), ("raw_attention", {})),
    (
        ("integrated_gradients", {}),
        ("input_x_gradient", {}),
        ("input_x_gradient", {"at": "input"}),
        ("input_x_gradient", {"at": "embeddings"}),
        ("attn_lrp", {}),
    ),
    (("occlusion", {}), ("shap", {})),
)
SHORT: dict[str, dict[str, Any]] = {"integrated_gradients": {"steps": 1}}  # the same code on fewer points
WORDS = {"gradient": "gradient", "black box": "perturbation"}
Way = tuple[Method, dict[str, Any]]


def advise(refusal: NotOffered | CaptureError, session: Session, refused: Sequence[str] = ()) -> None:
    """Add to an error which methods explain this model on the first of these inputs; none that has just refused one of
    the others."""
    message = str(refusal)
    try:
        _ = session.run([0]).value_B
    except Exception:
        return  # there is nothing that could be explained: what to do about that, the error says itself
    refusal.args = (f"{message.rstrip()} {_sentence(alternatives(session, refused), message)}",)


def alternatives(session: Session, refused: Sequence[str] = ()) -> list[Way]:
    """A method for every way of looking that runs on the first input, found by rehearsing it there."""
    known = list_methods()
    usual = default_method(session.modality.kind)
    ways = WAYS if any(usual == name for way in WAYS for name, _ in way) else (((usual, {}),), *WAYS)
    running = (
        next(
            (
                (known[name], options)
                for name, options in way
                if (options or name not in refused) and runs(known[name], session, options)
            ),
            None,
        )
        for way in ways
    )
    return [way for way in running if way is not None]


def runs(m: Method, session: Session, options: dict[str, Any]) -> bool:
    """Does it explain the first input?"""
    return not trouble_with(m, session, options)


def trouble_with(m: Method, session: Session, options: dict[str, Any]) -> str:
    """Why it does not explain the first input, "" if it does: a few passes tell, whatever it costs in full."""
    try:
        if m.needs & {"attention_gradients", "input_gradients"}:
            refuse_without_gradients(session.model, m.name)
        run = session.run([0], beside=session.modality.mixes_rows and not m.needs <= {"perturbation"})
        _ask_once(run)
        scores_BN = m.run(run, **m.checked(SHORT.get(m.name, {}) | options)).scores_BN
        counts = [int(keep_N.sum()) for keep_N in run.keep_BN]
        if counts != [len(units) for units in run.units]:
            return "its scores are not of the units of this input."
        return "" if torch.isfinite(scores_BN[run.keep_BN]).all() else "its scores are not finite here."
    except Exception as error:  # whatever stands in the way, of whoever's making: it is not recommended
        return str(error) or type(error).__name__


def _ask_once(run: Run) -> None:
    """A perturbed input is run once; what the model says of it stands for all others, which are made but not run."""
    score = run.score
    said: list[Tensor] = []

    def rehearsed(batch: Batch, owner: int, logits_of: Callable[[Batch], Tensor] | None = None) -> Tensor:
        if not said:
            said.append(score(batch.select([0]), owner, logits_of))
        return said[0].expand(batch.size)

    run.__dict__["score"] = rehearsed


def _sentence(ways: Sequence[Way], message: str) -> str:
    if not ways:
        tried = dict.fromkeys(name for way in WAYS for name, _ in way)
        return f"Other methods refuse, too ({listing(list(tried), 'and')} were tried)."
    named = [m.name + (f"({', '.join(f'{k}={v!r}' for k, v in o.items())})" if o else "") for m, o in ways]
    kinds = list(dict.fromkeys(WORDS.get(m.specificity, "") for m, _ in ways))
    use = "Or use" if re.search(r"\b[Uu]se\b", message) else "Use"
    if "" in kinds:
        return f"{use} {listing(named, 'or')}."
    return f"{use} a {' or '.join(kinds)} method: {listing(named, 'or')}."


def listing(names: Sequence[str], word: str) -> str:
    """a, b or c"""
    return f" {word} ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)
