"""Torch functions by name; attention written out and fused; batch norm; where the model ends and the scalar begins."""

from __future__ import annotations

import contextlib
import functools
import math
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import groupby
from operator import attrgetter
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from whyformer.loan.borrow import fact
from whyformer.results.types import Site

# Gradients behind batch norm: torch's kernel misreads them for a single picture, unless they lie plainly in memory.
#
# For an input of shape (1, C, H, W) in evaluation, torch's backward pass of batch norm on the CPU takes a gradient that
# was permuted (as it comes from pixels laid out as tokens) for one that was not, and its numbers go to the wrong
# places.


class PlainGradients(TorchFunctionMode):
    """Make the gradients at results of batch norm contiguous."""

    def __torch_function__(self, func: Function, types: object, args: Args = (), kwargs: Kwargs | None = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.__name__ == "batch_norm" and isinstance(out, Tensor) and out.requires_grad:
            out.register_hook(Tensor.contiguous)
        return out


def plain_gradients(model: nn.Module) -> contextlib.AbstractContextManager[Any]:
    """Return the mode around a pass that is differentiated: PlainGradients, where the model has batch norm."""
    return PlainGradients() if _has_batch_norm(model) and torch.is_grad_enabled() else contextlib.nullcontext()


@fact
def _has_batch_norm(model: nn.Module) -> bool:
    return any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in model.modules())


# The explained scalar: a log-probability is computed from the logits by this library, and is no part of the model.
#
# Changed gradients (AttnLRP, CP-LRP) hold inside the model. They start at the logits z with the plain gradient of the
# scalar s, so that the relevance that is propagated is Σ_j z_j ∂s/∂z_j. Of a logit that is the logit itself.


class ModelAnswer:
    """The model's output (B, …) in one pass, and whether the scalar is being computed from it now."""

    def __init__(self) -> None:
        self.tensor: Tensor | None = None  # None: the logits as they are
        self.ended = False


_ANSWER: ContextVar[ModelAnswer | None] = ContextVar("answer", default=None)


@contextmanager
def answered() -> Iterator[ModelAnswer]:
    """Inside ``with``: keep the model's output from which the scalar is computed."""
    answer = ModelAnswer()
    token = _ANSWER.set(answer)
    try:
        yield answer
    finally:
        _ANSWER.reset(token)


@contextmanager
def scalar_from(tensor_B: Tensor) -> Iterator[None]:
    """Inside ``with``: the scalar is computed from the model's output, by functions that need no relevance rule."""
    answer = _ANSWER.get()
    if answer is None:
        yield
        return
    answer.tensor, answer.ended = tensor_B, True
    try:
        yield
    finally:
        answer.ended = False


def in_model() -> bool:
    """Whether a function that is called now may be one of the model's."""
    answer = _ANSWER.get()
    return answer is None or not answer.ended


Function = Callable[..., Any]
Args = tuple[Any, ...]  # of a torch function
Kwargs = dict[str, Any]


def _names(*lines: str) -> frozenset[str]:
    return frozenset(" ".join(lines).split())


# What only moves entries

RESHAPES = _names("view reshape flatten unflatten unsqueeze squeeze view_as reshape_as")
PERMUTATIONS = _names("transpose swapaxes swapdims permute movedim moveaxis mT T t")
LAYOUTS = RESHAPES | PERMUTATIONS
JOINS = _names("cat concat concatenate hstack")
LISTED = JOINS | {"stack", "vstack"}  # functions of a list of tensors
PIECES = _names("chunk split tensor_split unbind")
REPEATS = _names("expand expand_as repeat repeat_interleave tile")

# What leaves numbers as they are, but for their type; dropout does, in a model that is not in training

CASTS = _names("to type type_as float double half bfloat16")
COPIES = _names("contiguous clone detach alias")
SAME = CASTS | COPIES | {"requires_grad_"}
UNCHANGED = SAME | {"dropout", "dropout_"}
DROPOUTS = _names("dropout dropout1d dropout2d")
RARE_DROPOUTS = _names("alpha_dropout feature_dropout")

