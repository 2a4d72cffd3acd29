"""Learned: a trained network with its certificate, bound to one model. Its file, and its entry as a method."""

from __future__ import annotations

import hashlib
import json
import math
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from whyformer import files
from whyformer.engines.perturbation.players import held_units
from whyformer.engines.perturbation.variants import maskable
from whyformer.errors import BadInput, NotOffered, NotOverUnits
from whyformer.evidence import ENOUGH, with_interval
from whyformer.inputs.base import Modality
from whyformer.learned.network import Features, Network
from whyformer.loan.borrow import known_about
from whyformer.loan.digests import digest
from whyformer.parameters import Named, checked
from whyformer.registry import LEARNED, SUFFIX, Method, over_maskings, register_named
from whyformer.results.codec import Float32, mapping, reason, to_plain
from whyformer.results.interop import DataFrame, dataframe
from whyformer.results.result import Result
from whyformer.results.types import Site
from whyformer.run import Attribution, Run
from whyformer.shapes import Array
from whyformer.views.comparison_view import learned_page
from whyformer.views.view import view_of

HEADER, CHECKSUM = "learned", "checksum"  # entries of the file's metadata


# The certificate: how learned explanations do on inputs that were not learned from, beside other methods.

Interval = tuple[float, float, float]  # mean and 95 % confidence interval
UNKNOWN: Interval = (math.nan, math.nan, math.nan)


@dataclass(frozen=True)
class CertifiedMethod:
    """One method on the held-out inputs, and by how much the learned one is ahead of it, paired."""

    name: str
    forwards: float
    backwards: float
    comprehensiveness: Interval  # higher is better
    sufficiency: Interval  # lower is better
    ahead: Interval = UNKNOWN  # in comprehensiveness - sufficiency
    free: bool = False  # it takes one pass, as the learned one does, without learning


@dataclass(frozen=True)
class Certificate:
    """Quality of a learned method beside others, measured on held-out inputs only."""

    inputs: int
    shapley_inputs: int  # of these; Shapley values take many passes
    r2: Interval  # share of the variance of Shapley values that the scores explain; 1 is best
    rank: Interval  # Spearman correlation with Shapley values within an input; 1 is best
    methods: tuple[CertifiedMethod, ...]  # the learned one first

    @property
    def learned(self) -> CertifiedMethod:
        return self.methods[0]

    @property
    def rival(self) -> CertifiedMethod | None:
        """The free one-pass method that comes closest or is ahead."""
        free = [m for m in self.methods if m.free]
        return min(free, key=lambda m: m.ahead[0]) if free else None

    @property
    def better(self) -> bool:
        """Whether it is better than every free one-pass method, by more than chance."""
        return all(m.ahead[1] > 0 for m in self.methods if m.free)

    @property
    def verdict(self) -> str:
        if self.rival is None:
            return "No free one-pass method runs on this model: there is nothing to compare with."
        on = f"on {self.inputs} held-out inputs"
        gain = f"{with_interval(self.rival.ahead)} in comprehensiveness - sufficiency {on}"
        few = f" Confidence intervals are wide: only {self.inputs} inputs." if self.inputs < ENOUGH else ""
        if self.better:
            return f"Better than every free one-pass method; the closest is {self.rival.name}: {gain}.{few}"
        level, name = "Not significantly better" if self.rival.ahead[0] > 0 else "Not better", self.rival.name
        compared = f"{level} than {name}, which takes one pass without learning: {gain}"
        if all(abs(value) < 5e-4 for value in self.rival.ahead):  # to three digits
            compared = f"Tied with {name}, which takes one pass without learning, {on}"
        return f"{compared}. Not recommended: use {name}, or learn from more inputs (forwards=).{few}"

    @property
    def line(self) -> str:
        """One sentence about quality, which every explanation carries."""
        beside = [f"{m.name} {m.comprehensiveness[0]:.3f} / {m.sufficiency[0]:.3f}" for m in self.methods[1:]]
        agreement = "" if math.isnan(self.rank[0]) else f"rank correlation with Shapley values {self.rank[0]:.2f}, "
        return (
            f"learned explanation: on {self.inputs} held-out inputs {agreement}comprehensiveness / sufficiency "
            f"{self.learned.comprehensiveness[0]:.3f} / {self.learned.sufficiency[0]:.3f} ("
            + "; ".join(beside)
            + ")."
            + ("" if self.better else " It is not better than every free one-pass method: not recommended.")
        )


