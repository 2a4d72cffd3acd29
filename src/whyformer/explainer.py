"""Explainer: a model held on to, and the verbs that explain it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from typing import Any

from torch import nn

from whyformer.batch_runner import BatchRunner, part_of
from whyformer.borrow import borrowed, refuse_without_gradients, unwrapped
from whyformer.capture.intercept import mark_attention, module_names
from whyformer.capture.record import observe, record, require_sites
from whyformer.capture.roles import Observe, Recorder
from whyformer.errors import BadInput, one_of, refuse_misspelled, spelled
from whyformer.inputs.base import Batch, Modality
from whyformer.inputs.choose import are_tensors, choose_modality, encoded, is_single, listed, unpacked
from whyformer.inputs.table import TableInput
from whyformer.inputs.table_schema import Table
from whyformer.progress import tracker
from whyformer.registry import Method, default_method, get_method, list_methods
from whyformer.run import Run
from whyformer.study import Study, hidden_padding, study_of, with_streams
from whyformer.study.leak import Leak
from whyformer.targets import SCALARS, logits_of
from whyformer.types import Explanation, Record

BATCH_SIZE = 16
BATCH_SIZE_ON_DEVICE = 64  # a GPU has nothing to do while Python prepares a small batch


class Explainer:
    """Hold a model and explain what it says. ``wf.explain`` is this class used once.

    processor: tokenizer or image processor, needed for raw inputs only.
    attention_at: for home-made attention, modules (by path, ``*`` allowed) whose output is an attention map, and its
    layout, e.g. ``{"blocks.*.attn.drop": "b h q k"}``.
    """

    @spelled
    def __init__(self, model: Any, processor: Any = None, *, attention_at: Mapping[str, str] | None = None) -> None:
        model, processor = unpacked(model, processor)
        self.model: nn.Module = unwrapped(model)
        self.processor = processor
        self.attention_at = dict(attention_at or {})
        self._named_modules = self._find_named()

    def _find_named(self) -> list[tuple[nn.Module, str]]:
        found = []
        for pattern, layout in self.attention_at.items():
            matches = [m for name, m in self.model.named_modules() if fnmatch(name, pattern)]
            if not matches:
                raise BadInput(f"attention_at={pattern!r} matches no module of the model.")
            found += [(m, layout) for m in matches]
        return found

    # Verbs

    def explain(
        self,
        inputs: Any,
        *,
        method: str | Sequence[str] | None = None,
        target: Any = None,
        scalar: str = "logit",
        batch_size: int | None = None,
        memory: str = "auto",
        keep_layers: bool = False,
        seed: int = 0,
        progress: bool | None = None,
        **options: Any,
    ) -> Any:
        """Explain inputs: one Explanation for one raw input, a list for several, a dict for several methods."""
        _refuse_misspelled(Explainer.explain, options)
        one_of("scalar", scalar, SCALARS)
        one_of("memory", memory, ("auto",))
        if batch_size is not None and (not isinstance(batch_size, int) or batch_size < 1):
            raise BadInput(f"batch_size={batch_size!r}: a whole number of at least 1.")
        modality, batch, single = self.prepare(inputs)
        scalar = modality.scalar(scalar)
        names = [method] if method is None or isinstance(method, str) else list(method)
        if not names:
            raise BadInput("method=[] names no method: leave it out for the default, or name some (wf.list_methods()).")
        chosen = [get_method(n or default_method(_modality(modality))) for n in names]
        settings = _settings(chosen, options)
        _check_targets(target, batch.size)
        results: dict[str, list[Explanation]] = {m.name: [] for m in chosen}
        with self.borrowed():
            for m in chosen:
                if m.needs & {"attention_gradients", "input_gradients"}:
                    refuse_without_gradients(self.model, m.name)
            batch, target = modality.expanded(hidden_padding(modality, batch), target)
            study, new = study_of(modality, batch)
            step, one_by_one = batch_size or _default_size(batch), modality.one_by_one(batch)
            track = tracker(progress)
            stride = 1 if one_by_one else step
            chunks = [range(i, min(i + stride, batch.size)) for i in range(0, batch.size, stride)]
            for chunk in track(chunks, "explaining"):
                own, part = part_of(batch, target, chunk)
                if one_by_one:
                    own = modality.alone(own)
                    study, new = study_of(modality, own)
                runner = BatchRunner(
                    modality, study, scalar, seed, step, keep_layers, setup=study.forwards if new else 0, track=track
                )
                for name, found in runner.run(own, part, chosen, settings).items():
                    results[name] += found
                step = runner.batch_size  # what went into memory this time
        shaped = {name: _shaped(found, batch.groups, single) for name, found in results.items()}
        return shaped[chosen[0].name] if method is None or isinstance(method, str) else shaped

    def record(self, inputs: Any, grad: bool = False, *, target: Any = None, scalar: str = "logit") -> Record:
        """The attention maps of a batch, per call, in B,H,Q,K; with gradients of the explained score if ``grad``."""
        modality, batch, _ = self.prepare(inputs)
        with self.borrowed():
            if grad:
                refuse_without_gradients(self.model, "record(grad=True)")
            names = module_names(self.model)
            study, _ = study_of(modality, batch)
            if not grad:
                found = observe(lambda: logits_of(modality.call(batch)), Observe(batch.size, names), values=True)
            else:
                run = Run(modality, batch, study, target=target, scalar=scalar)
                recorder = Recorder(batch.size, names, study.batch_axes)
                found = record(lambda: run.output.logits(batch), recorder, run.scalars, values=True)
            require_sites(found)
            return with_streams(found, study)

    def study(self, inputs: Any) -> Study:
        """What was found out about the model: sites, ledger, readout row, patch grid, leak audit."""
        modality, batch, _ = self.prepare(inputs)
        with self.borrowed():
            batch, _ = modality.expanded(batch, None)  # a generator is studied on what it writes
            if modality.one_by_one(batch):
                batch = modality.alone(batch.select([0]))
            return study_of(modality, batch)[0]

    def audit(self, inputs: Any) -> Leak:
        """Does information pass between positions outside the captured attention? (study/leak.py)"""
        return self.study(inputs).leak

    @contextmanager
    def borrowed(self) -> Iterator[None]:
        """The model ready to be explained, under its lock, and afterwards exactly as it was."""
        with borrowed(self.model), _Marked(self._named_modules):
            yield

    def compare(self, inputs: Any, **how: Any) -> Any:
        """Which method explains this model best on these inputs? See ``whyformer.compare``."""
        from whyformer.evaluate.compare import compare

        return compare(self.model, inputs, processor=self.processor, attention_at=self.attention_at, **how)

    def check(self, inputs: Any, **how: Any) -> Any:
        """Should these explanations be believed? See ``whyformer.check``."""
        from whyformer.checks.check import check_with

        return check_with(self, inputs, **how)

    def recommend(self, inputs: Any, **how: Any) -> Any:
        """How should this model be explained on inputs like these? See ``whyformer.recommend``."""
        from whyformer.evaluate.recommend import recommend

        return recommend(self.model, inputs, processor=self.processor, attention_at=self.attention_at, **how)

    # Inputs

    def prepare(self, inputs: Any) -> tuple[Modality, Batch, bool]:
        """Modality, encoded batch, and whether a single raw input was given."""
        if not isinstance(self.processor, Table):
            inputs = listed(inputs)
        modality = choose_modality(self.model, self.processor, inputs)
        if isinstance(modality, TableInput):
            return modality, *modality.read(inputs)
        if are_tensors(inputs):
            batch = modality.adopt(inputs)
            return modality, batch, False
        single = is_single(inputs)
        raw = [inputs] if single else list(inputs)
        if not raw:
            raise BadInput("there is nothing to explain: the list of inputs is empty.")
        return modality, encoded(modality, raw), single


def explain(
    model: Any, inputs: Any, *, processor: Any = None, attention_at: Mapping[str, str] | None = None, **how: Any
) -> Any:
    """Why did the model say that? One Explanation for one raw input, a list for several, a dict for several methods.

    processor: tokenizer, image processor or wf.Table, for raw inputs. target: class or label, (a, b) for a rather than
    b, None for the prediction; a list has one per input. scalar: "logit", "probability", "log_odds" or "cosine".
    options: the method's own (wf.list_methods() lists them). attention_at: as for Explainer.
    """
    _refuse_misspelled(explain, {k: v for k, v in how.items() if k not in inspect.signature(explain).parameters})
    return Explainer(model, processor, attention_at=attention_at).explain(inputs, **how)


def _with_parameters_of(verb: Callable[..., Any], function: Callable[..., Any]) -> inspect.Signature:
    """What ``function`` takes, with the parameters of ``verb`` in the place of ``**how``."""
    *own, _ = inspect.signature(function).parameters.values()
    others = [
        p for name, p in inspect.signature(verb).parameters.items() if name not in {"self", *(p.name for p in own)}
    ]
    return inspect.Signature([*own, *others])


# Written once, in Explainer.explain; help() and editors at run time see all of them.
explain.__signature__ = _with_parameters_of(Explainer.explain, explain)  # type: ignore[attr-defined]


def _refuse_misspelled(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    refuse_misspelled(function, options, (name for m in list_methods().values() for name in m.options))


def _default_size(batch: Batch) -> int:
    """Inputs at a time, where nobody said how many."""
    on_cpu = all(t.device.type == "cpu" for t in batch.tensors.values())
    return BATCH_SIZE if on_cpu else BATCH_SIZE_ON_DEVICE


def _modality(modality: Modality) -> str:
    """A table is one whose columns are named; of bare tensors nothing is known."""
    return "" if modality.stream == "table" and not isinstance(modality, TableInput) else modality.stream


def _shaped(found: list[Explanation], groups: tuple[int, ...], single: bool) -> Any:
    """One per input; a list of them where an input gives several (detections, generated tokens)."""
    if not groups:
        return found[0] if single else found
    each = [[e for e, g in zip(found, groups, strict=True) if g == i] for i in range(max(groups) + 1)]
    return each[0] if single else each


def _settings(chosen: list[Method], options: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Options per method. With several methods an option goes to those that have it, and one must."""
    if len(chosen) == 1:
        return {chosen[0].name: chosen[0].checked(options)}
    for name, value in options.items():
        if not any(name in m.options for m in chosen):
            chosen[0].checked({name: value})
    return {m.name: m.checked({k: v for k, v in options.items() if k in m.options}) for m in chosen}


def _check_targets(target: Any, size: int) -> None:
    if isinstance(target, list) and len(target) != size:
        raise BadInput(f"{len(target)} targets for {size} inputs: give one target, or one per input.")


class _Marked:
    """While explaining, the outputs of modules that the user named are marked as attention maps."""

    def __init__(self, modules: list[tuple[nn.Module, str]]) -> None:
        self.modules = modules
        self.handles: list[Any] = []

    def __enter__(self) -> None:
        for module, layout in self.modules:
            self.handles.append(
                module.register_forward_hook(lambda m, args, out, layout=layout: mark_attention(out, layout))
            )

    def __exit__(self, *exc: object) -> None:
        for handle in self.handles:
            handle.remove()