# Arithmetic, in all its spellings

ADDS = _names("add add_ __add__ __radd__ __iadd__")
SUBS = _names("sub sub_ __sub__ __isub__ subtract")
REVERSED_SUBS = _names("rsub __rsub__")
MULS = _names("mul mul_ __mul__ __rmul__ __imul__ multiply")
DIVS = _names("div div_ __truediv__ __itruediv__ divide true_divide")
REDUCTIONS = _names("sum mean cumsum avg_pool1d avg_pool2d adaptive_avg_pool1d adaptive_avg_pool2d")
CLAMPS = _names("clamp clamp_min clamp_max clip")
LARGEST = _names(
    "max min amax amin maximum minimum topk sort max_pool1d max_pool2d adaptive_max_pool1d adaptive_max_pool2d"
)

# Products

PROJECTIONS = _names("linear addmm conv1d")
MATMULS = _names("matmul __matmul__ bmm")
PRODUCTS = MATMULS | {"baddbmm", "einsum"}
WEIGHTED = _names(  # of a tensor with weights; a model may compute these from its input, too
    "linear addmm addbmm addmv conv1d conv2d conv3d conv_transpose1d conv_transpose2d bilinear _grouped_mm grouped_mm"
)
RECURRENT = _names("lstm gru rnn_tanh rnn_relu")
RARE_PRODUCTS = _names("mm mv dot vdot inner outer tensordot chain_matmul __rmatmul__")

# What bends. ACTIVATIONS are known to all rules, RARE_ACTIVATIONS to those of LRP.

ACTIVATIONS = _names(
    "relu relu6 gelu silu mish elu celu selu leaky_relu prelu hardtanh hardswish hardsigmoid softplus softsign tanh",
    "sigmoid logsigmoid erf pow square",
)
RARE_ACTIVATIONS = _names("rrelu tanhshrink hardshrink softshrink special_erf special_expit")
NORMS = _names("layer_norm rms_norm")
MEASURES = _names("rsqrt sqrt reciprocal norm linalg_vector_norm std var std_mean var_mean")  # norms written out
ATTENTION = _names("scaled_dot_product_attention multi_head_attention_forward mark_attention")

# Functions whose gradient is already a rule: linear ones, and those that only move, choose or copy entries. The names
# are those of ``plain_name``.

LINEAR = (
    LAYOUTS | PIECES | REPEATS | CASTS | COPIES | DROPOUTS | REDUCTIONS | CLAMPS | LARGEST | REVERSED_SUBS
) | _names(
    "linear addmm addbmm conv1d conv2d conv3d conv_transpose1d embedding batch_norm",
    "add sub neg negative lerp diff",
    "ravel __get__ cat concat concatenate stack hstack vstack roll flip pad unfold fold pixel_shuffle pixel_unshuffle",
    "interpolate broadcast_to broadcast_tensors as_strided",
    "diagonal diag_embed __getitem__ __setitem__ select narrow index_select gather take_along_dim scatter scatter_add",
    "index_add index_copy index_put masked_fill masked_select masked_scatter where tril triu",
    "cpu cuda requires_grad nan_to_num copy",
)

MIXES = _names("addbmm conv_transpose1d lerp diff interpolate fold")  # of these, those that weigh what they add up
COMPLEX_VIEWS = _names("view_as_complex view_as_real")  # pairs of numbers as one: rotary positions

# As the leak audit needs them: what works on each position by itself, and choices as a router makes them

POSITIONWISE = NORMS | _names("linear addmm gelu silu relu")
SORTS = _names("sort argsort")
CHOICES = SORTS | _names("topk argmax max")
POOLS = _names("mean sum max amax select __getitem__ index_select")  # how a head gets at positions

# What writes into a tensor, or takes its numbers out of torch