@dataclass(frozen=True, eq=False)
class Learned(Result, Named):
    """An explanation method that was learned for one model: pass it as ``method=``, or the path of its file.

    >>> model, tokenizer = wf.demo.load_sentiment()
    >>> texts = [f"The {what} was {how}" for what in ("film", "plot", "cast") for how in "abcdefghij"]
    >>> learned = wf.learn(model, texts, tokenizer, forwards=500, linear=True)  # too few texts, for a quick look
    >>> wf.explain(model, "I like the movie", tokenizer, method=learned)
    """

    what: ClassVar[str] = "learned method"
    last: ClassVar[tuple[str, ...]] = ("weights",)
    endings: ClassVar[tuple[str, ...]] = (SUFFIX,)
    former: ClassVar[tuple[str, ...]] = ("beside",)  # fields of older files

    model: str  # class
    fingerprint: str  # of the model's weights
    kind: str  # of inputs: text, image, table, language
    units: str
    scalar: str
    heads: tuple[int, ...]  # of each attention call
    linear: bool
    inputs: int  # learned from
    forwards: int  # that learning took; a backward counts two
    seconds: float
    seed: int
    error: float  # root mean square error of predicted removals, on inputs not learned from
    errors: tuple[float, float]  # of values: variance, and noise of differences in units of it, for shap(guide=)
    distance: float  # of features, beyond which an input is unlike those learned from
    weights: dict[str, Float32] = field(repr=False)
    replace: str | int | None = None  # the baseline of masked features; None: the default
    hold: int | None = None  # the unit that is never masked
    certificate: Certificate | None = None
    versions: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        register_named(_method(self))

    @cached_property
    def name(self) -> str:
        """For example "learned:1f0c93ab", by which results name it."""
        told = hashlib.blake2b(f"{self.fingerprint} {self.units} {self.scalar}".encode(), digest_size=4)
        for key in sorted(self.weights):
            told.update(np.ascontiguousarray(self.weights[key]).tobytes())
        return LEARNED + told.hexdigest()

    @property
    def title(self) -> str:
        """What it is, in a line."""
        by = "weights of its attention heads" if self.linear else "a network over its attention heads"
        return f"{self.name}: {self.model} explained in one pass, by {by}"

    @cached_property
    def network(self) -> Network:
        """The trained network, on the CPU."""
        weights = {name: torch.from_numpy(np.array(array)) for name, array in self.weights.items()}
        try:
            with torch.device("meta"):  # a file may claim any size: none is made before the weights fit
                network = Network(self.heads, weights["states_mean"].numel(), self.linear)
            network.load_state_dict(weights, assign=True)
        except (RuntimeError, TypeError, KeyError) as error:
            raise files.Damaged(f"its weights are not those of its network ({reason(error)[:100]})") from error
        return network.eval()

    @property
    def head_weights(self) -> Array:
        """(layers, heads, 5) output per standard deviation of a head feature, by KINDS; NaN beyond a layer's heads."""
        flat, at = self.weights["head_weights"] * float(self.weights["scale"]), 0
        table = np.full((len(self.heads), max(self.heads), len(KINDS)), np.nan)
        for layer, count in enumerate(self.heads):
            table[layer, :count] = flat[at : at + count * len(KINDS)].reshape(len(KINDS), count).T
            at += count * len(KINDS)
        return table

    @checked
    def to_frame(self) -> DataFrame:
        """The methods of the certificate; of ``linear=True``, the weight of every head."""
        if self.linear:
            table = self.head_weights
            rows = [
                {"layer": layer, "head": head} | dict(zip(KINDS, table[layer, head].tolist(), strict=True))
                for layer, count in enumerate(self.heads)
                for head in range(count)
            ]
            return dataframe(rows)
        return dataframe([] if self.certificate is None else [to_plain(m) for m in self.certificate.methods])

    # The file: safetensors, with the rest as JSON in its metadata.

    def _write_file(self, path: Path) -> None:
        from safetensors.numpy import save

        header = json.dumps({k: v for k, v in self.to_dict().items() if k != "weights"}, ensure_ascii=False)
        arrays = {name: np.ascontiguousarray(array) for name, array in self.weights.items()}
        files.write_file(path, save(arrays, {HEADER: header, CHECKSUM: _checksum(header, arrays)}))
        register_named(_method(self), path)

    @classmethod
    def _read_file(cls, path: Path) -> Learned:
        from safetensors import safe_open

        with safe_open(str(path), "numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}
        if HEADER not in metadata:
            raise files.Damaged("it does not hold a learned method")
        if metadata.get(CHECKSUM) != _checksum(metadata[HEADER], arrays):
            raise files.Damaged("it is damaged: its checksum does not match")
        learned = cls._from_dict(mapping(files.parsed(metadata[HEADER]), "it") | {"weights": arrays})
        _ = learned.network  # raises if the weights do not fit
        if len(learned.heads) * max(learned.heads, default=0) > files.TIMES * sum(learned.heads):
            raise files.Damaged("a table of its heads would be far larger than the file")
        register_named(_method(learned), path)
        return learned

    # Explaining

    def require(self, run: Run) -> None:
        """Raise if it was learned for another model, or for another question."""
        refuse(run.modality)
        if run.batch.asked.segments != self.units:
            raise BadInput(f"{self.name} was learned for units={self.units!r}: pass the same, or learn again.")
        if run.scalar != self.scalar:
            raise BadInput(f"{self.name} was learned for scalar={self.scalar!r}, not {run.scalar!r}.")
        # All weights are read at the first use after loading, and once torch counted a write to one of them.
        known, itself = known_about(run.modality.model), weakref.ref(self)
        if itself not in known:
            known[itself] = fingerprint_of(run.modality.model)
        if known[itself] != self.fingerprint:
            raise BadInput(
                f"{self.name} was learned for a {self.model} with other weights: explanations of this model would be "
                "wrong. Learn again with wf.learn(model, inputs, …)."
            )

    def scores(self, features: Sequence[UnitFeatures], value_B: Tensor) -> tuple[list[Array], list[float]]:
        """Per input: (U,) scores of its units, 0 for those that cannot be masked; and the distance of its features.

        value_B: the explained outputs.
        """
        network = self.network.to(value_B.device)
        sizes = features[0].heads_UF.shape[1], features[0].states_US.shape[1]
        if sizes != (len(network.heads_mean), len(network.states_mean)):
            raise NotOffered(
                f"{self.name} was learned from other features: the model runs other attention layers here."
            )
        heads_BUF = pad_sequence([f.heads_UF for f in features], batch_first=True)
        states_BUS = pad_sequence([f.states_US for f in features], batch_first=True)
        there_BU, parts_BU = np.zeros(heads_BUF.shape[:2], dtype=bool), np.zeros(heads_BUF.shape[:2], dtype=np.float32)
        for row, f in enumerate(features):
            there_BU[row, : len(f.heads_UF)], parts_BU[row, f.parts] = True, 1
        on = value_B.device
        marks = torch.from_numpy(there_BU).to(on), torch.from_numpy(parts_BU).to(on)
        batch = Features(heads_BUF, states_BUS.float(), *marks, value_B.detach().float())
        with torch.no_grad():
            scores_BU: Array = batch.phi(network).double().cpu().numpy()
        scores_BU = np.where(parts_BU > 0, scores_BU, 0.0)
        each = [scores_U[: len(f.heads_UF)] for scores_U, f in zip(scores_BU, features, strict=True)]
        return each, batch.distances(network).tolist()


def _method(learned: Learned) -> Method:
    """Return the entry of the registry, which ``list_methods()`` leaves out."""

    def explain(run: Run) -> Attribution:
        """Predict Shapley values from one pass, by a network that was trained on this model (wf.learn).

        Misleads when: the input is unlike those learned from; its certificate holds for inputs like these.
        """
        learned.require(run)
        scores_BN = torch.zeros(run.keep_BN.shape, dtype=torch.float64)
        warnings, distances = [], []
        keep_BN, each = run.keep_BN.cpu(), features_of(run, hold=learned.hold)
        if any(target.versus is not None for target in run.targets):  # known from the pass of the features
            raise NotOffered(f"{learned.name} explains one class at a time: explain both, and subtract.")
        for row, (features, scores_U, distance) in enumerate(
            zip(each, *learned.scores(each, run.value_B), strict=True)
        ):
            by_token = np.zeros(int(keep_BN[row].sum()))
            for members, score in zip(features.members, scores_U, strict=True):
                by_token[list(members)] = score / len(members)
            scores_BN[row, keep_BN[row]] = torch.from_numpy(by_token)
            remarks = [learned.certificate.line] if learned.certificate is not None else []
            if distance > learned.distance:
                remarks.append(
                    f"this input is unlike those that {learned.name} was trained on (feature distance {distance:.2f}; "
                    f"limit {learned.distance:.2f}): do not rely on its scores."
                )
            distances.append(distance)
            warnings.append(remarks)
        checks = {"feature_distance": torch.tensor(distances)}
        return Attribution(scores_BN.to(run.keep_BN.device).float(), checks=checks, warnings=warnings)

    certificate = learned.certificate
    return Method(
        name=learned.name,
        run=explain,
        paper="loss: FastSHAP, Jethani et al. 2022 (ICLR), arXiv:2107.07436; masks: Covert & Lee 2021",
        needs=frozenset({"attention_gradients", "values"}),
        cost=over_maskings(lambda units, **options: (1, 1)),
        cost_text="1 forward + 1 backward",
        signed=True,
        class_specific=True,
        specificity="attention",
        idea="Predict Shapley values from one pass, by a network that was trained on this model (wf.learn).",
        meaning="share of the output (predicted Shapley value)",
        unfit="it has no certificate" if certificate is None else "" if certificate.better else certificate.verdict,
        fingerprint=learned.fingerprint,
        errors=learned.errors,
    )


def fingerprint_of(model: nn.Module) -> str:
    """Return a digest of all weights and buffers."""
    return digest(weights={name: t.detach() for name, t in model.state_dict().items()})


def _checksum(header: str, arrays: Mapping[str, Array]) -> str:
    told = hashlib.blake2b(header.encode("utf-8", "backslashreplace"), digest_size=16)
    for name in sorted(arrays):
        told.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode() + arrays[name].tobytes())
    return told.hexdigest()


