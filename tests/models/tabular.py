"""Tables."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from tests.models.case import (
    BATCH,
    CLASSES,
    HEADS,
    LAYERS,
    WIDTH,
    Build,
    Case,
    Inputs,
    randint,
    randn,
    reported,
    seeded,
    spied,
)

NUMBERS, CATEGORIES = 4, (5, 3, 4)


def rtdl(attn: str | None) -> nn.Module:
    from rtdl_revisiting_models import FTTransformer

    columns = {"n_cont_features": NUMBERS, "cat_cardinalities": list(CATEGORIES), "d_out": CLASSES}
    sizes = {"n_blocks": LAYERS, "d_block": WIDTH, "attention_n_heads": HEADS, "ffn_d_hidden": None}
    rates = {"attention_dropout": 0.1, "ffn_d_hidden_multiplier": 2.0, "ffn_dropout": 0.1, "residual_dropout": 0.0}
    return seeded(lambda: FTTransformer(**columns, **sizes, **rates))


def lucidrains(model_class: str, **options: Any) -> Build:
    def build(attn: str | None) -> nn.Module:
        import tab_transformer_pytorch

        size = {"dim": WIDTH, "depth": LAYERS, "heads": HEADS, "dim_head": WIDTH // HEADS, "dim_out": CLASSES}
        cls = getattr(tab_transformer_pytorch, model_class)
        return seeded(lambda: few_rounds(cls(categories=CATEGORIES, num_continuous=NUMBERS, **size, **options)))

    return build


def few_rounds(model: nn.Module) -> nn.Module:
    """Hyper-connections balance each mixing matrix in 20 rounds: nine tenths of the time of a model this small."""
    for module in model.modules():
        balance = getattr(module, "residual_mix_constraint_fn", None)
        if balance is not None:
            module.residual_mix_constraint_fn = partial(balance.func, iters=2)
    return model


def numbers_and_categories() -> Inputs:
    return (randn(BATCH, NUMBERS, seed=7), randint(0, min(CATEGORIES), BATCH, len(CATEGORIES), seed=8))


def categories_and_numbers() -> Inputs:
    return numbers_and_categories()[::-1]  # type: ignore[index]


returned = reported(lambda output: output[1], return_attn=True)

table = partial(Case, units="columns")
tab_transformer = lucidrains("TabTransformer", mlp_act=nn.ReLU())

CASES = [
    table("rtdl_ft_transformer", rtdl, numbers_and_categories, spied),
    table("lucidrains_ft_transformer", lucidrains("FTTransformer"), categories_and_numbers, returned),
    # Every column feeds the head; the numbers go there without attention.
    table("lucidrains_tab_transformer", tab_transformer, categories_and_numbers, returned, readout=None),
]
