"""A known answer for language models: what an induction circuit copies is the token it copied from.

"… A B … A" is continued by B (Elhage et al. 2021; Olsson et al. 2022). The two layers that do it are written into a
GPT-2 by hand: a head of the first looks at the token before, one of the second at the token whose predecessor is the
current one, and copies it. Everything else in the model is noise.
"""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import GPT2Config, GPT2LMHeadModel

import whyformer as wf

VOCAB, PLACES, WIDTH, HEAD = 32, 32, 128, 64
START, LENGTH, CASES = 0, 24, 60
SHARP, SOFT = 110.0, 80.0  # the copying head has 99 % of its attention on the source, or 92 %
TOKEN, PREVIOUS, COPIED, PLACE = (slice(at, at + 32) for at in range(0, WIDTH, 32))  # parts of the residual stream
NOISE = 0.03


def connected(weight: Tensor, read: slice, written: int, strength: float, shift: int = 0) -> None:
    """Adds a map from a part of the stream to 32 columns that start at ``written``."""
    size = read.stop - read.start
    weight[read, written : written + size] += strength * torch.eye(size).roll(shift, 1)


def induction_model(seed: int, sharpness: float) -> GPT2LMHeadModel:
    """Reads [start] and random tokens; says what followed the current token before."""
    sizes = {"vocab_size": VOCAB, "n_positions": PLACES, "n_embd": WIDTH, "n_layer": 2, "n_head": 2, "n_inner": 32}
    config = GPT2Config(**sizes, bos_token_id=START, eos_token_id=START, tie_word_embeddings=False)
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(seed)
        model = GPT2LMHeadModel(config).eval()
        for name, weight in model.named_parameters():
            if "ln_" not in name and "bias" not in name:
                weight.normal_(0, NOISE)
        model.transformer.wte.weight[:, TOKEN] += torch.eye(VOCAB)
        model.transformer.wpe.weight[:, PLACE] += torch.eye(PLACES)
        for name, weight in model.named_parameters():
            if "ln_" in name and "weight" in name:
                weight.fill_(0.125)  # a one among 128 numbers stays near 1
        first, second = (block.attn for block in model.transformer.h)
        query, key, value = 0, WIDTH, 2 * WIDTH  # where the first head's columns begin
        connected(first.c_attn.weight, PLACE, query, 56.0, shift=-1)  # place i asks for place i - 1
        connected(first.c_attn.weight, PLACE, key, 1.0)
        connected(first.c_attn.weight, TOKEN, value, 1.0)
        connected(first.c_proj.weight, slice(0, 32), PREVIOUS.start, 1.0)
        connected(second.c_attn.weight, TOKEN, query, sharpness)  # a token asks for what followed it
        connected(second.c_attn.weight, PREVIOUS, key, 1.0)
        connected(second.c_attn.weight, TOKEN, value, 1.0)
        connected(second.c_proj.weight, slice(0, 32), COPIED.start, 1.0)
        model.lm_head.weight[:, COPIED] += 20.0 * torch.eye(VOCAB)
    return model


def prompts(seed: int) -> tuple[Tensor, Tensor]:
    """(I, N) distinct tokens after the start and then one of them again; (I,) where the token after it stands."""
    rng = np.random.default_rng(seed)
    drawn = 1 + rng.random((CASES, VOCAB - 1)).argsort(1)[:, :LENGTH]
    repeated = rng.integers(0, LENGTH - 2, CASES)
    current = drawn[np.arange(CASES), repeated]
    ids = np.concatenate([np.full((CASES, 1), START), drawn, current[:, None]], 1)
    return torch.tensor(ids), torch.tensor(repeated + 2)


def highest(method: str, seed: int, sharpness: float) -> tuple[np.ndarray, np.ndarray]:
    """(I,) the token that comes first among all, the start and the current one included, and the source."""
    model, (ids, source_I) = induction_model(seed, sharpness), prompts(seed)
    answer_I = ids[torch.arange(CASES), source_I]
    with torch.no_grad():
        assert (model(ids).logits[:, -1].argmax(1) == answer_I).all()
    results = wf.explain(model, {"input_ids": ids}, target=answer_I.tolist(), method=method, batch_size=CASES)
    return np.array([explanation.scores.argmax() for explanation in results]), source_I.numpy()


@pytest.mark.parametrize(("method", "seed"), [("generic_attention", 0), ("attn_lrp", 1)])
def test_the_token_that_was_copied_comes_first(method: str, seed: int) -> None:
    highest_I, source_I = highest(method, seed, SHARP)
    assert (highest_I == source_I).mean() >= 0.95


def test_where_the_match_is_in_doubt_what_was_matched_may_come_first() -> None:
    """A soft head would copy more if it matched better, so generic_attention may name the earlier occurrence first."""
    highest_I, source_I = highest("generic_attention", 0, SOFT)
    assert np.isin(highest_I - source_I, [0, -1]).all()
    assert (highest_I == source_I).mean() >= 0.9


def test_the_heads_that_were_written_are_found() -> None:
    model = induction_model(0, SHARP)
    scores, circuits = wf.heads.induction(model, length=10, sequences=4), wf.heads.circuits(model)
    for found, known in ((scores.previous_token, (0, 0)), (scores.induction, (1, 0))):
        assert found[known] > 0.9 and np.delete(found.ravel(), np.ravel_multi_index(known, (2, 2))).max() < 0.2
    assert circuits.copying[1, 0] > 0.9