view_of.register(Learned, learned_page)


# Features of one pass, per unit: what every attention head does with it, and its value vectors in three layers.
#
# They are read from the record of any model that the interceptor reads, in the order of its attention calls. The
# explained class enters through the gradients.


KINDS = (
    "value × gradient",  # column sum of A∘∂A
    "its positive part",  # column sum of max(0, A∘∂A)
    "output row, attention × gradient",
    "output row, attention",
    "output row, gradient",
)


@dataclass(frozen=True)
class UnitFeatures:
    """Features of the units of one input."""

    heads_UF: Tensor  # float32: per attention call, kind and head
    states_US: Tensor  # float16
    members: tuple[tuple[int, ...], ...]  # tokens of each unit: one, or those of a sentence
    parts: Array  # (P,) the units that can be masked


def refuse(modality: Modality) -> None:
    """Raise for kinds of models whose record has no such features, before any pass."""
    reason = ""
    if modality.read.opaque:
        reason = "the model can only be called from outside (a function, a server), and features are read inside it"
    elif modality.read.joint:
        reason = "the model has several streams of input, and features are those of one"
    elif modality.mean.outcome == "objects":
        reason = "a detector has one explanation per object, and features are those of one output"
    elif modality.read.mixes_rows:
        reason = "rows of this table attend to each other, and features are those of one row"
    if reason:
        raise NotOffered(f"explanations cannot be learned here: {reason}.")


