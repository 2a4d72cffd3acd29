"""What works on a class of transformers: five cells, measured on a tiny model with random weights."""

from __future__ import annotations

import copy
import re
import signal
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import whyformer as wf
from bench.tiny_models import (
    BATCH,
    FIRST_WORD,
    NotBuilt,
    Tiny,
    has_attention,
    listed_classes,
    mentions_attention,
    one_of,
    tiny_model,
)
from whyformer.errors import ModelFailed, NotOffered, WhyformerError

COLUMNS = ("captured", "generic_attention", "attn_lrp", "occlusion", "batch")
MAPS, SINGLES, CONSERVED = (
    1e-5,
    1e-4,
    1e-3,
)  # largest differences: of probabilities, of the largest score, of all scores
ROUNDING = 1e-6
SECONDS = 60
METHODS = ("generic_attention", "attn_lrp", "occlusion")
Row = list[str]


class TookTooLong(BaseException):
    """A class was stopped."""


@contextmanager
def limited(seconds: int) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise TookTooLong

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def class_row(name: str, seconds: int = SECONDS) -> Row:
    """Name, task, kind of input, and a cell per column; kind "not built" with the reason, or "no attention"."""
    task = listed_classes()[name].task
    try:
        with limited(seconds), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tiny = tiny_model(name)
            if not has_attention(tiny.model):
                return [name, task, "no attention"]
            return [name, task, tiny.kind, *cells(tiny)]
    except NotBuilt as reason:
        if not mentions_attention(name):
            return [name, task, "no attention"]
        return [name, task, "not built", str(reason)]
    except TookTooLong:
        return [name, task, "not built", f"took longer than {seconds} s"]


def cells(tiny: Tiny) -> list[str]:
    """What was passed, and a cell per column. A wrapper that the refusal has code for is used as it says."""
    wrapped = advised(tiny)
    plain, tiny = tiny, wrapped or tiny
    found: dict[str, list[wf.Explanation]] = {}
    row = ["One(model)" if wrapped else "", judged(lambda: captured(plain))]
    for method in METHODS:
        row.append(judged(lambda method=method: explained(tiny, method, found)))
    row.append(judged(lambda: singles(tiny, found)) if found else "")
    return row


WRAPPER = re.compile(r"class One\(.*?\n        return self\.model\([^\n]*", re.DOTALL)


def advised(tiny: Tiny) -> Tiny | None:
    """The model in the wrapper that its refusal asks for, if it has one."""
    try:
        wf.explain(tiny.model, one_of(tiny.inputs, 0), method="input_x_gradient", progress=False)
    except NotOffered as refusal:
        code = WRAPPER.search(str(refusal))
        if code is not None:
            made: dict[str, Any] = {"torch": torch}
            exec(code.group(), made)
            return replace(tiny, model=made["One"](tiny.model))
    except Exception:  # each column says what is wrong
        return None
    return None


def judged(check: Callable[[], str]) -> str:
    try:
        return check()
    except ModelFailed as failure:
        if str(failure).startswith("One raised IndexError"):
            return "refused: One raised IndexError: the output has another length for each input"
        return f"fails: {short(str(failure), 160)}"
    except WhyformerError as refusal:
        return f"refused: {short(str(refusal))}"
    except Exception as error:  # of torch, transformers or Python: it should have been one of ours
        return f"fails: {type(error).__name__} of another library: {short(str(error), 160)}"


def captured(tiny: Tiny) -> str:
    """Compare the captured maps with those that the model returns with eager attention."""
    one = one_of(tiny.inputs, 0)
    record = wf.Explainer(tiny.model).record(one)
    maps = [site.attention_BHQK for site in record.sites]
    own = eager_maps(tiny.model, one)
    if own is None:
        return "works, not compared"
    unseen = [p for p in own if not any(p.shape == m.shape and is_same(p, m) for m in maps)]
    if not unseen:
        return "works"
    shapes = {tuple(m.shape) for m in maps}
    if all(tuple(p.shape) in shapes for p in unseen):
        return f"fails: {len(unseen)} of {len(own)} attention maps differ from the model's own"
    return "works, not compared"


def is_same(own: Tensor, map_BHQK: Tensor) -> bool:
    """Return whether the model reports this map, or its mean over the heads (WavLM)."""
    return any(bool((own - each).abs().max() <= MAPS) for each in (map_BHQK, map_BHQK.mean(1, keepdim=True)))


@torch.no_grad()
def eager_maps(model: nn.Module, inputs: dict[str, Any]) -> list[Tensor] | None:
    """Return every attention map that the model itself reports, None where it reports none."""
    cls: Any = type(model)
    try:
        twin = cls._from_config(copy.deepcopy(model.config), attn_implementation="eager").eval()
        twin.load_state_dict(model.state_dict())
        outputs = []
        for seed in (0, 1):
            torch.manual_seed(seed)
            output = twin(**inputs, output_attentions=True, return_dict=True)
            outputs.append(list(reported(output)))
        if not all(torch.equal(a, b) for a, b in zip(*outputs, strict=True)):
            return None  # ViLT draws patches at random
        same = zip(numbers_in(model(**inputs, return_dict=True)), numbers_in(output), strict=False)
        if not all(a.shape == b.shape and torch.allclose(a, b, atol=1e-3, rtol=1e-3) for a, b in list(same)[:1]):
            return None  # the class computes something else with eager attention
    except Exception:  # the class has no eager attention, or does not report it
        return None
    rows = [p for p in outputs[0] if p.ndim == 4 and (p.sum(-1) - 1).abs().max() < 1e-3]
    return rows or None


