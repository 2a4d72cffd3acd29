"""Finish a block on a changed attention result: one token's value taken out, the rest of the block run again.

Attention is linear in the values, so what token t wrote at position i is subtracted from the projected result. The
first matrix of the MLP is not applied again either: W·norm(z_i - c_it) = s_it · (W·M·z_i - W·M·c_it) + const, where
W·M·c_it is a sum over heads of H vectors per token that are computed once, and the norm gives the number s_it.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from whyformer.capture.blocks.block import Block, Divisor, Linear, Stream
from whyformer.capture.blocks.tape import Env, Ref, TapedCall
from whyformer.results.types import Site

# Several tokens at a time make the matrices tall enough for the machine; more would only take memory.
TOKENS, ROWS, ROWS_ON_DEVICE = 16, 512, 8192
GROUP = 16  # steps whose tokens go through the folded matrices at once
Instead = dict[int, Callable[[Env], Tensor]]


@dataclass(frozen=True, eq=False)
class StreamProjection:
    """A projection that reads the normed stream: W·(s · M z) + const."""

    number: int  # of its result
    call: TapedCall
    stream: Stream
    matrix: Tensor  # (in, out)
    constant: Tensor | None  # W·shift + bias
    divisor: Divisor


class Finish:
    """One block, ready to be finished with the value of any token zeroed."""

    def __init__(self, site: Site, block: Block, fold: bool = True) -> None:
        assert site.value_BHKD is not None
        self.block, self.rest, self.places = block, block.rest, block.places
        self.weights_BHQK, self.value_BHKD = site.attention_BHQK, site.value_BHKD
        self.written_BHKE = torch.matmul(site.value_BHKD, block.output_HDE.to(site.value_BHKD.dtype))
        batch, heads, queries, keys = site.attention_BHQK.shape
        # H vectors per token are a saving only where there are more positions to write to.
        self.folds = _folds(block) if fold and 2 * heads <= queries else []
        on_cpu = site.value_BHKD.device.type == "cpu"
        most = min(TOKENS, ROWS // (batch * queries)) if on_cpu else ROWS_ON_DEVICE // (batch * queries)
        self.step = max(1, min(keys, most))
        self._alone = False  # one token at a time
        self._scales: dict[int, Tensor] = {}
        self._bases: dict[int, Tensor] = {}  # by fold: (B, Q, out) W·M·z
        self._heads: dict[int, Tensor] = {}  # by fold: (H, D, out) -W·M·W_O, where that is the shorter way
        if self.folds:
            instead = self._watching() | {f.number: self._based(f) for f in self.folds}
            self.rest.run(self._written(block.projected_BQE), instead)

    def without_each(self, tokens: list[int]) -> Iterator[tuple[list[int], Tensor, Tensor]]:
        """Yield tokens, (tokens, B, Q, E) block outputs with the value of each zeroed, and the original output."""
        if not tokens:
            return
        # At the same place of a batch, so that both are equal to the last bit if zeroing has no effect.
        nothing = torch.zeros_like(self.weights_BHQK[..., :1]).expand(*self.weights_BHQK.shape[:-1], self.step)
        original = self._finished(nothing, self._parts([tokens[0]] * self.step))
        for first in range(0, len(tokens), GROUP * self.step):
            group = tokens[first : first + GROUP * self.step]
            missing = -len(group) % self.step  # the last few are filled up with a token that is thrown away again
            parts = self._parts(group + group[-1:] * missing)
            for start in range(0, len(group), self.step):
                some = group[start : start + self.step]
                weights = self.weights_BHQK[..., some + some[-1:] * (self.step - len(some))]
                some_parts = {n: v[start : start + self.step] for n, v in parts.items()}
                yield some, self._finished(weights, some_parts)[: len(some)], original[: len(some)]

    def _parts(self, tokens: list[int]) -> dict[int, Tensor]:
        """What these tokens write, negated, (tokens, B, H, …) before the norm (0) and after each folded projection."""
        written = {0: -self.written_BHKE[:, :, tokens]} | {f.number: self._through(f, tokens) for f in self.folds}
        return {n: v.permute(2, 0, 1, 3) for n, v in written.items()}

    def _finished(self, weights_BHQT: Tensor, parts: dict[int, Tensor]) -> Tensor:
        weights_TBQH = weights_BHQT.permute(3, 0, 2, 1)
        if len(weights_TBQH) > 1 and not self._alone:
            try:
                finished: Tensor = torch.vmap(self._one)(weights_TBQH, parts)
                return finished
            except RuntimeError:  # an operation that vmap cannot do, as adding in place to a weight
                self._alone = True
        each = [self._one(w, {n: v[i] for n, v in parts.items()}) for i, w in enumerate(weights_TBQH)]
        return torch.stack(each)

    def _one(self, weights_BQH: Tensor, parts: dict[int, Tensor]) -> Tensor:
        """The block's output without one token; under vmap, without several."""
        changed = _Sum.apply(self.block.projected_BQE, weights_BQH, parts[0], None, None)
        instead = self._watching() | {f.number: self._folded(f, weights_BQH, parts[f.number]) for f in self.folds}
        out = self.rest.run(self._written(changed), instead)
        return self.places.read(out, self.block.streams[self.rest.end].rows)

    def _written(self, projected_BQE: Tensor) -> Tensor:
        return self.places.write(projected_BQE, self.block.streams[self.rest.start].rows)

    # The folded projections

    def _through(self, fold: StreamProjection, tokens: list[int]) -> Tensor:
        """(B, H, tokens, out) -W·M·f_h(x_t)."""
        _, heads, keys, width = self.written_BHKE.shape
        way = Linear(fold.stream.steps, None)
        if keys * heads <= keys + width:
            return way.apply(self.block.before.apply(self.written_BHKE[:, :, tokens])) @ -fold.matrix
        if fold.number not in self._heads:  # one product of matrices, then only D numbers per head and token
            output_HDE = way.apply(self.block.before.apply(self.block.output_HDE))
            self._heads[fold.number] = -output_HDE.to(fold.matrix.dtype) @ fold.matrix
        return self.value_BHKD[:, :, tokens] @ self._heads[fold.number]

    def _watching(self) -> Instead:
        """Norms that a folded projection reads tell what they multiply by."""
        divisors = {fold.divisor.number: fold.divisor for fold in self.folds}
        return {n: self._divided(divisors[n], c) for c in self.rest.calls for n in c.outs if n in divisors}

    def _divided(self, divisor: Divisor, call: TapedCall) -> Callable[[Env], Tensor]:
        def run(env: Env) -> Tensor:
            if divisor.operation == "layer_norm":
                stream, eps = env[call.inputs[0]], call.argument(4, "eps", 1e-5)
                weight, bias = (
                    self.rest.constants[a.number] if isinstance(a, Ref) else None
                    for a in (call.argument(2, "weight"), call.argument(3, "bias"))
                )
                out, _, scale = torch.native_layer_norm(stream, [stream.shape[-1]], weight, bias, eps)
            else:
                out = call.run(ChainMap(env, self.rest.constants))[0]
                scale = out
                if divisor.operation == "div":
                    scale = 1 / out
                elif divisor.operation == "rms_norm":
                    stream, eps = env[call.inputs[0]], call.argument(3, "eps")
                    eps = torch.finfo(stream.dtype).eps if eps is None else eps
                    scale = (stream.square().mean(-1, keepdim=True) + eps).rsqrt()
            self._scales[divisor.number] = scale
            return out

        return run

    def _based(self, fold: StreamProjection) -> Callable[[Env], Tensor]:
        def run(env: Env) -> Tensor:
            out: Tensor = fold.call.run(ChainMap(env, self.rest.constants))[0]
            base = out if fold.constant is None else out - fold.constant
            scale = self.places.read(self._scales[fold.divisor.number], fold.stream.rows)
            self._bases[fold.number] = (self.places.read(base, fold.stream.rows) / scale).to(out.dtype)
            return out

        return run

    def _folded(self, fold: StreamProjection, weights_BQH: Tensor, parts_BHO: Tensor) -> Callable[[Env], Tensor]:
        """(W·M·z - what is gone) · s + const"""

        def run(env: Env) -> Tensor:
            scale = self.places.read(self._scales[fold.divisor.number], fold.stream.rows).to(parts_BHO.dtype)
            out: Tensor = _Sum.apply(self._bases[fold.number], weights_BQH, parts_BHO, scale, fold.constant)
            return self.places.write(out, fold.stream.rows)

        return run


