"""Models around torch's own nn.TransformerEncoder and nn.Transformer."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from tests.models.case import BATCH, CLASSES, HEADS, LAYERS, WIDTH, Case, Inputs, numbered, randint, run, seeded
from tests.models.hf import VOCAB, text


class EncoderClassifier(nn.Module):
    """Embedding, nn.TransformerEncoder, linear on token 0."""

    def __init__(self, norm_first: bool = False, batch_first: bool = True) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed, self.position = nn.Embedding(VOCAB, WIDTH, padding_idx=0), nn.Embedding(64, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, HEADS, 2 * WIDTH, batch_first=batch_first, norm_first=norm_first)
        nested = batch_first and not norm_first  # torch warns when it is asked for but cannot be had
        self.encoder = nn.TransformerEncoder(layer, LAYERS, enable_nested_tensor=nested)
        self.head = nn.Linear(WIDTH, CLASSES)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embed(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))
        x = x if self.batch_first else x.transpose(0, 1)
        x = self.encoder(x, src_key_padding_mask=ids == 0)
        return self.head(x[:, 0] if self.batch_first else x[0])


class EncoderDecoder(nn.Module):
    """Embeddings, nn.Transformer, linear on the last target token."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.position = nn.Embedding(VOCAB, WIDTH, padding_idx=0), nn.Embedding(64, WIDTH)
        self.transformer = nn.Transformer(WIDTH, HEADS, LAYERS, LAYERS, 2 * WIDTH, batch_first=True)
        self.head = nn.Linear(WIDTH, VOCAB)

    def place(self, ids: Tensor) -> Tensor:
        return self.embed(ids) + self.position(torch.arange(ids.shape[1], device=ids.device))

    def forward(self, source: Tensor, target: Tensor) -> Tensor:
        padding, n = source == 0, target.shape[1]
        future = torch.ones(n, n, dtype=torch.bool, device=target.device).triu(1)
        x = self.transformer(
            self.place(source),
            self.place(target),
            tgt_mask=future,
            src_key_padding_mask=padding,
            memory_key_padding_mask=padding,
        )
        return self.head(x[:, -1])


@torch.no_grad()
def asked_again(model: nn.Module, inputs: Inputs) -> dict[int, Tensor]:
    """Reference attention: each nn.MultiheadAttention is called once more, this time for its weights."""
    found: list[Tensor] = []

    def ask(module: nn.Module, args: Any, kwargs: Any) -> None:
        kwargs = kwargs | {"need_weights": True, "average_attn_weights": False}
        found.append(module.forward(*args, **kwargs)[1])

    hooks = [
        module.register_forward_pre_hook(ask, with_kwargs=True)
        for module in model.modules()
        if isinstance(module, nn.MultiheadAttention)
    ]
    fast = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)  # its nested tensors drop the padded rows
    try:
        run(model, inputs)
    finally:
        torch.backends.mha.set_fastpath_enabled(fast)
        for hook in hooks:
            hook.remove()
    return numbered(found)


def ids() -> Inputs:
    return (text()["input_ids"],)


def two_sentences() -> Inputs:
    return (text()["input_ids"], randint(5, VOCAB, BATCH, 6, seed=3))


def encoder(name: str, **options: bool) -> Case:
    return Case(name, lambda attn: seeded(partial(EncoderClassifier, **options)), ids, asked_again)


CASES = [
    encoder("nn_transformer_encoder"),
    encoder("nn_transformer_encoder_prenorm", norm_first=True),
    encoder("nn_transformer_encoder_seq_first", batch_first=False),
    encoder("nn_transformer_encoder_prenorm_seq_first", norm_first=True, batch_first=False),
    Case(
        "nn_transformer",
        lambda attn: seeded(EncoderDecoder, gain=1.2),
        two_sentences,
        asked_again,
        sites=3 * LAYERS,
        self_only=False,
        units="several",
        readout=-1,
    ),
]