WRITES = _names("__setitem__ copy_ index_copy_ index_put_ scatter_ masked_fill_ fill_ zero_")
IN_PLACE = _names("__setitem__ __iadd__ __isub__ __imul__ __itruediv__ __idiv__ __imatmul__")
DECIDES = _names(  # or makes a shape that depends on them: what follows may be another program
    "item tolist __bool__ __int__ __float__ __index__ numpy nonzero argwhere unique unique_consecutive masked_select",
    "bincount histc",
)

_SPELLINGS = {
    "multiply": "mul",
    "divide": "div",
    "true_divide": "div",
    "subtract": "sub",
    "swish": "silu",
    "special_softmax": "softmax",
    "__pow__": "pow",
    "float_power": "pow",
}
ATTRIBUTES: dict[Any, str] = {getattr(Tensor, name).__get__: name for name in ("T", "mT")}
SDPA: dict[str, Any] = {  # arguments of scaled_dot_product_attention, and their defaults
    "query": None,
    "key": None,
    "value": None,
    "attn_mask": None,
    "dropout_p": 0.0,
    "is_causal": False,
    "scale": None,
    "enable_gqa": False,
}


def name_of(func: Function) -> str | None:
    """Return a function's name; None for attributes (x.shape), but x.T and x.mT, which make tensors that matter."""
    name: str = func.__name__
    return name if name != "__get__" else ATTRIBUTES.get(func)


def plain_name(name: str) -> tuple[str, bool]:
    """Return one name per function, and whether it writes into its first operand: ``mul_`` → ("mul", True)."""
    in_place = name.endswith("_") and not name.endswith("__")
    name = name[:-1] if in_place else name
    return _SPELLINGS.get(name, name), in_place


def out_of_place(name: str) -> Function:
    """Return the function whose result ``name_`` would write: ``relu`` of ``relu_``."""
    function: Function = getattr(Tensor, name, None) or getattr(F, name)
    return function


def tensors_in(args: Iterable[Any]) -> list[Tensor]:
    """Return the tensors among the arguments of a torch function, also those in a list (cat)."""
    flat: list[Tensor] = []
    for arg in args:
        if isinstance(arg, Tensor):
            flat.append(arg)
        elif isinstance(arg, (list, tuple)):
            flat.extend(a for a in arg if isinstance(a, Tensor))
    return flat


def sdpa_operands(args: Args, kwargs: Kwargs | None) -> dict[str, Any]:
    """The arguments of a call of scaled_dot_product_attention, by name."""
    return SDPA | dict(zip(SDPA, args, strict=False)) | (kwargs or {})


@functools.cache
def open_body(function: Any) -> Function:
    """Return the Python body of a torch function without its first line, which would hand the call to the mode."""
    namespace = {**function.__globals__, "has_torch_function": lambda tensors: False}
    body = types.FunctionType(function.__code__, namespace, function.__name__, function.__defaults__)
    body.__kwdefaults__ = function.__kwdefaults__
    return body


def attention_weights(
    query: Tensor, key: Tensor, attn_mask: Tensor | None = None, is_causal: bool = False, scale: float | None = None
) -> Tensor:
    """softmax(q·kᵀ·scale + mask) over the keys, in at least float32, returned in the query's dtype."""
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    # q·kᵀ·scale in at least float32, in memory that may be written to.
    if query.dtype in (torch.float16, torch.bfloat16):
        scores = torch.matmul(query, key.transpose(-2, -1)).float().mul_(scale)
    elif torch.is_grad_enabled() or query.device.type != "cpu" or query.ndim != 4 or query.shape[:2] != key.shape[:2]:
        scores = torch.matmul(query, key.transpose(-2, -1)).mul_(scale)
    else:
        # Heads are a transposed view in most models. One input at a time they are multiplied where they lie; all at
        # once, torch would copy queries and keys first, and the scale would take a pass over N × N numbers of its own.
        scores = query.new_empty(*query.shape[:-1], key.shape[-2])
        for out, q, k in zip(scores, query, key, strict=True):
            torch.baddbmm(out, q, k.transpose(-2, -1), beta=0, alpha=scale, out=out)
    if is_causal:
        future = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        scores.masked_fill_(future, -math.inf)
    if attn_mask is None:
        return scores.softmax(-1).to(query.dtype)
    if attn_mask.dtype == torch.bool:
        hidden = ~attn_mask.any(-1, keepdim=True)
        scores.masked_fill_(~attn_mask, -math.inf)
    else:
        hidden = (attn_mask == -math.inf).all(-1, keepdim=True)
        scores = scores + attn_mask.to(scores.dtype)
    if scores.device.type == "cpu" and not hidden.any():  # a GPU would have to stop and answer
        return scores.softmax(-1).to(query.dtype)
    # A query that may look nowhere attends to nothing, as in torch's own kernels, instead of giving NaN.
    weights = scores.masked_fill(hidden, 0).softmax(-1).masked_fill(hidden, 0)
    return weights.to(query.dtype)


