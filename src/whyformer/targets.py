"""From the output of a model to one row of logits per input, and to the scalar that is explained."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping
from dataclasses import fields as fields_of
from dataclasses import is_dataclass, replace
from typing import Annotated, Any

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, NonFinite, NotOffered, UnknownName, not_allowed
from whyformer.parameters import NOT_ALLOWED, OneOf, Share, Words, domain_of
from whyformer.results.types import EXPLAINS_PROBABILITY, Target

# Tensors that hold ordinary numbers, one per entry; all others are refused where they enter.


def require_dense(name: str, tensor: Tensor, remedy: str) -> None:
    """Raise for tensors without data, and for layouts and types that few operations of torch support.

    name: subject of the message. remedy: what to do; ``{}`` is replaced by the call that converts the tensor.
    """
    kind, call = "", ""
    with torch._C.DisableTorchFunction():  # whoever records the model's operations need not see these
        # Subclasses that are wrappers have no storage of their own: asking for it raises.
        fake = False
        if type(tensor) not in (Tensor, nn.Parameter):
            with contextlib.suppress(RuntimeError, NotImplementedError):
                fake = tensor.untyped_storage().device.type == "meta"
        if tensor.is_meta or fake:
            kind = "a tensor without data (on the meta device)"
        elif tensor.is_nested:
            kind, call = "a nested tensor", ".to_padded_tensor(0)"
        elif tensor.layout is not torch.strided:
            layout = str(tensor.layout).removeprefix("torch.").removeprefix("_")
            kind, call = f"a tensor of layout {layout}", ".to_dense()"
        elif tensor.is_quantized:
            kind, call = "a quantized tensor", ".dequantize()"
        elif tensor.is_complex():
            kind, call = f"complex ({tensor.dtype})", ".abs() or .real"
    if kind:
        raise BadInput(f"{name} is {kind}: {remedy.format(call)}" if call else f"{name} is {kind}: give one with data.")


SHARE, FINE = 1e-3, 2e-5  # of the differences among logits, and of their size, that float32 may lose in many layers


def least_effect(logits: Tensor) -> float:
    """Return the smallest change of float32 logits that is not rounding.

    A share of their size would hide what inputs do to a price of about 500: 0.5 may be all that tells two texts apart.
    """
    if not logits.numel() or not logits.isfinite().all():
        return float("inf")
    low, high = float(logits.min()), float(logits.max())
    largest = max(abs(low), abs(high))
    if torch.get_float32_matmul_precision() != "highest":  # products in TF32 or bfloat16
        return SHARE * largest + FINE
    return min(max(SHARE * (high - low), FINE * (largest + 1)), SHARE * largest + FINE)


TOLERANCE = 1e-4  # of a sum of probabilities
# How probabilities are recognised, and what made them: a softmax (False) or a sigmoid (True).
SIGNS = {False: ("every row is within [0, 1] and adds up to 1", "softmax"), True: ("it ends in a sigmoid", "sigmoid")}
PROBABILITIES = (
    f"the model returns probabilities ({{how}}), so {EXPLAINS_PROBABILITY}, which hardly changes near 0 and 1. To "
    "explain logits, pass the model without its final {last}."
)
SCALARS = ("logit", "centred", "log_odds", "probability", "log_probability", "cosine", "maxsim")
AIMS = (
    "a class index or label, (a, b) for a rather than b, None for the prediction, or a list with one per input (of a "
    "detector also a probability, above which detections count)"
)
Aim = str | int | Share | Target | None | tuple[str | int | None, str | int | None]
Aims = Annotated[Aim | list[Aim], Words(AIMS)]  # of several inputs
# centred: the logit minus the mean of all logits, since the answer does not depend on what is added to all of them.
# cosine: the similarity of two encoders without its scale; maxsim: late interaction (ColBERT), token by token
Scalar = Annotated[str, OneOf(*SCALARS)]


def logits_of(output: Any, classes: Collection[int] = ()) -> Tensor:
    """Return ``output.logits``, else the only field whose name says so, else the one tensor that can be logits.

    classes: possible numbers of classes. Raises for an output that cannot be compared, added up or differentiated.
    """
    named = _named(output)
    logits: Any = named.get("logits") if isinstance(named, Mapping) else output
    if not isinstance(logits, Tensor) or (logits is not output and not logits.ndim):
        logits = part_of(output, classes)[1]
    require_dense("the model's output", logits, "wrap the model in a module whose forward returns it{}.")
    shape, dtype = logits.shape, logits.dtype  # asked once: a mode that watches the pass sees each question
    if not shape.numel():
        raise BadInput(f"the model's output has shape {tuple(shape)}, without a single logit.")
    if dtype is torch.bool or dtype.itemsize == 1:
        raise BadInput(
            f"the model's output has the type {dtype}, which is too coarse for scores: wrap the model in a "
            "module whose forward returns floats, before rounding."
        )
    return logits


def part_of(output: Any, classes: Collection[int] = ()) -> tuple[str, Tensor]:
    """The logits of an output, and how they are written: ``.logits``, ``[1]``, or nothing for the output itself."""
    if isinstance(output, Tensor):
        return "", output
    named = _named(output)
    if isinstance(named, Mapping):
        fields = {str(k): v for k, v in named.items() if isinstance(v, Tensor) and v.ndim and k != "loss"}
        if {"start_logits", "end_logits"} <= set(fields):  # either would be half of the answer, and of many rows one
            raise NotOffered(
                "a question-answering model has a start and an end logit for every token. Explain one of them; for the "
                "start, at the position of the answer's first token:\n"
                + wrapper("input_ids", ".start_logits[:, [self.position]]", "position")
            )
        for name in ("logits", *(n for n in fields if n.endswith(("logits", "_score", "scores")))):
            if name in fields:
                return _written(output, name), fields[name]
        if fields:
            # What transformers returns has the answer first, but for forecasters (TimesFM), whose hidden states come
            # before what they predict; a dict of the user's own has any order.
            predicted = (n for n in fields if "predict" in n)
            first = next(predicted, next(iter(fields)))
            name = _key_of_logits(_floats(named), classes) if type(named) is dict else first
            if name is not None:
                return _written(output, name), named[name]
    elif isinstance(output, (tuple, list)):
        parts = _floats(dict(enumerate(output)))
        index = _key_of_logits(parts, classes)
        if index is not None:
            return f"[{index}]", parts[index]
    held = f" It holds {', '.join(map(str, named))}." if isinstance(named, Mapping) and named else ""
    raise NotOffered(
        f"the model returned a {type(output).__name__} without a tensor of logits.{held} Load the same weights with "
        "their head, or wrap the model in a module whose forward returns one row of numbers per input."
    )


def _named(output: Any) -> Any:
    """Return the fields of a dataclass or a named tuple by name; other outputs as they are."""
    if isinstance(output, (Mapping, Tensor)):
        return output
    if is_dataclass(output) and not isinstance(output, type):
        return {field.name: getattr(output, field.name) for field in fields_of(output)}
    return output._asdict() if hasattr(output, "_asdict") else output


def _written(output: Any, name: str) -> str:
    return f".{name}" if hasattr(output, name) else f"[{name!r}]"


def _floats(parts: Mapping[Any, Any]) -> dict[Any, Tensor]:
    """Not a loss, which has no axis."""
    return {k: v for k, v in parts.items() if isinstance(v, Tensor) and v.is_floating_point() and v.ndim}


def _key_of_logits(parts: dict[Any, Tensor], classes: Collection[int]) -> Any:
    """Which of several tensors are logits; a hidden state may come first, so more than one is an open question."""
    if len(parts) < 2:
        return next(iter(parts), None)
    first, *others = parts
    if parts[first].ndim <= 2 and all(parts[key].ndim > 2 for key in others):  # logits, then states or attention maps
        return first
    known = [key for key, part in parts.items() if part.shape[-1] in classes]
    if len(known) == 1:
        return known[0]
    shapes = ", ".join(f"[{key!r}] {tuple(part.shape)}" for key, part in parts.items())
    raise NotOffered(
        f"the model returns several tensors, and it is not clear which of them are the logits: {shapes}. Wrap it "
        "in a module that returns the logits only, here the last:\n" + wrapper("input", f"[{[*parts][-1]!r}]")
    )


def wrapper(main: str, reading: str, *chosen: str, keyword: bool = False) -> str:
    """Return code of a module that reads a part of a model's output; ``main``: first argument, ``chosen``: indices."""
    parameters = "".join(f", {name}" for name in chosen)
    held = ", ".join(f"self.{name}" for name in ("model", *chosen))
    return f"""
class Part(torch.nn.Module):
    def __init__(self, model{parameters}):
        super().__init__()
        {held} = model{parameters}

    def forward(self, {main}, **others):
        return self.model({f"{main}=" if keyword else ""}{main}, **others){reading}

whyformer.explain(Part(model{parameters}), inputs)
"""