def head_counts(run: Run) -> tuple[int, ...]:
    return tuple(site.heads for site in run.record(grad=True, values=True).sites)


def features_of(run: Run, device: torch.device | None = None, hold: int | None = None) -> list[UnitFeatures]:
    """Return the features of each input of a run, on its device or another. hold: the unit that is never masked."""
    refuse(run.modality)
    if run.multi_stream or run.windowed:
        kind = "several streams of tokens" if run.multi_stream else "attention inside windows"
        raise NotOffered(f"explanations cannot be learned here: the model has {kind}, and features are per token.")
    sites = run.record(grad=True, values=True).sites
    keep_BN, readout_BN = run.keep_BN.float(), run.readout_BN.float()
    heads_BNF = torch.cat([_of_heads(site, keep_BN, readout_BN) for site in sites], 1).transpose(1, 2)
    states_BNS = _states(sites, heads_BNF).half()
    if not bool(heads_BNF.isfinite().all() & states_BNS.isfinite().all()):
        raise NotOffered("attention or its gradient holds NaN or infinity: run the model in float32.")
    heads_BNF, states_BNS = heads_BNF.to(device), states_BNS.to(device)  # in one copy
    keep_BN, held = run.keep_BN.cpu(), held_units(run, hold)
    features = []
    for row in range(run.batch.size):
        there = torch.nonzero(keep_BN[row])[:, 0].to(heads_BNF.device)
        heads_UF, states_US = heads_BNF[row, there], states_BNS[row, there]
        members: list[tuple[int, ...]] = [(i,) for i in range(len(heads_UF))]
        units = run.units[row]
        removable = np.array(maskable(run, row), dtype=bool) & ~held[row]
        if run.segments:
            groups, units = run.segments[row]
            members = [tuple(group) for group in groups]
            heads_UF = torch.stack([heads_UF[list(group)].sum(0) for group in members])
            states_US = torch.stack([states_US[list(group)].float().mean(0).half() for group in members])
            removable = np.array([removable[list(group)].any() for group in members], dtype=bool)
        parts = np.flatnonzero(removable & ~np.array(units.special, dtype=bool))
        features.append(UnitFeatures(heads_UF, states_US, tuple(members), parts))
    return features


