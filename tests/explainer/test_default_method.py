"""The method that explains when none is named."""

from __future__ import annotations

import pytest

import whyformer as wf
from tests.models import CASES
from tests.tables.models import LAYOUTS, rows, table
from whyformer.evaluate.candidate_pool import cost_class_of
from whyformer.registry import CLASSES, COST, DEFAULTS, default_method


@pytest.mark.parametrize("modality", DEFAULTS)
def test_every_default_is_a_method_of_its_cost(modality: str) -> None:
    assert tuple(DEFAULTS[modality]) == CLASSES
    for cost_class, name in DEFAULTS[modality].items():
        assert cost_class_of(name, {}) == cost_class
    assert default_method(modality) == DEFAULTS[modality][COST[modality]]


def test_what_is_used_is_the_default_of_what_was_given() -> None:
    bert, ft = CASES["bert"], CASES["rtdl_ft_transformer"]
    assert wf.explain(bert.build("sdpa"), bert.inputs())[0].method == "generic_attention"
    assert wf.explain(LAYOUTS["rtdl"].build(), rows(2), processor=table())[0].method == "integrated_gradients"
    # bare tensors: nobody said what the columns are
    assert wf.explain(ft.build(ft.implementations[0]), ft.inputs())[0].method == "generic_attention"
