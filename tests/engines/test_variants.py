"""Parts away: the same tensors whoever makes them, and a game that runs each variant once; shapes that are checked."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from jaxtyping import TypeCheckError

from tests.methods.properties import padded
from tests.methods.runs import running
from tests.models import CASES
from whyformer.engines.attention.maps import read_row, row_normalized, with_ratio
from whyformer.engines.perturbation.game import game_of_scores
from whyformer.engines.perturbation.variants import Replaced, Variants, left_out, variants_of
from whyformer.errors import BadInput
from whyformer.loan.digests import digest

OTHER = {"bert": 7, "vit": "zero", "rtdl_ft_transformer": "zero", "detr": "zero"}  # what stands for an absent unit


@pytest.mark.parametrize("name", OTHER)
def test_the_entries_that_a_unit_owns_are_those_that_change_without_it(name: str) -> None:
    with running(name, target=None) as run:
        units, one = run.units[1], run.batch.select([1])
        without = ~np.eye(len(units), dtype=bool)
        each = left_out(run, 1, OTHER[name]).batch(without)
        owners, owned = run.modality.owners(units, one), set[int]()
        for tensor, variants in each.tensors.items():
            before = one.tensors[tensor][0]
            changes = tensor in owners and "mask" not in tensor
            unit = owners[tensor].expand(before.shape) if changes else torch.full(before.shape, -1)
            filler = 7 if name == "bert" else 0
            for number, after in enumerate(variants):
                assert torch.equal(after != before, (unit == number) & (before != filler))
            owned |= set(unit[unit >= 0].tolist())
        assert owned == {number for number, may_go in enumerate(run.modality.removable(units)) if may_go}
        replaced = Replaced(run, 1, [(i,) for i in range(len(units))], OTHER[name]).batch(without)
        for tensor, expected in replaced.tensors.items():
            assert torch.equal(expected, each.tensors[tensor][:, : expected.shape[1]])  # padding is cut off


def test_only_the_padding_at_the_end_of_a_text_is_cut_off() -> None:
    ids = torch.tensor([[5, 6, 7, 8, 0, 0]])
    types, mask = torch.zeros_like(ids), torch.tensor([[1, 1, 1, 1, 0, 0]])
    for left in (False, True):
        shown = mask.flip(1) if left else mask
        with running("bert", inputs={"input_ids": ids, "token_type_ids": types, "attention_mask": shown}) as run:
            one = run.modality.trimmed(run.batch)
            width = 6 if left else 4
            assert {tensor.shape[1] for tensor in one.tensors.values()} == {width}
            assert one.keep_BN is not None and torch.equal(one.keep_BN, shown[:, :width].bool())
            assert torch.equal(one.tensors["input_ids"], ids[:, :width])
    with running("vit") as run:
        one = run.batch.select([0])
        assert run.modality.trimmed(one) is one


def test_resampling_draws_the_words_of_others_and_leaves_special_ones_and_padding() -> None:
    with running("bert", inputs=padded(CASES["bert"].inputs(), 3)) as run:
        one, parts = run.batch.select([0]), [1, 3]
        pool = run.batch.select([1])
        variants = variants_of(run, 0, [(p,) for p in parts], "resample", pool, (0, 0))
        assert variants.draws > 1
        before = one.tensors["input_ids"][0]
        seen = set()
        for draw in range(variants.draws):
            ids = variants.batch(np.array([[False, False]]), draw).tensors["input_ids"][0]
            stays = np.setdiff1d(np.arange(len(ids)), parts)
            assert torch.equal(ids[stays], before[stays])
            assert set(ids[parts].tolist()) <= set(pool.tensors["input_ids"][0][pool.keep_BN[0]].tolist())
            seen.add(tuple(ids[parts].tolist()))
        assert len(seen) > 1
        again = variants_of(run, 0, [(p,) for p in parts], "resample", pool, (0, 0))
        assert digest(list(variants.contents(2))) == digest(list(again.contents(2)))


def test_a_game_of_scores_knows_the_whole_and_asks_for_the_rest_once() -> None:
    with running("bert") as run:
        game = game_of_scores(run, 1, Replaced(run, 1, [(1,), (2,)], 7), 2)
        before = run.forwards_B.copy()
        assert game.scores(np.ones((1, 2), dtype=bool))[0] == float(run.value_B[1])
        assert (run.forwards_B == before).all()
        first = game.scores(np.array([[True, False], [True, False], [False, False]]))
        assert first[0] == first[1] != first[2]
        assert (run.forwards_B - before).tolist() == [0, 2]
        assert (game.scores(np.array([[False, False]])) == first[2:]).all()
        assert (run.forwards_B - before).tolist() == [0, 2]


def test_what_was_used_is_one_name_or_a_remark() -> None:
    with running("vit") as run:
        assert Variants.used(run, "blur") == ("blur", [])
    with running("vilt") as run:
        used, (remark,) = Variants.used(run, "blur")
        assert used == "blur" and "image: blur" in remark and "text: " in remark


def test_groups_are_never_deleted() -> None:
    with running("bert") as run, pytest.raises(BadInput, match="positions of what is left"):
        Replaced(run, 0, [(1, 2)], "delete")


def test_shapes_are_checked() -> None:
    """As conftest.py has it: a missing axis, and two sizes for one letter."""
    with pytest.raises(TypeCheckError, match="B Q K"):
        row_normalized(torch.ones(2, 3))
    with pytest.raises(TypeCheckError, match="B Q"):
        with_ratio(torch.ones(2, 3, 3), 0, torch.ones(2, 5))
    maps = torch.ones(2, 3, 3)
    assert torch.equal(read_row(maps, torch.ones(2, 3)), read_row(maps, torch.ones(2, 3, dtype=torch.bool)))
