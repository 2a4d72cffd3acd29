"""Models of libraries that are too heavy for the development environment: used where they are installed.

They bring lightning and a good deal more (and hold pandas below 3), so they are no development dependencies; the
home-made models of models.py have the same layouts. Run these with the libraries on the path:
``pip install deeptab pytorch_tabular``.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

from torch import Tensor, nn

from tests.tables.models import CATEGORIES, CLASSES, CODES_FIRST, COLUMNS, NUMBERS, SIZES, Layout

WIDTH, HEADS, LAYERS = 16, 2, 2


def deeptab(name: str, **more: Any) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from deeptab import configs
        from deeptab.architectures import ft_transformer, saint, tabtransformer

        kind = {
            "FTTransformer": ft_transformer.FTTransformer,
            "TabTransformer": tabtransformer.TabTransformer,
            "SAINT": saint.SAINT,
        }[name]
        config = getattr(configs, f"{name}Config")(d_model=WIDTH, n_heads=HEADS, n_layers=LAYERS, **more)
        numbers = {n: {"dimension": 1, "categories": None} for n in NUMBERS}
        codes = {k: {"dimension": 1, "categories": len(v)} for k, v in CATEGORIES.items()}
        return kind((numbers, codes, {}), num_classes=len(CLASSES), config=config)

    return make


def in_lists(model: nn.Module, numbers: Tensor, codes: Tensor) -> Any:
    return model(list(numbers.split(1, 1)), list(codes.split(1, 1)), [])


def pytorch_tabular(name: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        from omegaconf import OmegaConf
        from pytorch_tabular.config import InferredConfig
        from pytorch_tabular.models import ft_transformer, tab_transformer

        module = {"FTTransformer": ft_transformer, "TabTransformer": tab_transformer}[name]
        config = getattr(module, f"{name}Config")(
            task="classification",
            input_embed_dim=WIDTH,
            num_heads=HEADS,
            num_attn_blocks=LAYERS,
            batch_norm_continuous_input=False,
        )
        inferred = InferredConfig(
            categorical_dim=len(SIZES),
            continuous_dim=len(NUMBERS),
            output_dim=len(CLASSES),
            output_cardinality=[len(CLASSES)],
            categorical_cardinality=list(SIZES),
            embedding_dims=[(n, WIDTH) for n in SIZES],
        )
        settings = dataclasses.asdict(config) | dataclasses.asdict(inferred)
        return getattr(module, f"{name}Model")(
            OmegaConf.create(settings), inferred_config=OmegaConf.structured(inferred)
        )

    return make


def in_a_dict(model: nn.Module, numbers: Tensor, codes: Tensor) -> Any:
    return model({"continuous": numbers, "categorical": codes})["logits"]


LIBRARIES: dict[str, Layout] = {}
if find_spec("deeptab") is not None and find_spec("lightning") is not None:
    LIBRARIES |= {
        "deeptab_ft": Layout(deeptab("FTTransformer"), CODES_FIRST, (0, 1, 2, 3, 4), in_lists),
        "deeptab_ft_cls": Layout(
            deeptab("FTTransformer", use_cls=True, pooling_method="cls"), (None, *CODES_FIRST), (0,), in_lists
        ),
        "deeptab_tab": Layout(deeptab("TabTransformer"), tuple(CATEGORIES), (0, 1), in_lists),
        "deeptab_saint": Layout(deeptab("SAINT"), (None, *CODES_FIRST), (0,), in_lists),
    }
if find_spec("pytorch_tabular") is not None and find_spec("pytorch_lightning") is not None:
    LIBRARIES |= {
        "pytorch_tabular_ft": Layout(pytorch_tabular("FTTransformer"), (*COLUMNS, None), (5,), in_a_dict),
        "pytorch_tabular_tab": Layout(pytorch_tabular("TabTransformer"), tuple(CATEGORIES), (0, 1), in_a_dict),
    }
