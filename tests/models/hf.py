"""Hugging Face models from fresh configurations, and the inputs they share."""

from __future__ import annotations

from copy import deepcopy
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from tests.models.case import (
    BATCH,
    CLASSES,
    HEADS,
    LAYERS,
    WIDTH,
    Build,
    Case,
    randint,
    randn,
    reported,
    seeded,
)
from tests.support.released import BEFORE_FIVE, released

VOCAB = 100
LENGTHS = (10, 7)  # real tokens in each row
CONTROL = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
ENCODER = {
    "vocab_size": VOCAB,
    "hidden_size": WIDTH,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "intermediate_size": 2 * WIDTH,
    "num_labels": CLASSES,
}
ENCODER_DECODER = {
    "vocab_size": VOCAB,
    "d_model": WIDTH,
    "encoder_layers": LAYERS,
    "decoder_layers": LAYERS,
    "encoder_attention_heads": HEADS,
    "decoder_attention_heads": HEADS,
    "encoder_ffn_dim": 2 * WIDTH,
    "decoder_ffn_dim": 2 * WIDTH,
}
BOTH = ("sdpa", "eager")
EAGER = ("eager",)


def hf(model_class: str, gain: float = 1.5, parts: bool = True, **config: Any) -> Build:
    """A builder; the configuration is made anew each time, since models write to the one they are given.

    parts=False asks for the attention implementation at the top only: a convolutional backbone refuses it.
    """

    def build(attn: str | None) -> nn.Module:
        cls = released(model_class)
        options = {} if attn is None else {"attn_implementation": attn if parts else {"": attn}}
        try:
            return seeded(lambda: cls._from_config(cls.config_class(**deepcopy(config)), **options), gain)
        except ValueError as refused:  # some families of transformers 4 have eager attention only
            if not (BEFORE_FIVE and "does not support an attention implementation" in str(refused)):
                raise
            return seeded(lambda: cls._from_config(cls.config_class(**deepcopy(config))), gain)

    return build


def text(
    pad: int = 0, low: int = 5, high: int = VOCAB, eos: int | None = None, left: bool = False
) -> dict[str, Tensor]:
    """Two rows of token ids, the second shorter and padded."""
    ids = randint(low, high, BATCH, max(LENGTHS), seed=1)
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    if eos is not None:
        ids[torch.arange(BATCH), torch.tensor(LENGTHS) - 1] = eos
    ids = ids.masked_fill(mask == 0, pad)
    if left:
        ids, mask = (torch.stack([x[0], x[1].roll(max(LENGTHS) - LENGTHS[1])]) for x in (ids, mask))
    return {"input_ids": ids, "attention_mask": mask}


def image(height: int = 32, width: int = 32) -> Tensor:
    return randn(BATCH, 3, height, width, seed=2)


def logits(output: Any) -> Tensor:
    return output.logits


def last_logits(output: Any) -> Tensor:
    """Logits at the last real token of each row (rows as in `text`)."""
    rows = output.logits
    return rows[torch.arange(len(rows)), torch.tensor(LENGTHS[: len(rows)]) - 1]


def final_logits(output: Any) -> Tensor:
    return output.logits[:, -1]


single = reported(lambda out: out.attentions, output_attentions=True)
encoder_decoder = reported(
    lambda out: chain(out.encoder_attentions, chain(*zip(out.decoder_attentions, out.cross_attentions, strict=True))),
    output_attentions=True,
)


hf_case = partial(Case, attention=single, implementations=BOTH, logits=logits)