def padding_share(attention_BHQK: Tensor, keep_BN: Tensor, first_query: int) -> Tensor:
    """Return (B,) the share of the attention of real positions that goes to padding, over queries and heads."""
    keep = keep_BN.float()
    rows_BQ = keep[:, first_query : first_query + attention_BHQK.shape[2]]
    lost_B = torch.einsum("bhqk,bq,bk->b", attention_BHQK.float(), rows_BQ, 1 - keep)
    return lost_B / (rows_BQ.sum(1).clamp(min=1) * attention_BHQK.shape[1])


def repeat_heads(query: Tensor, shared: Tensor) -> Tensor:
    """Repeat key or value heads that several query heads share (grouped-query attention)."""
    groups = query.shape[-3] // shared.shape[-3]
    return shared if groups == 1 else shared.repeat_interleave(groups, dim=-3)


# Torch's own attention kernel: its map, and the gradient of that, from what the kernel was given and got back.
#
# The kernel stays in the graph, so that a pass with gradients costs what the model's own costs. Its map A is the
# softmax of its queries and keys, and ∂s/∂A = ∂s/∂out · Vᵀ. Layers of one shape are computed in one go: to ask a GPU
# for a small one takes as long as to compute it. Keys and values are stacked transposed, as they are read then: a CPU's
# library of small products may take ten times as long where it has to turn each of them around.

# Numbers of maps that are computed at a time. Larger ones would be in memory twice, and are worth a call of their own.
TOGETHER = {"cpu": 2**20}
TOGETHER_ON_DEVICE = 2**25
FORM = attrgetter("form")
Map = TypeVar("Map")


class FusedCall:
    """Arguments of scaled_dot_product_attention; ``shape`` of the map, ``lse``: (B, H, Q) log-sum-exp of the scores."""

    __slots__ = ("causal", "form", "key", "lse", "mask", "query", "scale", "shape", "value", "version")

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None = None,
        causal: bool = False,
        scale: float | None = None,
        lse: Tensor | None = None,
    ) -> None:
        self.query, self.key, self.value, self.mask, self.causal, self.scale = query, key, value, mask, causal, scale
        self.shape, self.lse = (*query.shape[:-1], key.shape[-2]), lse
        # How often its tensors were written to: another number later on means that they hold something else.
        self.version = self.written()
        # Calls of the same form can be computed together.
        self.form = (self.shape, query.device, query.shape, value.shape, query.dtype, id(mask), causal, scale)

    def written(self) -> int:
        """How often the tensors were written to so far."""
        count = self.query._version + self.key._version + self.value._version
        return count if self.mask is None else count + self.mask._version

    def keys_of(self, rows: slice) -> slice:
        """The keys that these queries may attend to, as far as is known without the mask."""
        return slice(0, min(rows.stop, self.key.shape[2]) if self.causal else self.key.shape[2])

    def attention(self, rows: slice) -> Tensor:
        """(B, H, q, K) in float32, over ``keys_of(rows)``."""
        keys, mask = self.keys_of(rows), self.mask
        query = self.query[:, :, rows]
        if self.causal:
            places = torch.arange(keys.stop, device=query.device)
            mask = places <= torch.arange(rows.start, rows.stop, device=query.device)[:, None]
        elif mask is not None:
            mask = mask if mask.shape[-2] == 1 else mask[..., rows, :]
        key = repeat_heads(query, self.key[:, :, keys])
        return attention_weights(query, key, mask, False, self.scale).float()

    def gradient(self, rows: slice, out_gradient_BHQD: Tensor) -> Tensor:
        """(B, H, q, K) ∂s/∂A = ∂s/∂O · Vᵀ in float32, over ``keys_of(rows)``."""
        part = out_gradient_BHQD[:, :, rows]
        value = repeat_heads(part, self.value[:, :, self.keys_of(rows)])
        return torch.matmul(part, value.transpose(-2, -1)).float()


