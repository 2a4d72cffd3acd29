"""BERT, ViT, GPT-2 and Llama written out operation by operation, and relevance walked back through them by hand.

Nothing here uses autograd or whyformer. A model is a graph of nodes; each node knows how to share the relevance of its
value among its parents, by the rules it was written with (tests/references/attn_lrp.py, cp_lrp.py,
transformer_attribution.py). One input at a time, without padding, in float64.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.support.released import VIT_ATTENTION, VIT_LAYERS, VIT_MLP


@dataclass(eq=False)
class Node:
    """A value, what it was computed from, and how its relevance is shared among those."""

    value: Tensor
    parents: tuple[Node, ...] = ()
    share: Callable[[Tensor], Sequence[Tensor]] | None = None


def propagated(output: Node, seed: Tensor) -> dict[Node, Tensor]:
    """Relevance of every node, given that of the output; a node that is used several times adds up."""
    order: list[Node] = []
    seen: set[Node] = set()

    def visit(node: Node) -> None:
        if node not in seen:
            seen.add(node)
            for parent in node.parents:
                visit(parent)
            order.append(node)

    visit(output)
    relevance = {node: torch.zeros_like(node.value) for node in order}
    relevance[output] = seed
    for node in reversed(order):
        if node.share is not None:
            for parent, part in zip(node.parents, node.share(relevance[node]), strict=True):
                relevance[parent] = relevance[parent] + part
    return relevance


def moved(x: Node, forward: Callable[[Tensor], Tensor], back: Callable[[Tensor], Tensor]) -> Node:
    """Entries moved, chosen or repeated: their relevance goes back to where they were."""
    return Node(forward(x.value), (x,), lambda r: [back(r)])


def passed(x: Node, value: Tensor) -> Node:
    """A function that hands on the relevance it got."""
    return Node(value, (x,), lambda r: [r])


def rotated(t: Tensor) -> Tensor:
    a, b = t.chunk(2, -1)
    return torch.cat([-b, a], -1)


@dataclass
class Written:
    """A model that has been written out."""

    logits: Node
    inputs: Node  # word embeddings (N, D), or pixels by patch (N, 3·P·P)
    tokens: Node  # what enters the first block
    row: int  # the position that feeds the head
    attention: list[Node] = field(default_factory=list)  # (H, Q, K) per layer


class Writer:
    """The four architectures in terms of ``rules``, which turns an operation into a node."""

    def __init__(self, model: nn.Module, rules: Any) -> None:
        self.model, self.rules = model, rules
        self.maps: list[Node] = []

    def linear(self, x: Node, module: Any) -> Node:
        weight = module.weight.T if type(module).__name__ == "Conv1D" else module.weight
        return self.rules.linear(x, weight.detach(), None if module.bias is None else module.bias.detach())

    def norm(self, x: Node, module: Any) -> Node:
        if hasattr(module, "bias"):
            return self.rules.layer_norm(x, module.weight.detach(), module.bias.detach(), module.eps)
        return self.rules.rms_norm(x, module.weight.detach(), module.variance_epsilon)

    def attend(self, q: Node, k: Node, v: Node, heads: int, causal: bool, rope: bool = False) -> Node:
        """softmax(QKᵀ/√d)V, head by head; fewer key heads than query heads are repeated."""
        width = q.value.shape[1] // heads
        q, k, v = (self._heads(x, width) for x in (q, k, v))
        if rope:
            q, k = self._rope(q, width), self._rope(k, width)
        k, v = (self._repeated(x, heads) for x in (k, v))
        keys = moved(k, lambda t: t.transpose(1, 2), lambda r: r.transpose(1, 2))
        scores = self.rules.matmul(q, keys)
        scores = self.rules.scaled(scores, 1 / math.sqrt(width))
        weights = self.rules.softmax(scores, causal)
        self.maps.append(weights)
        mixed = self.rules.matmul(weights, v)
        n = mixed.value.shape[1]
        return moved(
            mixed, lambda t: t.transpose(0, 1).reshape(n, -1), lambda r: r.reshape(n, heads, -1).transpose(0, 1)
        )

    def _heads(self, x: Node, width: int) -> Node:
        n = len(x.value)
        return moved(x, lambda t: t.reshape(n, -1, width).transpose(0, 1), lambda r: r.transpose(0, 1).reshape(n, -1))

    def _repeated(self, x: Node, heads: int) -> Node:
        groups = heads // len(x.value)
        return moved(x, lambda t: t.repeat_interleave(groups, 0), lambda r: r.unflatten(0, (-1, groups)).sum(1))

    def _rope(self, x: Node, width: int) -> Node:
        config = self.model.config
        theta = config.rope_parameters["rope_theta"] if hasattr(config, "rope_parameters") else config.rope_theta
        # Frequencies as the model has them, in float32.
        frequency = 1 / theta ** (torch.arange(0, width, 2, dtype=torch.int64).float() / width)
        angle = torch.outer(torch.arange(x.value.shape[1]).float(), frequency).repeat(1, 2)
        return self.rules.rope(x, angle.cos().double(), angle.sin().double())

    def bert(self, ids: Tensor) -> Written:
        model: Any = self.model
        table = model.bert.embeddings
        words = Node(table.word_embeddings.weight.detach()[ids])
        kind = Node(table.token_type_embeddings.weight.detach()[torch.zeros_like(ids)])
        place = Node(table.position_embeddings.weight.detach()[: len(ids)])
        x = tokens = self.norm(self.rules.add(self.rules.add(words, kind), place), table.LayerNorm)
        for layer in model.bert.encoder.layer:
            own, out = layer.attention.self, layer.attention.output
            q, k, v = (self.linear(x, m) for m in (own.query, own.key, own.value))
            mixed = self.linear(self.attend(q, k, v, model.config.num_attention_heads, False), out.dense)
            x = self.norm(self.rules.add(mixed, x), out.LayerNorm)
            hidden = self.rules.activation(self.linear(x, layer.intermediate.dense), F.gelu)
            x = self.norm(self.rules.add(self.linear(hidden, layer.output.dense), x), layer.output.LayerNorm)
        pooled = self.rules.activation(self.linear(self._row(x, 0), model.bert.pooler.dense), torch.tanh)
        return Written(self.linear(pooled, model.classifier), words, tokens, 0, self.maps)

    def vit(self, pixels: Tensor) -> Written:
        model: Any = self.model
        table, size = model.vit.embeddings, model.config.patch_size
        patches = Node(F.unfold(pixels[None], size, stride=size)[0].T)
        first_layer = table.patch_embeddings.projection
        x = self.rules.linear(patches, first_layer.weight.detach().flatten(1), first_layer.bias.detach())
        first = table.cls_token.detach()[0]
        x = moved(x, lambda t: torch.cat([first, t]), lambda r: r[1:])
        x = tokens = self.rules.add(x, Node(table.position_embeddings.detach()[0]))
        for layer in model.get_submodule(VIT_LAYERS):
            *project, output, up, down = (layer.get_submodule(name) for name in (*VIT_ATTENTION, *VIT_MLP))
            h = self.norm(x, layer.layernorm_before)
            q, k, v = (self.linear(h, m) for m in project)
            mixed = self.linear(self.attend(q, k, v, model.config.num_attention_heads, False), output)
            x = self.rules.add(mixed, x)
            hidden = self.rules.activation(self.linear(self.norm(x, layer.layernorm_after), up), F.gelu)
            x = self.rules.add(self.linear(hidden, down), x)
        return Written(
            self.linear(self._row(self.norm(x, model.vit.layernorm), 0), model.classifier),
            patches,
            tokens,
            0,
            self.maps,
        )

    def gpt2(self, ids: Tensor) -> Written:
        model: Any = self.model
        words = Node(model.transformer.wte.weight.detach()[ids])
        x = tokens = self.rules.add(words, Node(model.transformer.wpe.weight.detach()[: len(ids)]))
        for layer in model.transformer.h:
            packed = self.linear(self.norm(x, layer.ln_1), layer.attn.c_attn)
            q, k, v = self._thirds(packed)
            x = self.rules.add(self.linear(self.attend(q, k, v, model.config.n_head, True), layer.attn.c_proj), x)
            hidden = self.linear(self.norm(x, layer.ln_2), layer.mlp.c_fc)
            hidden = self.rules.activation(hidden, lambda t: F.gelu(t, approximate="tanh"))
            x = self.rules.add(x, self.linear(hidden, layer.mlp.c_proj))
        last = self._row(self.norm(x, model.transformer.ln_f), len(ids) - 1)
        return Written(self.linear(last, model.lm_head), words, tokens, len(ids) - 1, self.maps)

    def llama(self, ids: Tensor) -> Written:
        model: Any = self.model
        x = words = Node(model.model.embed_tokens.weight.detach()[ids])
        for layer in model.model.layers:
            own, h = layer.self_attn, self.norm(x, layer.input_layernorm)
            q, k, v = (self.linear(h, m) for m in (own.q_proj, own.k_proj, own.v_proj))
            mixed = self.attend(q, k, v, model.config.num_attention_heads, True, rope=True)
            x = self.rules.add(x, self.linear(mixed, own.o_proj))
            h = self.norm(x, layer.post_attention_layernorm)
            gate = self.rules.activation(self.linear(h, layer.mlp.gate_proj), F.silu)
            gated = self.rules.gated(gate, self.linear(h, layer.mlp.up_proj))
            x = self.rules.add(x, self.linear(gated, layer.mlp.down_proj))
        last = self._row(self.norm(x, model.model.norm), len(ids) - 1)
        return Written(self.linear(last, model.lm_head), words, words, len(ids) - 1, self.maps)

    def _row(self, x: Node, row: int) -> Node:
        def back(r: Tensor) -> Tensor:
            whole = torch.zeros_like(x.value)
            whole[row] = r
            return whole

        return moved(x, lambda t: t[row], back)

    def _thirds(self, x: Node) -> list[Node]:
        width = x.value.shape[1] // 3

        def third(i: int) -> Node:
            return moved(
                x,
                lambda t: t[:, i * width : (i + 1) * width],
                lambda r: F.pad(r, (i * width, (2 - i) * width)),
            )

        return [third(i) for i in range(3)]


def written(name: str, model: nn.Module, single: dict[str, Tensor], rules: Any) -> Written:
    """One input (without padding) through the model, written out."""
    writer = Writer(model, rules)
    return getattr(writer, name)(next(iter(single.values()))[0])