class _Sum(torch.autograd.Function):
    """(base + weights @ parts) · scale + constant, in two passes over the memory, where vmap would take four."""

    @staticmethod
    def forward(
        base_BQO: Tensor, weights_BQH: Tensor, parts_BHO: Tensor, scale_BQ1: Tensor | None, constant_O: Tensor | None
    ) -> Tensor:
        scale_TBQ1 = None if scale_BQ1 is None else scale_BQ1[None]
        return _sums(base_BQO, weights_BQH[None], parts_BHO[None], scale_TBQ1, constant_O)[0]

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        """Nothing to keep: this is never differentiated."""

    @staticmethod
    def vmap(info: Any, in_dims: Any, base: Tensor, *others: Any) -> tuple[Tensor, int]:
        weights, parts, scale, constant = others
        scale = None if scale is None else scale.movedim(in_dims[3], 0)
        return _sums(base, weights.movedim(in_dims[1], 0), parts.movedim(in_dims[2], 0), scale, constant), 0


def _sums(
    base_BQO: Tensor, weights_TBQH: Tensor, parts_TBHO: Tensor, scale_TBQ1: Tensor | None, constant_O: Tensor | None
) -> Tensor:
    # Under autocast attention is in single precision, and what it writes to is not.
    weights_TBQH, parts_TBHO = weights_TBQH.to(base_BQO.dtype), parts_TBHO.to(base_BQO.dtype)
    if scale_TBQ1 is not None:
        weights_TBQH = weights_TBQH * scale_TBQ1
    if base_BQO.device.type != "cpu":  # in few calls: on a GPU each one costs more than the numbers it works on
        start = base_BQO.expand(len(parts_TBHO), *base_BQO.shape) if scale_TBQ1 is None else base_BQO * scale_TBQ1
        if constant_O is not None:
            start = start + constant_O
        summed = torch.baddbmm(start.flatten(0, 1), weights_TBQH.flatten(0, 1), parts_TBHO.flatten(0, 1))
        return summed.view(start.shape)
    out_TBQO = base_BQO.new_empty(len(weights_TBQH), *base_BQO.shape)
    for t, out_BQO in enumerate(out_TBQO):  # one at a time stays in the cache from one operation to the next
        if scale_TBQ1 is None:
            out_BQO.copy_(base_BQO)
        elif constant_O is None:
            torch.mul(base_BQO, scale_TBQ1[t], out=out_BQO)
        else:
            torch.addcmul(constant_O, base_BQO, scale_TBQ1[t], out=out_BQO)
        out_BQO.baddbmm_(weights_TBQH[t], parts_TBHO[t])
    return out_TBQO