def require_finite(logits: Tensor) -> None:
    if not torch.isfinite(logits).all():
        rows = (~torch.isfinite(logits)).flatten(1).any(1).nonzero()[:, 0].tolist()
        raise NonFinite(
            f"the model's output holds NaN or infinity for input{'s' if len(rows) > 1 else ''} "
            f"{', '.join(map(str, rows[:8]))}. Check the weights, or run the model in float32."
        )


def are_probabilities(logits_BC: Tensor) -> bool:
    """Return whether every row is non-negative and adds up to 1, which is unlikely for logits."""
    if logits_BC.ndim != 2 or logits_BC.shape[1] < 2:
        return False
    numbers_BC = logits_BC.detach().float().cpu().numpy()
    return bool((numbers_BC >= 0).all() and (abs(numbers_BC.sum(1) - 1) < TOLERANCE).all())


def probabilities_note(by_sigmoid: bool) -> str:
    """Return the remark for explanations of probabilities."""
    how, last = SIGNS[by_sigmoid]
    return PROBABILITIES.format(how=how, last=last)


def refuse_twice(scalar: str, by_sigmoid: bool = False) -> None:
    """Raise for scalars that would take a softmax or sigmoid of probabilities."""
    if scalar in {"centred", "probability", "log_probability", "log_odds"}:
        how, last = SIGNS[by_sigmoid]
        raise NotOffered(
            f"scalar={scalar!r} needs logits, and this model returns probabilities already ({how}). Omit scalar= to "
            f"explain the probability itself, or pass a model without the final {last}."
        )


