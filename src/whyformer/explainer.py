"""CoreExplainer: a loaded model with explain, record, estimate, study and audit."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Literal, overload

from torch import Tensor

from whyformer.capture.functions import tensors_in
from whyformer.capture.record import observe, record, require_sites
from whyformer.capture.roles import Observe, Recorder
from whyformer.choices import ANYWHERE, MEASURED, USUAL, answers
from whyformer.compiled import Compiled, Graphs, Question
from whyformer.errors import BadInput, CaptureError, NotOffered
from whyformer.estimates import Estimate, Memory, advise, estimate, foldable
from whyformer.explanations import Settings, contrast, explanations, is_of_answers, of_run, take_all_tokens
from whyformer.hops import explained_through
from whyformer.inputs.batch import Column, Messages, Paired, Prompted, Several, Single, Tensors
from whyformer.inputs.decoding import Decoding
from whyformer.inputs.language import require_next_token
from whyformer.inputs.modalities import Source
from whyformer.inputs.units import SIZES, token_sentences
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.loan.borrow import argument_name, borrowed, called_with, refresh
from whyformer.loan.spread import heads_elsewhere
from whyformer.loan.turns import Draws
from whyformer.parameters import (
    BatchSize,
    Count,
    Limits,
    Named,
    NotEmpty,
    OneOf,
    PassCount,
    Seed,
    Words,
    checked,
    refuse_misspelled,
)
from whyformer.registry import AUTO, MASKINGS, Method, get_method, list_methods
from whyformer.results.types import ByMethod, Cost, Explanation, Explanations, Generation, Record
from whyformer.run import Attribution, Run
from whyformer.run.session import LoadedModel, Session
from whyformer.study import Study, study_of, with_streams
from whyformer.study.facts import Leak
from whyformer.study.interference import require_same
from whyformer.targets import Aims, Scalar, logits_of

log = logging.getLogger("whyformer.explainer")

Span = Literal[True] | str | tuple[int, int]  # the answer as a whole, a text in it, or a range of its characters
Tokens = int | Mapping[str, Any]  # that are written
Name = str | Named | None  # of a method, or a learned one; None: the default
Names = Sequence[str | Named]
Each = Explanations[Explanation]
CharacterRange = Annotated[tuple[int, int], Words("(start, end), characters of the text", "(start, end) pairs")]
Segments = Annotated[str, OneOf(*SIZES)] | Annotated[Sequence[CharacterRange], NotEmpty()] | Mapping[str, Any]
Text = Annotated[str, NotEmpty()]
_PARTS = Words('"thoughts", a role, a text, or a list of roles, texts and (start, end) pairs of characters')
Through = Annotated[Text | Annotated[Sequence[Text | CharacterRange], NotEmpty()], _PARTS] | None
HopCount = Annotated[int, Limits(0, 100)]
Generate = Count | Mapping[str, Any] | None  # tokens, or what model.generate is told


class CoreExplainer(LoadedModel):
    """Hold a model and explain its predictions. ``Explainer`` (verbs.py) adds compare, check, report and recommend."""

    advises = True  # an error says which methods run instead; whoever tries them all has no use for it

    @checked
    def __init__(
        self,
        model: Any,
        processor: Any = None,
        *,
        tokenizer: Any = None,
        attention_at: Mapping[str, str] | None = None,
        compiled: bool = False,
    ) -> None:
        inspect.unwrap(LoadedModel.__init__)(self, model, processor, attention_at=attention_at)
        self.graphs = Graphs(self.model, self.marks) if compiled else None

    @property
    def forms(self) -> list[Compiled]:
        """The input shapes explained with ``compiled=True``: recorded as a graph, or the reason why not."""
        return [] if self.graphs is None else self.graphs.table()

    def refresh(self) -> None:
        """Analyse the model anew in the next call: for writes to ``parameter.data``, which torch does not count.

        >>> explainer = wf.Explainer(*wf.demo.load_sentiment())
        >>> explainer.model.classifier.weight.data *= 2
        >>> explainer.refresh()
        """
        refresh(self.model)

    @overload
    def explain(
        self,
        inputs: Single,
        *,
        method: Name = None,
        target: Aims = None,
        scalar: Scalar = "centred",
        batch_size: BatchSize | None = None,
        memory: Memory = "auto",
        keep_layers: bool = False,
        units: Segments = "token",
        generate: None = None,
        span: bool | Text | CharacterRange = False,
        choices: Sequence[str] | None = None,
        one_pass: bool = False,
        first_token: bool = True,
        through: Through = None,
        hops: HopCount = 1,
        passes: PassCount | None = None,
        seed: Seed = 0,
        progress: bool | None = None,
        **options: Any,
    ) -> Explanation: ...
    @overload
    def explain(self, inputs: Single | Prompted, *, method: Name = None, span: Span, **others: Any) -> Explanation: ...
    @overload
    def explain(
        self, inputs: Single | Prompted, *, method: Name = None, generate: Tokens, **others: Any
    ) -> Generation: ...
    @overload
    def explain(self, inputs: Prompted, *, method: Name = None, **others: Any) -> Explanation | Generation: ...
    @overload
    def explain(self, inputs: Tensors, *, method: Name = None, **others: Any) -> Each: ...
    @overload
    def explain(self, inputs: Messages, *, method: Name = None, **others: Any) -> Explanation | Each: ...
    @overload
    def explain(
        self, inputs: Several, *, method: Name = None, generate: Tokens, **others: Any
    ) -> Explanations[Generation]: ...
    @overload
    def explain(self, inputs: Several, *, method: Name = None, **others: Any) -> Each: ...
    @overload
    def explain(self, inputs: Paired, *, method: Name = None, **others: Any) -> Explanation: ...
    @overload
    def explain(self, inputs: Tensors | Several, *, method: Names, **others: Any) -> ByMethod[Each]: ...
    @overload
    def explain(self, inputs: Single | Paired, *, method: Names, **others: Any) -> ByMethod[Explanation]: ...
    @overload
    def explain(self, inputs: Column, *, method: Name = None, **others: Any) -> Explanation | Each: ...
    @checked
    def explain(
        self,
        inputs: Any,
        *,
        method: Name | Names = None,
        target: Aims = None,
        scalar: Scalar = "centred",
        batch_size: BatchSize | None = None,
        memory: Memory = "auto",
        keep_layers: bool = False,
        units: Segments = "token",
        generate: Generate = None,
        span: bool | Text | CharacterRange = False,
        choices: Annotated[Sequence[str], NotEmpty()] | None = None,
        one_pass: bool = False,
        first_token: bool = True,
        through: Through = None,
        hops: HopCount = 1,
        passes: PassCount | None = None,
        seed: Seed = 0,
        progress: bool | None = None,
        **options: Any,
    ) -> Any:
        """Explain inputs: one Explanation for one raw input, a list for several, a dict for several methods.

        For language models: ``generate`` explains the generated tokens one by one; ``span`` the log-probability of the
        whole answer, or of a part of it; ``through`` and ``hops`` hand the answer's relevance on thoughts and tool
        messages on to what produced them (formulas: whyformer/hops.py); ``choices`` the next token among some tokens;
        ``one_pass`` uses one gradient for all tokens of the answer; ``first_token=False`` gives no score to the first
        token, which is an attention sink in many models (its share is in ``checks``). ``units``: the scored units:
        "token", "word", "sentence" or ranges of characters; for a text with images, ``{"text": "word", "image":
        [boxes or masks]}``; for tables, "groups" of columns that carry the same information. ``memory``: attention maps
        are stored ("full"), never stored ("fold"), or stored if they fit ("auto").
        ``method``: None or "auto" uses the most faithful method known for the kind and size of each input within
        ``passes`` (128 if None; a backward counts as two forwards, so 3 is one forward and one backward).
        """
        if options:
            refuse_unknown(CoreExplainer.explain, options, f"{type(self).__name__}.explain")
        method = method.name if isinstance(method, Named) else method
        names = [method] if method is None or isinstance(method, str) else list(method)
        if not names:
            raise BadInput("method=[] is empty: omit it for the default, or name some (wf.list_methods()).")
        source = self.source(inputs)
        asked: dict[str, Any] = {
            "units": units, "generate": generate, "span": span, "choices": choices, "scalar": scalar, "seed": seed,
            "batch_size": batch_size, "progress": progress, "memory": memory, "first_token": first_token,
            "passes": passes,
        }  # fmt: skip
        if through is not None or hops != 1:
            asked |= {"target": target, "one_pass": one_pass, "keep_layers": keep_layers}
            with self.borrowed():
                unchecked = partial(inspect.unwrap(CoreExplainer.explain), self)
                return explained_through(unchecked, source, through, hops, method, asked, options)
        if type(target) is tuple and is_of_answers(source, target):
            return contrast(self.explain, source, target, method, **asked, **options)  # type: ignore[arg-type]
        chosen, settings = self._chosen(source, names, passes, options, keep_layers or memory == "fold")
        arguments: dict[str, Any] = {"target": target, "scalar": scalar, "batch_size": batch_size, "seed": seed}
        arguments |= {"progress": progress, "keep_layers": keep_layers, "memory": memory}
        arguments["foldable"] = partial(foldable, chosen, settings)
        if units != "token":
            arguments["units"] = units
        source.modality.first_token = first_token
        if generate is not None or span or choices is not None or one_pass:
            arguments["decoding"] = Decoding(generate, span, tuple(choices or ()), one_pass, seed)
        question: Question | None = None
        if self.graphs is not None and len(chosen) == 1 and not {"decoding", MASKINGS} & {*arguments, *options}:
            question = Question(chosen[0], settings[chosen[0].name], scalar, keep_layers, seed)
            answers = self.graphs.answers(source, question, target, batch_size, units)
            if answers is not None:
                made = Explanations(e for answer in answers for e in _made(question, *answer))
                one = made[0] if source.single else made
                return one if method is None or isinstance(method, str) else ByMethod({chosen[0].name: one})
        session, results = self._explained(source, chosen, settings, arguments)
        if passes is not None:  # said in place of "the default": what was asked
            unnamed = {AUTO} if len(names) > 1 else set(results) if names[0] in (None, AUTO) else set()
            for name in unnamed & results.keys():
                results[name] = [e.replace(passes=passes) for e in results[name]]
        log.debug(
            "%s: %d inputs of %s, %g forwards and %g backwards",
            ", ".join(results),
            session.size,
            type(self.model).__name__,
            session.forwards,
            session.backwards,
        )
        if self.graphs is not None and question is not None:
            name, make = chosen[0].name, partial(_made, question)
            results[name] = self.graphs.learned(source, question, session, target, batch_size, results[name], make)
        shaped: dict[str, Any] = ByMethod({name: Explanations(each) for name, each in results.items()})
        if session.batch.groups:  # a list per input that gives several (detections, generated tokens)
            shaped = ByMethod({name: _grouped(each, session.batch.groups) for name, each in results.items()})
        if session.batch.trunks and session.batch.groups:
            facts = dict(zip(session.batch.groups, session.batch.encodings, strict=True))
            last = [facts[row] for row in sorted(facts)]  # of each answer, what is known at its last token
            shaped = ByMethod({name: Explanations(map(_generation, lists, last)) for name, lists in shaped.items()})
        if session.single:
            shaped = ByMethod({name: each[0] for name, each in shaped.items()})
        return shaped[chosen[0].name] if method is None or isinstance(method, str) else shaped

    def _chosen(
        self, source: Source, names: Sequence[Name], passes: int | None, options: dict[str, Any], mapped: bool
    ) -> tuple[list[Method], Settings]:
        """The methods, and the options of each: an option goes to those that have it, and one must."""
        if passes is not None:
            if not any("passes" in get_method(name or AUTO).options for name in names):
                raise BadInput(f"passes={passes} is for method='auto': {names[0]} has no such option, omit it.")
            options = options | {"passes": passes}
        if len(names) == 1 and names[0] in (None, AUTO):
            names = [self._unasked(source, options, mapped)]
            if "passes" not in get_method(names[0] or AUTO).options:  # one pass in any case
                options = {name: value for name, value in options.items() if name != "passes"}
        chosen = [get_method(name or AUTO) for name in names]
        for name, value in options.items():
            if not any(name in m.options for m in chosen):
                chosen[0].checked({name: value})  # raises
        return chosen, {m.name: m.checked({k: v for k, v in options.items() if k in m.options}) for m in chosen}

    def _unasked(self, source: Source, options: Mapping[str, Any], mapped: bool) -> str:
        """The method for inputs of this kind, "auto" where that depends on each input. mapped: it must have maps."""
        kind, passes, others = source.modality.kind, options.get("passes"), options.keys() - {"passes"}
        if kind in MEASURED and kind not in USUAL and (mapped or self.graphs is not None):  # graphs are for one pass
            return ANYWHERE
        choices = [name for name, _ in answers(kind, 1, passes)]
        fitting = [name for name in choices if others <= get_method(name).options.keys()] if others else []
        if fitting or (len(choices) == 1 and kind != "prompt"):
            return (fitting or choices)[0]
        return choices[0] if others else AUTO

    def _explained(
        self, source: Source, chosen: list[Method], settings: Settings, arguments: dict[str, Any]
    ) -> tuple[Session, dict[str, list[Explanation]]]:
        """One explanation per input, by method."""
        results: dict[str, list[Explanation]] = {m.name: [] for m in chosen}
        with borrowed(self.model, self.marks):
            session: Session | None = None
            try:
                session = Session(self, source, **arguments)
                if not source.modality.first_token:
                    require_next_token(session.modality, session.batch, "first_token=False is")
                if session.batch.trunks and arguments["batch_size"] is None:
                    take_all_tokens(session, chosen, settings)
                for m in chosen:
                    if m.needs & {"attention_gradients", "input_gradients"}:
                        refuse_without_gradients(self.model, m.name)
                # Rows that look at others are explained beside them, unless the method only asks for scores: then the
                # modality brings the others in itself.
                looking = [m for m in chosen if session.modality.mixes_rows and not m.needs <= {"perturbation"}]
                for beside, together in ((False, [m for m in chosen if m not in looking]), (True, looking)):
                    if not together:
                        continue
                    measure = partial(of_run, session, together, settings)
                    what = " and ".join(m.name for m in together)
                    for _, by_method in session.each(measure, label="explaining", what=what, beside=beside):
                        for name, explanations in by_method.items():
                            results[name] += explanations
                setup = {"setup_forwards": session.setup_forwards}  # of all parts: the first ones did not know it
                for made in results.values():
                    if any(e.cost.setup_forwards != session.setup_forwards for e in made):
                        made[:] = [e.replace(cost=replace(e.cost, **setup)) for e in made]
            except (NotOffered, CaptureError) as refusal:
                if self.advises and session is not None:
                    advise(refusal, session, [m.name for m in chosen])
                raise
        return session, results

    @checked
    def record(self, inputs: Any, grad: bool = False, *, target: Aims = None, scalar: Scalar = "logit") -> Record:
        """Return the attention maps of a batch, per call, as B,H,Q,K; with gradients of the output if ``grad``."""
        with self.session(inputs, target=target, scalar=scalar, at_once=False) as session:
            if (elsewhere := heads_elsewhere(self.model)) is not None:
                raise elsewhere
            if grad:
                refuse_without_gradients(self.model, "record(grad=True)")
            rows = range(session.size)
            try:
                run = session.run(rows)
            except NotOffered:  # no logits that could be explained: attention alone needs none
                if grad or target is not None:
                    raise
                run = session.run_of(session.part(rows), study=Study())
            if not grad:
                if target is not None:
                    _ = run.targets  # a wrong one is refused, although the maps do not depend on it
                role = Observe(run.batch.size, session.names)
                maps = observe(partial(_numbers, run), role, values=True)
                require_same(self.model, maps.logits, lambda rows: _numbers(run), apart=False)
            else:
                recorder = Recorder(run.batch.size, session.names, run.study.batch_axes)
                maps = record(partial(run.output.logits, run.batch), recorder, run.scalars, values=True)
                run.require_undisturbed(maps.logits, graph=True)
                run.require_slopes(maps, recorder)
            require_sites(maps)
            return with_streams(maps, run.study)

    @checked
    def estimate(
        self,
        inputs: Any,
        *,
        method: Name = None,
        batch_size: BatchSize | None = None,
        memory: Memory = "auto",
        units: Segments = "token",
        passes: PassCount | None = None,
        **options: Any,
    ) -> Estimate:
        """Estimate memory and passes of ``explain``, without explaining."""
        source = self.source(inputs)
        chosen, settings = self._chosen(source, [method], passes, options, memory == "fold")
        with self.session(source, batch_size=batch_size, memory=memory, units=units) as session:
            return estimate(session, chosen[0], settings[chosen[0].name])

    def study(self, inputs: Any) -> Study:
        """Analyse the model: attention sites, ledger, readout row, patch grid, leak audit."""
        modality, batch, _ = self.prepare(inputs)
        with self.borrowed():
            called_with(self.model, argument_name(modality.called_with(batch.constants)))
            batch, _ = modality.expanded(batch, None)  # a generator is studied on what it writes
            one = modality.alone(batch.select([0])) if modality.one_by_one(batch) else batch
            return study_of(modality, one)[0]

    def audit(self, inputs: Any) -> Leak:
        """Test whether information passes between positions outside the captured attention (study/facts.py)."""
        return self.study(inputs).leak


PARAMETERS = set(inspect.signature(CoreExplainer.explain).parameters)


def refuse_unknown(function: Callable[..., Any], options: Iterable[str], owner: str = "") -> None:
    """Raise for an option that no method has and that resembles a parameter of ``function``."""
    refuse_misspelled(function, options, (name for m in list_methods().values() for name in m.options), owner)


def _numbers(run: Run) -> Tensor:
    """(B, …) whatever the model says about a batch, as one row per input: maps can be had without a class."""
    with Draws({}):  # as Output does: the user's generator stays where it is
        output = run.modality.call(run.batch)
    try:
        numbers = logits_of(output)
    except NotOffered:  # several answers, or none
        parts = tensors_in(output.values() if isinstance(output, Mapping) else output)
        floats = [part for part in parts if part.is_floating_point() and part.ndim]
        if not floats:
            raise
        numbers = floats[0]
    return numbers.reshape(len(numbers), -1)


def _grouped(explanations: list[Explanation], groups: tuple[int, ...]) -> list[list[Explanation]]:
    each = ([e for e, g in zip(explanations, groups, strict=True) if g == i] for i in range(max(groups) + 1))
    return Explanations(map(Explanations, each))


def _generation(explanations: list[Explanation], facts: Mapping[str, Any]) -> Generation:
    count, said = len(explanations), facts.get("said", "")
    answer = said or "".join(e.target.label for e in explanations)
    if not said or facts.get("spans") is None:
        return Generation(tuple(explanations), answer, ((0, count),))
    ends = [span[1] for span in facts["spans"][len(facts["ids"]) - count + 1 :]]
    return Generation(tuple(explanations), answer, token_sentences(said, [end - facts["begin"] for end in ends]))


def _made(question: Question, run: Run, attribution: Attribution, costs: list[Cost]) -> list[Explanation]:
    """Of what a graph said."""
    return explanations(run, question.method, question.options, attribution, costs)