def numbers_in(output: Any) -> Iterator[Tensor]:
    """The tensors of an output that are no attention."""
    return (v for k, v in output.items() if isinstance(v, Tensor) and "attention" not in k)


def reported(output: Any, inside: bool = False) -> Iterator[Tensor]:
    """Tensors under names of attention, in outputs inside of outputs as well."""
    if isinstance(output, Tensor):
        yield from [output] * inside
    elif isinstance(output, Mapping):
        for name, value in output.items():
            yield from reported(value, inside or "attention" in name)
    elif isinstance(output, (tuple, list)):
        for value in output:
            yield from reported(value, inside)


def explained(tiny: Tiny, method: str, found: dict[str, list[wf.Explanation]]) -> str:
    asked = options_of(tiny, method)
    results = flat(wf.explain(tiny.model, dict(tiny.inputs), method=method, progress=False, **asked))
    found[method] = results
    if not all(np.isfinite(e.scores).all() for e in results):
        return "fails: scores are not finite"
    if method != "attn_lrp":
        return "works"
    missing = sorted({m for e in results for w in e.warnings for m in re.findall(r"no relevance rule for ([^:]+):", w)})
    if missing:
        return f"works, no rule for {', '.join(missing)}"
    return "works, conserved" if conserved(tiny) else "works"


def conserved(tiny: Tiny) -> bool:
    """Return whether the rules lose nothing: without biases, with attention held constant, scores sum to the logit."""
    model = copy.deepcopy(tiny.model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("bias"):
                parameter.zero_()
    try:
        results = flat(wf.explain(model, dict(tiny.inputs), method="cp_lrp", at="tokens", progress=False))
    except WhyformerError:
        return False
    return all(e.checks["conservation_error"] <= CONSERVED * np.abs(e.scores).sum() for e in results)


def singles(tiny: Tiny, found: dict[str, list[wf.Explanation]]) -> str:
    """Compare the scores of a batch with those of each input alone; in double precision, where single ones differ."""
    for method, together in found.items():
        difference = apart(tiny, method, together)
        if difference:
            precise = doubled(tiny)
            options = options_of(precise, method)
            try:
                again = flat(wf.explain(precise.model, dict(precise.inputs), method=method, progress=False, **options))
                difference = apart(precise, method, again)
            except WhyformerError:  # a kernel for single precision only
                pass
        if difference:
            return f"fails: {difference} ({method})"
    return "works"


def apart(tiny: Tiny, method: str, together: list[wf.Explanation]) -> str:
    """How inputs alone differ from a batch of them; "" where they do not."""
    alone: list[wf.Explanation] = []
    for row in range(BATCH):
        one = one_of(tiny.inputs, row)
        alone += flat(wf.explain(tiny.model, one, method=method, progress=False, **options_of(tiny, method)))
    if [e.target for e in alone] != [e.target for e in together]:
        return "another target alone"
    for one, same in zip(alone, together, strict=True):
        if one.scores.shape != same.scores.shape:
            return f"{len(one.scores)} scores alone, {len(same.scores)} in a batch"
        largest, difference = np.abs(same.scores).max(), np.abs(one.scores - same.scores).max()
        if difference > SINGLES * largest + ROUNDING:
            return f"scores alone differ by {difference / largest:.1e}"
    return ""


def doubled(tiny: Tiny) -> Tiny:
    """The same in double precision: differences that remain are no rounding."""
    inputs = {name: value.double() if value.is_floating_point() else value for name, value in tiny.inputs.items()}
    return replace(tiny, model=copy.deepcopy(tiny.model).double(), inputs=inputs)


def options_of(tiny: Tiny, method: str) -> dict[str, Any]:
    return {"replace": FIRST_WORD} if method == "occlusion" and "input_ids" in tiny.inputs else {}


def flat(results: Any) -> list[wf.Explanation]:
    """One list, also of detections, of which an input has several."""
    return [e for one in results for e in (one if isinstance(one, list) else [one])]


PATH = re.compile(r"^((?:[\w*]+\.)+[\w*]+)(, (?:[\w*]+\.)+[\w*]+)*: ")


def short(message: str, length: int = 110) -> str:
    """The first sentence, without line breaks and the module that it begins with."""
    sentence = PATH.sub("", " ".join(message.split()).replace("|", "/"))
    for end in (": ", ". ", "; "):
        sentence = sentence.split(end)[0] if len(sentence.split(end)[0]) > 30 else sentence
    return sentence[:length].rstrip(".")


def verdict(row: Sequence[str]) -> str:
    """Of a class: "works", "partly", "refused", "fails", "not built" or "no attention"."""
    if row[2] in {"not built", "no attention"}:
        return row[2]
    methods = row[5:8]
    if any(cell.startswith("fails") for cell in row[3:]):
        return "fails"
    works = sum(cell.startswith("works") for cell in methods)
    return "works" if works == len(methods) else "partly" if works else "refused"