def scalar_of(logits_BC: Tensor, targets: list[Target], scalar: str) -> Tensor:
    """(B,) the explained value: logit, log-odds or probability … of the target; the difference for contrasts."""
    if any(t.versus is not None for t in targets):
        values = scalar_of(logits_BC, [replace(t, versus=None) for t in targets], scalar)
        others = [t if t.versus is None else replace(t, index=t.versus, versus=None) for t in targets]
        contrast = torch.tensor([t.versus is not None for t in targets], device=values.device)
        return torch.where(contrast, values - scalar_of(logits_BC, others, scalar), values)
    indices = [t.index for t in targets]
    if len(set(indices)) == 1:  # no copy from the host, which would force a device synchronisation
        index_B1 = torch.full((len(indices), 1), indices[0], device=logits_BC.device)
    else:
        index_B1 = torch.tensor(indices, device=logits_BC.device)[:, None]
    return scalar_at(logits_BC, index_B1, scalar, any(t.independent for t in targets))


def scalar_at(logits_BC: Tensor, index_B1: Tensor, scalar: str, independent: bool = False) -> Tensor:
    """(B,) the same of class numbers; independent: classes do not exclude each other."""
    chosen = logits_BC.gather(1, index_B1)[:, 0]
    alone = independent or logits_BC.shape[1] == 1
    if scalar in {"logit", "cosine", "maxsim"} or (scalar in {"centred", "log_odds"} and alone):
        return chosen
    if scalar == "centred":
        return chosen - logits_BC.mean(1)
    if alone:
        return torch.nn.functional.logsigmoid(chosen) if scalar == "log_probability" else chosen.sigmoid()
    if scalar == "probability":
        return logits_BC.softmax(1).gather(1, index_B1)[:, 0]
    if scalar == "log_probability":
        return chosen - logits_BC.logsumexp(1)
    rest = logits_BC.scatter(1, index_B1, -torch.inf)
    return chosen - rest.logsumexp(1)


