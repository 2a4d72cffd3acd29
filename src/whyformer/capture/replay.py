"""Finish a block on a changed attention result: one token's value taken out, the rest of the block run again.

Attention is linear in the values, so what token t wrote at position i is subtracted from the projected result instead
of running the attention again. The first matrix of the MLP need not be applied again either: between the sum and that
matrix there is a norm, so W·norm(z_i - c_it) = s_it · (W·M·z_i - W·M·c_it) + const, where W·M·c_it is a sum over heads
of H vectors per token that are computed once, and s_it, one number, is a by-product of the norm.
"""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from whyformer.capture.block import Block, Linear
from whyformer.capture.residual import Divisor, Stream
from whyformer.capture.tape import Call, Env, Ref
from whyformer.types import Site

TOKENS = 16  # whose head vectors go through the MLP's first matrix at once


@dataclass(frozen=True, eq=False)
class _Fold:
    """A projection that reads the normed stream: W·(s · M z) + const."""

    call: Call
    stream: Stream
    matrix: Tensor  # (in, out)
    constant: Tensor | None  # W·shift + bias
    divisor: Divisor


class Finish:
    """One block, ready to be finished with the value of a token zeroed."""

    def __init__(self, site: Site, block: Block, fold: bool = True) -> None:
        assert site.value_BHKD is not None
        self.block, self.rest, self.places = block, block.rest, block.places
        self.start, self.end = block.streams[self.rest.start].rows, block.streams[self.rest.end].rows
        self.weights_BHQK = site.attention_BHQK
        self.value_BHKD = site.value_BHKD
        self.values_BHKE = torch.matmul(site.value_BHKD, block.output_HDE.to(site.value_BHKD.dtype))
        few = 2 * site.heads <= site.attention_BHQK.shape[2]  # otherwise H vectors per token are no saving
        self.folds = _folds(block) if fold and few else []
        self._scales: dict[int, Tensor] = {}
        self._bases: dict[int, Tensor] = {}  # out number -> (B, Q, width) W·M·z
        self._heads: dict[
            int, Tensor
        ] = {}  # out number -> (H, D, width) W·M·W_O by head, where that is the shorter way
        self._written: dict[int, Tensor] = {}  # out number -> (B, H, tokens, width) W·M·f_h(x_t)
        self._first = 0  # the first token of those

    def unchanged(self) -> Tensor:
        """(B, Q, E) the block's output as it was, by the same arithmetic: what changes nothing differs by exactly 0."""
        if self.folds:
            watch = self._watching() | {f.call.outs[0] or 0: self._based(f) for f in self.folds}
            self.rest.run(self.places.write(self.block.projected_BQE, self.start), watch)
        return self._finished(0, torch.zeros_like(self.weights_BHQK[:, :, :, 0]))

    def without(self, token: int) -> Tensor:
        """(B, Q, E) the block's output with the value of ``token`` zeroed in all heads; after ``unchanged``."""
        return self._finished(token, self.weights_BHQK[:, :, :, token])

    def _finished(self, token: int, weights_BHQ: Tensor) -> Tensor:
        weights_BQH = weights_BHQ.transpose(1, 2)
        changed = torch.baddbmm(self.block.projected_BQE, weights_BQH, self.values_BHKE[:, :, token], alpha=-1)
        instead = {}
        if self.folds:
            self._prepare(token)
            written = {f: self._written[f.call.outs[0] or 0][:, :, token - self._first] for f in self.folds}
            folded = {f.call.outs[0] or 0: self._folded(f, weights_BQH, w) for f, w in written.items()}
            instead = self._watching() | folded
        out = self.rest.run(self.places.write(changed, self.start), instead)
        return self.places.read(out, self.end)

    # The folded projections

    def _prepare(self, token: int) -> None:
        """What the next few tokens' values are after W_O, the norm's steps, and the folded matrix."""
        if self._written and self._first <= token < self._first + TOKENS:
            return
        self._first = token
        some = slice(token, token + TOKENS)
        _, heads, keys, width = self.values_BHKE.shape
        for fold in self.folds:
            number = fold.call.outs[0] or 0
            if keys * heads <= keys + width:
                vectors = Linear(fold.stream.steps, None).apply(self.block.before.apply(self.values_BHKE[:, :, some]))
                self._written[number] = vectors @ fold.matrix
                continue
            if number not in self._heads:  # one product of matrices, then only D numbers per head and token
                way = Linear(fold.stream.steps, None).apply(self.block.before.apply(self.block.output_HDE))
                self._heads[number] = way.to(fold.matrix.dtype) @ fold.matrix
            self._written[number] = self.value_BHKD[:, :, some] @ self._heads[number]

    def _watching(self) -> dict[int, Callable[[Env], Tensor]]:
        """Norms that a folded projection reads tell their divisor."""
        makers = {n: c for c in self.rest.calls for n in c.outs}
        numbers = {fold.divisor.number: fold.divisor for fold in self.folds}
        return {n: self._divided(d, makers[n]) for n, d in numbers.items()}

    def _divided(self, divisor: Divisor, call: Call) -> Callable[[Env], Tensor]:
        def run(env: Env) -> Tensor:
            if divisor.how == "layer_norm":
                stream = env[call.inputs[0]]
                weight, bias = (
                    self.rest.constants[a.number] if isinstance(a, Ref) else None
                    for a in (call.argument(2, "weight"), call.argument(3, "bias"))
                )
                eps = call.argument(4, "eps", 1e-5)
                out, _, scale = torch.native_layer_norm(stream, [stream.shape[-1]], weight, bias, eps)
            else:
                out = call.run(ChainMap(env, self.rest.constants))[0]
                scale = out
                if divisor.how == "div":
                    scale = 1 / out
                elif divisor.how == "rms_norm":
                    stream, eps = env[call.inputs[0]], call.argument(3, "eps")
                    eps = torch.finfo(stream.dtype).eps if eps is None else eps
                    scale = (stream.square().mean(-1, keepdim=True) + eps).rsqrt()
            self._scales[divisor.number] = scale
            return out

        return run

    def _based(self, fold: _Fold) -> Callable[[Env], Tensor]:
        def run(env: Env) -> Tensor:
            out: Tensor = fold.call.run(ChainMap(env, self.rest.constants))[0]
            base = out if fold.constant is None else out - fold.constant
            scale = self.places.read(self._scales[fold.divisor.number], fold.stream.rows)
            self._bases[fold.call.outs[0] or 0] = (self.places.read(base, fold.stream.rows) / scale).to(out.dtype)
            return out

        return run

    def _folded(self, fold: _Fold, weights_BQH: Tensor, written_BHO: Tensor) -> Callable[[Env], Tensor]:
        def run(env: Env) -> Tensor:
            out = torch.baddbmm(self._bases[fold.call.outs[0] or 0], weights_BQH, written_BHO, alpha=-1)
            scale = self.places.read(self._scales[fold.divisor.number], fold.stream.rows).to(out.dtype)
            out = out.mul_(scale) if fold.constant is None else torch.addcmul(fold.constant, out, scale)
            return self.places.write(out, fold.stream.rows)

        return run


def _folds(block: Block) -> list[_Fold]:
    """Projections after the sum that read it through exactly one norm, and that norm's bias."""
    if block.before.scale_BQ is not None:
        return []
    found = []
    for call in block.rest.calls:
        position = {"linear": 0, "addmm": 1}.get(call.name)
        if position is None or {"alpha", "beta"} & set(call.kwargs):
            continue
        operand, weight = call.args[position], call.argument(position + 1, "weight")
        bias = call.argument(2, "bias") if call.name == "linear" else call.args[0]
        stream = block.streams.get(operand.number) if isinstance(operand, Ref) else None
        constants = block.rest.constants
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
        found.append(_Fold(call, stream, matrix, constant, stream.divisors[0]))
    return found