def groups(maps: Sequence[Map], form: Callable[[Map], tuple[Any, ...]]) -> list[list[Map]]:
    """Return groups of maps computed together: consecutive, small, of one ``form`` (first of it: shape, device)."""
    result = []
    for (shape, device, *_), alike in groupby(maps, form):
        members, step = list(alike), TOGETHER.get(device.type, TOGETHER_ON_DEVICE) // max(1, math.prod(shape))
        result += [members[i : i + max(1, step)] for i in range(0, len(members), max(1, step))]
    return result


@torch.no_grad()
def all_weights(calls: Sequence[FusedCall]) -> list[Tensor]:
    """Return the attention map of each call."""
    maps: list[Tensor] = []
    for group in groups(calls, FORM):
        first, alone = group[0], len(group) == 1
        query = first.query if alone else torch.stack([call.query for call in group])
        key = first.key if alone else torch.stack([call.key.mT for call in group]).mT
        key = key if key.shape[:-2] == query.shape[:-2] else repeat_heads(query, key)
        weights = attention_weights(query, key, first.mask, first.causal, first.scale)
        maps += [weights] if alone else weights.unbind()
    return maps


@torch.no_grad()
def all_gradients(calls: Sequence[FusedCall], results: Sequence[Tensor | None]) -> list[Tensor]:
    """Return the gradient of each map from the gradients of the results; zeros where there is none."""
    gradients: list[Tensor] = []
    for group in groups(calls, FORM):
        known = [r for r in results[len(gradients) : len(gradients) + len(group)] if r is not None]
        if len(known) == len(group) > 1:
            value = torch.stack([call.value.mT for call in group]).mT
            value = value if value.shape[1:-2] == group[0].shape[:-2] else repeat_heads(group[0].query, value)
            gradients += torch.matmul(torch.stack(known), value.transpose(-2, -1)).unbind()
            continue
        for call in group:
            result = results[len(gradients)]
            if result is None:
                gradients.append(call.query.new_zeros(call.shape))
                continue
            gradient = torch.matmul(result, repeat_heads(call.query, call.value).transpose(-2, -1))
            # Queries that several values share collect what all of them say.
            gradients.append(gradient if gradient.shape == call.shape else gradient.sum_to_size(call.shape))
    return gradients


@dataclass(frozen=True)
class HeadFusion:
    """How the maps of a layer's heads (and their gradients) become one map."""

    fused: Callable[[Tensor, Any], Tensor]  # (B, H, q, K) map and gradient → (B, q, K)
    gradient: bool
    # By number of heads, those w of Σ_h w_h·A_h, or of Σ_h w_h·max(0, A_h ∘ dA_h), which a kernel can add up.
    weights: Callable[[int], list[float] | None] = lambda count: None

    def of(self, site: Site) -> Tensor:
        """Return the (B, Q, K) map of a recorded site."""
        gradient = site.attention_grad_BHQK if self.gradient else None
        return self.fused(site.attention_BHQK.float(), None if gradient is None else gradient.float())