def _of_heads(site: Site, keep_BN: Tensor, readout_BN: Tensor) -> Tensor:
    """(B, 5H, N) in the order of KINDS."""
    attention_BHQK = site.attention_BHQK.detach().float()
    gradient = site.attention_grad_BHQK  # None: the output does not depend on this call
    gradient_BHQK = torch.zeros_like(attention_BHQK) if gradient is None else gradient.detach().float()
    if attention_BHQK.shape[-1] != keep_BN.shape[1] or attention_BHQK.shape[0] != len(keep_BN):
        raise NotOverUnits(f"attention of {site.path} does not run over the tokens: explanations cannot be learned.")
    product_BHQK = attention_BHQK * gradient_BHQK
    rows = slice(site.first_query, site.first_query + attention_BHQK.shape[2])
    real_B1Q1, read_B1Q1 = keep_BN[:, None, rows, None], readout_BN[:, None, rows, None]
    parts = [product_BHQK * real_B1Q1, product_BHQK.clamp(min=0) * real_B1Q1]
    parts += [product_BHQK * read_B1Q1, attention_BHQK * read_B1Q1, gradient_BHQK * read_B1Q1]
    return torch.cat([part.sum(2) for part in parts], 1)


def _states(sites: tuple[Site, ...], like_BNF: Tensor) -> Tensor:
    """(B, N, S) value vectors of the first, middle and last call; of width 0 where a model's values were not seen."""
    chosen = [sites[i].value_BHKD for i in sorted({0, len(sites) // 2, len(sites) - 1})]
    states = []
    for value_BHKD in chosen:
        if value_BHKD is None or value_BHKD.shape[2] != like_BNF.shape[1]:
            return like_BNF[:, :, :0]
        flat = value_BHKD.detach().float().transpose(1, 2).flatten(2)
        states.append(flat.expand(len(like_BNF), -1, -1))
    return torch.cat(states, 2).clamp(-6e4, 6e4)
