"""DecompX written out for four families, from their weights, share by share, in float64.

V[i, s] is the part of position i's hidden state that came from input s; V[i].sum(0) is that hidden state unless biases
are left out. Only the attention weights and the embedding are taken from the model.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import erf, sqrt, tanh
from typing import Any

import numpy as np
import torch

from tests.models import CASES
from tests.references.eager_attention import one_input
from tests.references.twin import FAMILY, TARGET, Twin, each
from tests.support.released import VIT_ATTENTION, VIT_LAYERS, VIT_MLP

Array = np.ndarray


@dataclass
class Norm:
    weight: Array
    bias: Array | None
    eps: float
    centered: bool = True


@dataclass
class Layer:
    """One block; matrices are (out, in)."""

    value: tuple[Array, Array | None]
    output: tuple[Array, Array | None]
    up: tuple[Array, Array | None]
    down: tuple[Array, Array | None]
    norm1: Norm
    norm2: Norm
    activation: Callable[[float], float]
    gate: Array | None = None
    pre_norm: bool = True
    heads: int = 4


@dataclass
class Network:
    layers: list[Layer]
    attention: list[Array]  # (H, N, N) per layer
    embedding: Array  # (N, D)
    head: list[tuple[Array, Array | None]]  # matrices after the row that is read, tanh between them
    final: Norm | None
    row: int
    logits: Array


@dataclass
class State:
    """Hidden states X (N, D) as the model has them, and their shares V (N, S, D)."""

    X: Array
    V: Array

    def through(self, matrix: tuple[Array, Array | None], bias: str | None) -> State:
        weight, b = matrix
        return State(self.X @ weight.T + (0 if b is None else b), with_bias(self.V @ weight.T, b, bias))

    def bent(self, function: Callable[[float], float]) -> State:
        """Shares times f(z)/z."""
        Y = np.vectorize(function)(self.X)
        return State(Y, self.V * (Y / self.X)[:, None])

    def plus(self, other: State) -> State:
        return State(self.X + other.X, self.V + other.V)


def decompx(network: Network, bias: str | None = "absdot") -> tuple[Array, list[Array]]:
    """(N, C) shares of the logits, and per layer (N, N) the sizes of the shares of the hidden states."""
    tokens, width = network.embedding.shape
    state = State(network.embedding, np.zeros((tokens, tokens, width)))
    for i in range(tokens):
        state.V[i, i] = network.embedding[i]
    sizes = []
    for number, (layer, weights) in enumerate(zip(network.layers, network.attention, strict=True)):
        state = through_layer(state, layer, weights, bias, first=number == 0)
        sizes.append(np.linalg.norm(state.V, axis=-1))
    if network.final is not None:
        state = normed(state, network.final, bias)
        sizes[-1] = np.linalg.norm(state.V, axis=-1)
    only = slice(network.row, network.row + 1)
    row = State(state.X[only], state.V[only])
    for step, matrix in enumerate(network.head):
        row = (row.bent(tanh) if step else row).through(matrix, bias)
    np.testing.assert_allclose(row.X[0], network.logits, atol=1e-6)
    return row.V[0], sizes


def through_layer(x: State, layer: Layer, weights: Array, bias: str | None, first: bool) -> State:
    source = normed(x, layer.norm1, "own" if first else bias) if layer.pre_norm else x
    x = attended(source, x, layer, weights, bias, first)
    if not layer.pre_norm:
        x = normed(x, layer.norm1, bias)
    source = normed(x, layer.norm2, bias) if layer.pre_norm else x
    x = x.plus(middle(source, layer, bias).through(layer.down, bias))
    return x if layer.pre_norm else normed(x, layer.norm2, bias)


def attended(source: State, x: State, layer: Layer, weights: Array, bias: str | None, first: bool) -> State:
    """x + Σ_h Σ_k α_ik^h W_O^h W_V^h V[k, s], with the bias that comes along (W_O b_V + b_O) shared over the sum."""
    tokens = len(x.V)
    matrix, value_bias = layer.value
    plain = State(source.X @ matrix.T, source.V @ matrix.T)
    carried = layer.output[1]
    if value_bias is not None:
        plain.X = plain.X + value_bias
    if value_bias is not None and first:
        for k in range(tokens):  # nothing is mixed yet: the bias belongs to its own position
            plain.V[k, k] += value_bias
    elif value_bias is not None:
        carried = layer.output[0] @ value_bias + (0 if carried is None else carried)
    width = layer.output[0].shape[1] // layer.heads
    shared_by = layer.heads * width // plain.V.shape[-1]  # query heads per value head
    result = State(x.X + (0 if layer.output[1] is None else layer.output[1]), x.V.copy())
    for h in range(layer.heads):
        own = slice((h // shared_by) * width, (h // shared_by + 1) * width)
        out = layer.output[0][:, h * width : (h + 1) * width]
        for i in range(tokens):
            for k in range(tokens):
                result.V[i] += weights[h, i, k] * plain.V[k, :, own] @ out.T
                result.X[i] += weights[h, i, k] * plain.X[k, own] @ out.T
    return State(result.X, with_bias(result.V, carried, bias))


def middle(source: State, layer: Layer, bias: str | None) -> State:
    up = source.through(layer.up, bias)
    if layer.gate is None:
        return up.bent(layer.activation)
    gate = np.vectorize(layer.activation)(source.X @ layer.gate.T)  # its value, times the shares of the other half
    return State(up.X * gate, up.V * gate[:, None])


def normed(x: State, norm: Norm, bias: str | None) -> State:
    result = State(np.zeros_like(x.X), np.zeros_like(x.V))
    for i, (value, shares) in enumerate(zip(x.X, x.V, strict=True)):
        deviation = sqrt((value.var() if norm.centered else (value**2).mean()) + norm.eps)
        for s, v in enumerate([*shares, value]):
            y = norm.weight * (v - v.mean() if norm.centered else v) / deviation
            if s < len(shares):
                result.V[i, s] = y
            else:
                result.X[i] = y + (0 if norm.bias is None else norm.bias)
        if bias == "own":
            result.V[i, i] += 0 if norm.bias is None else norm.bias
    return result if bias == "own" else State(result.X, with_bias(result.V, norm.bias, bias))


def with_bias(V: Array, b: Array | None, rule: str | None) -> Array:
    """Distribute a bias over the inputs of each position."""
    if b is None or rule is None:
        return V
    result = V.copy()
    for i in range(len(V)):
        claims = []
        for v in V[i]:
            size = np.linalg.norm(v)
            if rule == "absdot":
                claims.append(abs(v @ b))
            elif rule == "norm":
                claims.append(size)
            elif rule == "equal":
                claims.append(float(size != 0))
            elif rule == "abssim":
                claims.append(abs(v @ b) / (size * np.linalg.norm(b)) if size else 0.0)
        for s, claim in enumerate(claims):
            result[i, s] += claim / sum(claims) * b
    return result


def gelu(z: float) -> float:
    return z * (1 + erf(z / sqrt(2))) / 2


def gelu_new(z: float) -> float:
    return z * (1 + tanh(sqrt(2 / np.pi) * (z + 0.044715 * z**3))) / 2


def silu(z: float) -> float:
    return z / (1 + np.exp(-z))


def network(name: str, index: int) -> Network:
    """One input of a test model, padding cut off."""
    case = CASES[name]
    model = case.build("eager").double()
    with torch.no_grad():
        out = model(**one_input(case.inputs(), index), output_attentions=True, output_hidden_states=True)
    p = {k: v.detach().numpy() for k, v in model.named_parameters()}
    layers, head, final = READERS[name](p)
    row = 0 if name in {"bert", "vit"} else out.hidden_states[0].shape[1] - 1
    return Network(
        layers,
        [a[0].numpy() for a in out.attentions],
        out.hidden_states[0][0].numpy(),
        head,
        final,
        row,
        (out.logits[0] if out.logits.ndim == 2 else out.logits[0, row]).numpy(),
    )


Read = tuple[list[Layer], list[tuple[Array, Array | None]], Norm | None]


def _bert(p: dict[str, Array]) -> Read:
    def pair(name: str) -> tuple[Array, Array]:
        return p[name + ".weight"], p[name + ".bias"]

    layers = []
    for base in (f"bert.encoder.layer.{i}." for i in range(2)):
        value, output = pair(base + "attention.self.value"), pair(base + "attention.output.dense")
        up, down = pair(base + "intermediate.dense"), pair(base + "output.dense")
        norms = (Norm(*pair(base + n), 1e-12) for n in ("attention.output.LayerNorm", "output.LayerNorm"))
        layers.append(Layer(value, output, up, down, *norms, gelu, pre_norm=False))
    return layers, [pair("bert.pooler.dense"), pair("classifier")], None


def _vit(p: dict[str, Array]) -> Read:
    def pair(name: str) -> tuple[Array, Array]:
        return p[name + ".weight"], p[name + ".bias"]

    layers = []
    for base in (f"{VIT_LAYERS}.{i}." for i in range(2)):
        parts = [pair(base + n) for n in (*VIT_ATTENTION[2:], *VIT_MLP)]
        norms = (Norm(*pair(base + n), 1e-12) for n in ("layernorm_before", "layernorm_after"))
        layers.append(Layer(*parts, *norms, gelu))
    return layers, [pair("classifier")], Norm(*pair("vit.layernorm"), 1e-12)


def _gpt2(p: dict[str, Array]) -> Read:
    def pair(name: str) -> tuple[Array, Array]:
        return p[name + ".weight"].T, p[name + ".bias"]

    layers = []
    for base in (f"transformer.h.{i}." for i in range(2)):
        packed, bias = pair(base + "attn.c_attn")
        third = len(packed) // 3
        parts = [pair(base + n) for n in ("attn.c_proj", "mlp.c_fc", "mlp.c_proj")]
        norms = (Norm(*pair(base + n), 1e-5) for n in ("ln_1", "ln_2"))
        layers.append(Layer((packed[2 * third :], bias[2 * third :]), *parts, *norms, gelu_new))
    return layers, [(p["transformer.wte.weight"], None)], Norm(*pair("transformer.ln_f"), 1e-5)


def _llama(p: dict[str, Array]) -> Read:
    layers = []
    for base in (f"model.layers.{i}." for i in range(2)):
        names = ("self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
        parts = [(p[f"{base}{n}.weight"], None) for n in names]
        norms = (
            Norm(p[f"{base}{n}.weight"], None, 1e-6, False) for n in ("input_layernorm", "post_attention_layernorm")
        )
        layers.append(Layer(*parts, *norms, silu, p[base + "mlp.gate_proj.weight"]))
    return layers, [(p["lm_head.weight"], None)], Norm(p["model.norm.weight"], None, 1e-6, False)


READERS: dict[str, Callable[[dict[str, Array]], Read]] = {"bert": _bert, "vit": _vit, "gpt2": _gpt2, "llama": _llama}


def expected(name: str, row: int, bias: str | None) -> dict[str, Any]:
    shares, sizes = decompx(network(name, row), bias)
    return {"scores": shares[:, TARGET], "layers": np.array(sizes), "matrix": sizes[-1]}


RULES = ("absdot", "norm", "equal", "abssim", None)
TWIN = Twin(expected, each(FAMILY, [{"bias": rule} for rule in RULES], layers=True))