def _folds(block: Block) -> list[StreamProjection]:
    """Projections after the sum that read it through exactly one norm, and that norm's bias."""
    if block.before.scale_BQ is not None:
        return []
    folds = []
    constants = block.rest.constants
    for call in block.rest.calls:
        position = {"linear": 0, "addmm": 1}.get(call.name)
        if position is None or {"alpha", "beta"} & set(call.kwargs):
            continue
        operand, weight = call.args[position], call.argument(position + 1, "weight")
        bias = call.argument(2, "bias") if call.name == "linear" else call.args[0]
        stream = block.streams.get(operand.number) if isinstance(operand, Ref) else None
        if stream is None or not isinstance(weight, Ref) or weight.number not in constants:
            continue
        if not stream.joined or stream.shifted or stream.mean or len(stream.divisors) != 1:
            continue
        matrix = constants[weight.number]
        matrix = matrix.t() if call.name == "linear" else matrix
        constant = constants[bias.number] if isinstance(bias, Ref) else None
        shift = stream.divisors[0].shift
        if shift is not None:
            constant = shift @ matrix if constant is None else shift @ matrix + constant
        assert call.outs[0] is not None
        folds.append(StreamProjection(call.outs[0], call, stream, matrix, constant, stream.divisors[0]))
    return folds
