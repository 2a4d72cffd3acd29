"""CoreExplainer: a loaded model with explain, record, estimate, study and audit."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, overload

from torch import Tensor

from whyformer.capture.functions import tensors_in
from whyformer.capture.record import observe, record, require_sites
from whyformer.capture.roles import Observe, Recorder
from whyformer.compiled import Compiled, Graphs, Question
from whyformer.errors import CaptureError, NotOffered
from whyformer.estimates import Estimate, advise, estimate, foldable
from whyformer.explanations import contrast, explanations, is_of_answers, of_run, take_all_tokens
from whyformer.hops import explained_through
from whyformer.inputs.batch import Column, Messages, Paired, Prompted, Several, Single, Tensors
from whyformer.inputs.modalities import Source
from whyformer.inputs.tokens import require_next_token
from whyformer.inputs.units import token_sentences
from whyformer.loan.backwards import refuse_without_gradients
from whyformer.loan.borrow import argument_name, called_with, refresh
from whyformer.loan.spread import heads_elsewhere
from whyformer.loan.turns import Draws
from whyformer.options import AnswerPart, Generate, Name, Names, Options, Request, Sizing, Writing, takes
from whyformer.parameters import CharacterRange, Named, checked
from whyformer.prepared import Prepared, prepare
from whyformer.registry import AUTO, MASKINGS
from whyformer.results.types import ByMethod, Explanation, Explanations, Generation, Record
from whyformer.run import Run, require_undisturbed
from whyformer.run.session import LoadedModel, Session
from whyformer.study import Study, study_of
from whyformer.study.facts import Leak
from whyformer.study.interference import require_same
from whyformer.targets import Aims, Scalar, logits_of

if TYPE_CHECKING:
    from typing_extensions import Unpack

OF_SESSION = "target scalar batch_size seed progress keep_layers units decoding memory".split()
log = logging.getLogger("whyformer.explainer")

Whole = Literal[True] | str | CharacterRange  # the answer as a whole, a text in it, or a range of its characters
Tokens = int | Mapping[str, Any]  # that are written
Each = Explanations[Explanation]


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
        span: AnswerPart = False,
        generate: None = None,
        **options: Unpack[Options],
    ) -> Explanation: ...
    @overload
    def explain(
        self,
        inputs: Single | Prompted,
        *,
        method: Name = None,
        span: Whole,
        generate: Generate = None,
        **options: Unpack[Options],
    ) -> Explanation: ...
    @overload
    def explain(
        self,
        inputs: Single | Prompted,
        *,
        method: Name = None,
        generate: Tokens,
        span: Literal[False] = False,
        **options: Unpack[Options],
    ) -> Generation: ...
    @overload
    def explain(
        self, inputs: Prompted, *, method: Name = None, **options: Unpack[Writing]
    ) -> Explanation | Generation: ...
    @overload
    def explain(  # type: ignore[overload-overlap]  # a mapping of tensors is not a row of a table
        self, inputs: Tensors, *, method: Name = None, **options: Unpack[Writing]
    ) -> Each: ...
    @overload
    def explain(
        self, inputs: Messages | Column, *, method: Name = None, **options: Unpack[Writing]
    ) -> Explanation | Each: ...
    @overload
    def explain(
        self,
        inputs: Several,
        *,
        method: Name = None,
        generate: Tokens,
        span: AnswerPart = False,
        **options: Unpack[Options],
    ) -> Explanations[Generation]: ...
    @overload
    def explain(
        self,
        inputs: Several,
        *,
        method: Name = None,
        generate: None = None,
        span: AnswerPart = False,
        **options: Unpack[Options],
    ) -> Each: ...
    @overload
    def explain(self, inputs: Paired, *, method: Name = None, **options: Unpack[Writing]) -> Explanation: ...
    @overload
    def explain(  # type: ignore[overload-overlap]
        self, inputs: Tensors | Several, *, method: Names, **options: Unpack[Writing]
    ) -> ByMethod[Each]: ...
    @overload
    def explain(
        self, inputs: Single | Paired, *, method: Names, **options: Unpack[Writing]
    ) -> ByMethod[Explanation]: ...
    @checked
    @takes(Writing)
    def explain(self, inputs: Any, *, method: Name | Sequence[str | Named] = None, **options: Any) -> Any:
        """Explain inputs: one Explanation for one raw input, a list for several, a dict for several methods.

        method: name, or a list of names; None or "auto" uses the most faithful method known for the kind and size of
        each input within ``passes``.
        """
        owner = f"{type(self).__name__}.explain"
        request = Request.of(CoreExplainer.explain, method, options, owner=owner)
        return self.answer(inputs, request)

    def answer(self, inputs: Any, request: Request) -> Any:
        """Explain inputs as a request says whose values were checked."""
        through = request.through is not None or request.hops != 1
        # A graph that is replayed looks at the model while the device is at work.
        with self.borrowed() if through or self.graphs is None else nullcontext():
            source = self.source(inputs, lent=self.graphs is None)
            results = explained_through(self.answer, source, request) if through else self._answer(source, request)
        return ByMethod(results) if request.by_method else next(iter(results.values()))

    def _answer(self, source: Source, request: Request) -> dict[str, Any]:
        """What is asked for, by method."""
        if type(request.target) is tuple and is_of_answers(source, request.target):
            return contrast(self.answer, source, request)
        prepared = prepare(source.modality.kind, request, self.graphs is not None)
        source = source if request.first_token else source.asking(first_token=False)
        question: Question | None = None
        plain = not request.decoding and MASKINGS not in request.rest
        if self.graphs is not None and plain and len(prepared.chosen) == 1:
            (chosen,), asked = prepared.chosen, (request.target, request.batch_size)
            m = chosen.method
            question = Question(m, chosen.options, request.scalar, request.keep_layers, request.seed)
            answers = self.graphs.answers(source, question, *asked, request.units)
            if answers is not None:
                made = Explanations(e for run, a, costs in answers for e in explanations(run, chosen, a, costs))
                return {m.name: made[0] if source.single else made}
        session, results = self._explained(source, prepared)
        if request.passes is not None:  # said in place of "the default": what was asked
            names = request.methods
            unnamed = {AUTO} if len(names) > 1 else set(results) if names[0] in (None, AUTO) else set()
            for name in unnamed & results.keys():
                results[name] = [e.replace(passes=request.passes) for e in results[name]]
        log.debug(
            "%s: %d inputs of %s, %g forwards and %g backwards",
            ", ".join(results),
            session.size,
            type(self.model).__name__,
            session.forwards,
            session.backwards,
        )
        if self.graphs is not None and question is not None:
            results[m.name] = self.graphs.learned(
                source, question, session, *asked, results[m.name], lambda run, *made: explanations(run, chosen, *made)
            )
        return {name: _per_input(session, each) for name, each in results.items()}

    def _explained(self, source: Source, prepared: Prepared) -> tuple[Session, dict[str, list[Explanation]]]:
        """One explanation per input, by method."""
        request, chosen = prepared.request, prepared.chosen
        results: dict[str, list[Explanation]] = {c.method.name: [] for c in chosen}
        with nullcontext() if self.graphs is None else self.borrowed():
            session: Session | None = None
            try:
                asked = {name: getattr(request, name) for name in OF_SESSION}
                session = Session(self, source, foldable=partial(foldable, chosen), **asked)
                if not request.first_token:
                    require_next_token(session.modality.mean, session.batch, "first_token=False is")
                if session.batch.trunks and request.batch_size is None:
                    take_all_tokens(session, chosen)
                for c in chosen:
                    if c.method.needs & {"attention_gradients", "input_gradients"}:
                        refuse_without_gradients(self.model, c.method.name)
                # Rows that look at others are explained beside them, unless the method only asks for scores: then the
                # modality brings the others in itself.
                looking = [
                    c for c in chosen if session.modality.read.mixes_rows and not c.method.needs <= {"perturbation"}
                ]
                for beside, together in ((False, [c for c in chosen if c not in looking]), (True, looking)):
                    if not together:
                        continue
                    measure = partial(of_run, session, together)
                    what = " and ".join(c.method.name for c in together)
                    for _, by_method in session.each(measure, label="explaining", what=what, beside=beside):
                        for name, explanations in by_method.items():
                            results[name] += explanations
                setup = {"setup_forwards": session.setup_forwards}  # of all parts: the first ones did not know it
                for made in results.values():
                    if any(e.cost.setup_forwards != session.setup_forwards for e in made):
                        made[:] = [e.replace(cost=replace(e.cost, **setup)) for e in made]
            except (NotOffered, CaptureError) as refusal:
                if self.advises and session is not None:
                    advise(refusal, session, [c.method.name for c in chosen])
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
                role.facts = run.study.sites
                maps = observe(partial(_numbers, run), role, values=True)
                require_same(self.model, maps.logits, lambda rows: _numbers(run), apart=False)
            else:
                recorder = Recorder(run.batch.size, session.names, run.study.batch_axes)
                recorder.facts = run.study.sites
                maps = record(partial(run.output.logits, run.batch), recorder, run.scalars, values=True)
                require_undisturbed(run, maps.logits, graph=True)
                run.require_slopes(maps, recorder)
            require_sites(maps)
            return maps

    @checked
    @takes(Sizing)
    def estimate(self, inputs: Any, *, method: Name = None, **options: Unpack[Sizing]) -> Estimate:
        """Estimate memory and passes of ``explain``, without explaining."""
        source, request = self.source(inputs), Request.of(None, method, options, Sizing)
        prepared = prepare(source.modality.kind, request, self.graphs is not None)
        sizes: dict[str, Any] = {"batch_size": request.batch_size, "memory": request.memory, "units": request.units}
        with self.session(source, **sizes) as session:
            return estimate(session, *prepared.chosen)

    def study(self, inputs: Any) -> Study:
        """Analyse the model: attention sites, ledger, readout row, patch grid, leak audit."""
        modality, batch, _ = self.prepare(inputs)
        with self.borrowed():
            called_with(self.model, argument_name(modality.read.called_with(batch.constants)))
            batch, _ = modality.mean.expanded(batch, None)  # a generator is studied on what it writes
            one = modality.read.alone(batch.select([0])) if modality.read.one_by_one(batch) else batch
            return study_of(modality, one)[0]

    def audit(self, inputs: Any) -> Leak:
        """Test whether information passes between positions outside the captured attention (study/facts.py)."""
        return self.study(inputs).leak


def _numbers(run: Run) -> Tensor:
    """(B, …) whatever the model says about a batch, as one row per input: maps can be had without a class."""
    with Draws({}):  # as Output does: the user's generator stays where it is
        output = run.modality.read.call(run.batch)
    try:
        numbers = logits_of(output)
    except NotOffered:  # several answers, or none
        parts = tensors_in(output.values() if isinstance(output, Mapping) else output)
        floats = [part for part in parts if part.is_floating_point() and part.ndim]
        if not floats:
            raise
        numbers = floats[0]
    return numbers.reshape(len(numbers), -1)


def _per_input(session: Session, explanations: list[Explanation]) -> Any:
    """The explanations of one method, in the shape of the inputs: one, a list, or lists of tokens or detections."""
    batch = session.batch
    each: Any = Explanations(explanations)
    if batch.groups:  # a list per input that gives several
        pairs = list(zip(explanations, batch.groups, strict=True))
        each = Explanations(Explanations(e for e, g in pairs if g == i) for i in range(max(batch.groups) + 1))
    if batch.trunks and batch.groups:
        facts = dict(zip(batch.groups, batch.encodings, strict=True))
        last = [facts[row] for row in sorted(facts)]  # of each answer, what is known at its last token
        each = Explanations(map(_generation, each, last))
    return each[0] if session.single else each


def _generation(explanations: list[Explanation], facts: Mapping[str, Any]) -> Generation:
    count, said = len(explanations), facts.get("said", "")
    answer = said or "".join(e.target.label for e in explanations)
    if not said or facts.get("spans") is None:
        return Generation(tuple(explanations), answer, ((0, count),))
    ends = [span[1] for span in facts["spans"][len(facts["ids"]) - count + 1 :]]
    return Generation(tuple(explanations), answer, token_sentences(said, [end - facts["begin"] for end in ends]))