def answer_scalar(log_probability_B1: Tensor, scalar: str) -> Tensor:
    """(B, 1) what is explained of whole answers, from their log-probability."""
    if scalar == "probability":
        return log_probability_B1.exp()
    if scalar == "log_odds":
        return log_probability_B1 - torch.log(-torch.expm1(log_probability_B1.clamp(max=-1e-7)))
    return log_probability_B1


def resolve_targets(
    wanted: Any,
    logits_BC: Tensor,
    labels: dict[int, str],
    positions: list[int] | None,
    ids: Any,
    independent: bool = False,
) -> list[Target]:
    """Return one Target per input; ``ids(text)`` is the id of a token. independent: multi-label."""
    size, classes = logits_BC.shape
    per_input = list(wanted) if isinstance(wanted, list) else [wanted] * size
    if len(per_input) != size:
        raise BadInput(f"targets: {len(per_input)}, inputs: {size}. Give one target, or one per input.")
    open_ones = any(w is None for want in per_input for w in (want if isinstance(want, tuple) else (want,)))
    best = logits_BC.argmax(1).tolist() if open_ones else []
    targets = []
    for row, want in enumerate(per_input):
        position = positions[row] if positions else None
        if isinstance(want, Target):
            if not (isinstance(want.label, str) and isinstance(want.versus_label, str)):
                raise BadInput("Target(label=…) and versus_label name classes: give texts, or omit them.")
            if want.position is not None and position is None:
                raise BadInput(
                    f"target {want!r}: the model has one row of logits for this input, so position= cannot be used. "
                    "Omit it."
                )
            versus = None if want.versus is None else class_index(want.versus, classes, labels, ids)
            index = class_index(want.index, classes, labels, ids)
            targets.append(replace(want, index=index, versus=versus, position=position, independent=independent))
            continue
        pair = want if isinstance(want, tuple) else (want,)
        if len(pair) > 2:
            raise BadInput(f"target {want!r}: a tuple means 'first rather than second' and has two members.")
        index, *others = [best[row] if w is None else class_index(w, classes, labels, ids) for w in pair]
        if others == [index]:
            raise BadInput(f"target {want!r}: a class rather than itself is always 0. Name two different classes.")
        target = Target(index, labels.get(index, ""), position=position, independent=independent)
        for other in others:
            target = replace(target, versus=other, versus_label=labels.get(other, ""))
        targets.append(target)
    return targets


def class_index(want: Any, classes: int, labels: dict[int, str], ids: Any) -> int:
    if isinstance(want, str):
        for index, label in labels.items():
            if label.lower() == want.lower():
                return index
        token_id = ids(want) if ids is not None else None
        if token_id is None:
            raise UnknownName("target", want, labels.values() or range(classes))
        return int(token_id)
    index = domain_of(int).take(want)
    if index is NOT_ALLOWED:
        raise not_allowed("target", want, AIMS)
    if not -classes <= index < classes:
        raise UnknownName("target", index, [f"0 to {classes - 1}" if classes > 1 else "0", *list(labels.values())[:20]])
    return index % classes
