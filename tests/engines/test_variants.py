"""Parts away: the same tensors whoever makes them, each variant run once; tokens deleted, and padding that is read."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
import transformers as hf
from jaxtyping import TypeCheckError
from torch import Tensor, nn

import whyformer as wf
from tests.methods.properties import padded, running
from tests.models import CASES
from tests.models.case import randint, seeded
from tests.support.language import VOCABULARY
from tests.support.language import model as language_model
from tests.support.processors import word_level
from tests.support.released import BEFORE_FIVE, require_state_per_batch
from whyformer.engines.attention.maps import read_row, row_normalized, with_ratio
from whyformer.engines.perturbation.game import game_of_scores
from whyformer.engines.perturbation.variants import Replaced, Variants, left_out, variants_of
from whyformer.errors import BadInput, NotOffered
from whyformer.inputs.batch import axes_along, with_deleted
from whyformer.loan.digests import digest

OTHER = {"bert": 7, "vit": "zero", "rtdl_ft_transformer": "zero", "detr": "zero"}  # what stands for an absent unit


@pytest.mark.parametrize("name", OTHER)
def test_the_entries_that_a_unit_owns_are_those_that_change_without_it(name: str) -> None:
    with running(name, target=None) as run:
        units, one = run.units[1], run.batch.select([1])
        without = ~np.eye(len(units), dtype=bool)
        each = left_out(run, 1, OTHER[name]).batch(without)
        owners, owned = run.modality.mask.owners(units, one), set[int]()
        for tensor, variants in each.tensors.items():
            before = one.tensors[tensor][0]
            changes = tensor in owners and "mask" not in tensor
            unit = owners[tensor].expand(before.shape) if changes else torch.full(before.shape, -1)
            filler = 7 if name == "bert" else 0
            for number, after in enumerate(variants):
                assert torch.equal(after != before, (unit == number) & (before != filler))
            owned |= set(unit[unit >= 0].tolist())
        assert owned == {
            number for number, may_go in enumerate(run.modality.mask.removable(units, run.batch)) if may_go
        }
        replaced = Replaced(run, 1, [(i,) for i in range(len(units))], OTHER[name]).batch(without)
        for tensor, expected in replaced.tensors.items():
            assert torch.equal(expected, each.tensors[tensor][:, : expected.shape[1]])  # padding is cut off


def test_only_the_padding_at_the_end_of_a_text_is_cut_off() -> None:
    ids = torch.tensor([[5, 6, 7, 8, 0, 0]])
    types, mask = torch.zeros_like(ids), torch.tensor([[1, 1, 1, 1, 0, 0]])
    for left in (False, True):
        shown = mask.flip(1) if left else mask
        with running("bert", inputs={"input_ids": ids, "token_type_ids": types, "attention_mask": shown}) as run:
            one = run.modality.read.trimmed(run.batch)
            width = 6 if left else 4
            assert {tensor.shape[1] for tensor in one.tensors.values()} == {width}
            assert one.keep_BN is not None and torch.equal(one.keep_BN, shown[:, :width].bool())
            assert torch.equal(one.tensors["input_ids"], ids[:, :width])
    with running("vit") as run:
        one = run.batch.select([0])
        assert run.modality.read.trimmed(one) is one


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


TEXT = "rome is in paris. where is london?"
METHODS = ("occlusion", "two_ended", "shap")
SIZE, TARGET = 16, 1


@cache
def gpt2() -> nn.Module:
    return language_model("gpt2")


def tokenizer(**named: str) -> Any:
    """Adds no token to a text, as that of GPT-2."""
    return word_level(VOCABULARY, "Whitespace", model_max_length=64, **named)


def last_logit(ids: list[int], target: int) -> float:
    with torch.no_grad():
        return float(gpt2()(input_ids=torch.tensor([ids])).logits[0, -1, target])


# Nothing left


@pytest.mark.parametrize(
    ("method", "named", "only"),
    [
        ("occlusion", {"bos_token": "<bos>", "eos_token": "<eos>"}, 1),
        ("shap", {"bos_token": "<bos>", "eos_token": "<eos>"}, 1),
        ("two_ended", {"eos_token": "<eos>", "pad_token": "<pad>"}, 2),
        ("two_ended", {"pad_token": "<pad>"}, 0),
    ],
)
def test_sentences_of_a_text_without_special_tokens(method: str, named: dict[str, str], only: int) -> None:
    processor = tokenizer(**named)
    found = wf.explain(gpt2(), TEXT, processor=processor, method=method, units="sentence", progress=False)
    ids, target = processor(TEXT)["input_ids"], found.target.index
    first, second = ids[:5], ids[5:]
    whole, alone, other, none = (last_logit(part, target) for part in (ids, first, second, [only]))
    by_hand = [whole - other, whole - alone]
    if method != "occlusion":  # of two players both are the Shapley value
        by_hand = [(whole - other + alone - none) / 2, (whole - alone + other - none) / 2]
    np.testing.assert_allclose(found.scores, by_hand, atol=1e-4)
    told = [w for w in found.warnings if f"{processor.convert_ids_to_tokens(only)} as the only token" in w]
    assert len(told) == (method != "occlusion")


def test_occlusion_of_a_single_sentence_or_token_leaves_one_token() -> None:
    processor = tokenizer(eos_token="<eos>")
    for text, how in (("rome is in paris.", {"units": "sentence"}), ("rome", {"replace": "delete"})):
        found = wf.explain(gpt2(), text, processor=processor, method="occlusion", progress=False, **how)  # type: ignore[arg-type]
        target = found.target.index
        by_hand = last_logit(processor(text)["input_ids"], target) - last_logit([2], target)
        assert found.scores.sum() == pytest.approx(by_hand, abs=1e-4)
        assert [w for w in found.warnings if "<eos> as the only token" in w]


def test_a_tokenizer_that_has_no_such_token_is_refused_only_where_it_is_needed() -> None:
    processor = tokenizer()
    assert wf.explain(gpt2(), TEXT, processor=processor, method="occlusion", units="sentence").scores.all()
    how = {"processor": processor, "units": "sentence", "progress": False}
    held = wf.explain(gpt2(), TEXT, method="shap", hold="where is london?", **how)  # type: ignore[call-overload]
    assert not [w for w in held.warnings if "only token" in w]
    for method in METHODS[1:]:
        with pytest.raises(NotOffered, match=r"the tokenizer has no bos, eos or pad token.*replace=<token id>"):
            wf.explain(gpt2(), TEXT, method=method, **how)  # type: ignore[call-overload]
    with pytest.raises(NotOffered, match="the tokenizer has no bos, eos or pad token"):
        wf.explain(gpt2(), "rome", processor=processor, method="occlusion", replace="delete")


# Arguments beside the ids


class OfAWord(nn.Module):
    """Reads the vectors of one word, whose tokens it is told."""

    def __init__(self, **table: int) -> None:
        super().__init__()
        self.words = nn.Embedding(30, SIZE, **table)
        layer = nn.TransformerEncoderLayer(SIZE, 2, 32, 0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(SIZE, 3)

    def forward(self, input_ids: Tensor, start_ids: Tensor, end_ids: Tensor) -> Tensor:
        x, rows = self.blocks(self.words(input_ids)), torch.arange(len(input_ids))
        return self.head(x[rows, start_ids] + x[rows, end_ids])


IDS = randint(1, 30, 1, 7)
WORD = {"input_ids": IDS, "start_ids": torch.tensor([3]), "end_ids": torch.tensor([4])}


@pytest.mark.parametrize("method", METHODS[:2])
def test_tokens_before_a_position_are_replaced_in_place(method: str) -> None:
    model = seeded(lambda: OfAWord(padding_idx=0))
    (found,) = wf.explain(model, WORD, method=method, target=TARGET, progress=False)
    assert found.options["replace"] == "pad"
    assert [w for w in found.warnings if "start_ids and end_ids may hold positions" in w and "in place (pad)" in w]

    def score(*present: int) -> float:
        ids = torch.where(torch.tensor([[i in present for i in range(7)]]), IDS, 0)
        with torch.no_grad():
            return float(model(**(WORD | {"input_ids": ids}))[0, TARGET])

    for gone in range(7):
        rest = [i for i in range(7) if i != gone]
        by_hand = score(*range(7)) - score(*rest)
        by_hand = by_hand if method == "occlusion" else (by_hand + score(gone) - score()) / 2
        assert found.scores[gone] == pytest.approx(by_hand, abs=1e-5)


def test_positions_where_no_token_is_known_to_stand_for_another() -> None:
    model = seeded(OfAWord)
    for method in METHODS:
        (found,) = wf.explain(model, WORD, method=method, target=TARGET, progress=False)
        assert found.options["replace"] == "mean_vector"
        assert [w for w in found.warnings if "may hold positions" in w and "in place (mean_vector)" in w]
    (asked,) = wf.explain(model, WORD, method="occlusion", replace="delete", target=TARGET)
    assert [w for w in asked.warnings if "start_ids and end_ids may hold positions" in w and "another token" in w]
    (named,) = wf.explain(model, WORD, method="occlusion", replace=5, target=TARGET)
    assert not [w for w in named.warnings if "positions" in w]
    methods = ["saliency", "input_x_gradient"]
    padded = seeded(lambda: OfAWord(padding_idx=0))
    compared = wf.compare(padded, WORD, method=methods, target=TARGET, progress=False,
                          metric=["comprehensiveness"])  # fmt: skip
    assert [w for w in compared.warnings if "start_ids and end_ids may hold positions" in w and "in place (pad)" in w]


def test_labels_and_types_are_no_positions() -> None:
    config = hf.BertConfig(vocab_size=30, hidden_size=SIZE, num_hidden_layers=1, num_attention_heads=2,
                           intermediate_size=32, pad_token_id=None)  # fmt: skip
    model = seeded(lambda: hf.BertForSequenceClassification(config))
    beside = {"token_type_ids": torch.zeros_like(IDS), "labels": torch.tensor([1])}
    (found,) = wf.explain(model, {"input_ids": IDS, **beside}, method="occlusion", target=TARGET)
    assert found.options["replace"] == "mean_vector" and not [w for w in found.warnings if "positions" in w]


def test_every_argument_loses_the_same_tokens() -> None:
    rest = torch.tensor([[0, 1, 3, 4], [1, 2, 3, 4]])
    square = torch.arange(25).reshape(1, 5, 5)
    tensors = {
        "input_ids": torch.tensor([[10, 11, 12, 13, 14]]),
        "bbox": torch.arange(20).reshape(1, 5, 4),
        "attention_mask": square,
        "attention_bias": square[:, None].float(),
        "key_mask": square[:, None, None, 0],
        "pixel_values": torch.zeros(1, 5, 5, 5),
        "position_ids": torch.tensor([[0, 1, 2, 0, 1]]),
        "language": torch.tensor([4]),
    }
    deleted = with_deleted(tensors, 5, rest)
    for row, columns in enumerate(rest.tolist()):
        assert torch.equal(deleted["input_ids"][row], tensors["input_ids"][0, columns])
        assert torch.equal(deleted["bbox"][row], tensors["bbox"][0, columns])
        expected = square[0][columns][:, columns]
        assert torch.equal(deleted["attention_mask"][row], expected)
        assert torch.equal(deleted["attention_bias"][row, 0], expected.float())
        assert torch.equal(deleted["key_mask"][row, 0, 0], square[0, 0, columns])
    assert deleted["pixel_values"].shape == (2, 5, 5, 5) and deleted["language"].tolist() == [4, 4]
    assert deleted["position_ids"].tolist() == [[0, 1, 0, 1], [0, 1, 0, 1]], "the rest moves up, text by text"
    assert axes_along("decoder_input_ids", tensors["input_ids"], 5) == ()


@pytest.mark.parametrize("method", METHODS[:2])
def test_positions_that_were_given_are_those_that_the_model_would_count(method: str) -> None:
    ids = randint(6, 40, 1, 9)
    plain = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    counted = plain | {"position_ids": torch.arange(9)[None]}
    how = {"method": method, "replace": "delete", "target": TARGET, "progress": False}
    for one, other in zip(wf.explain(gpt2(), plain, **how), wf.explain(gpt2(), counted, **how), strict=True):
        np.testing.assert_allclose(one.scores, other.scores, atol=1e-4)


# Padding


class Mean(OfAWord):
    """Takes a mask and reads padding all the same."""

    config = hf.PretrainedConfig(pad_token_id=0)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        return self.head(self.blocks(self.words(input_ids)).mean(1))


class FixedWidth(OfAWord):
    """Texts of twelve tokens alone, of which it hides the padding."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        assert input_ids.shape[1] == 12
        shown = attention_mask[..., None]
        return self.head(((self.blocks(self.words(input_ids)) * shown).sum(1) / shown.sum(1)).tanh())


@cache
def built(make: type[OfAWord]) -> nn.Module:
    """Each model once: it is studied on its first explanation alone."""
    return seeded(make)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(
    ("make", "replace", "method"),
    [*((FixedWidth, 9, method) for method in METHODS), (Mean, "delete", "occlusion"), (Mean, "delete", "two_ended")],
)
def test_variants_hold_the_padding_that_the_model_reads(make: Any, side: str, replace: Any, method: str) -> None:
    padding = (8, 0) if side == "left" else (0, 8)
    ids = nn.functional.pad(IDS[:, :4], padding)
    mask = nn.functional.pad(torch.ones_like(IDS[:, :4]), padding)
    model, first = built(make), padding[0]
    how = {"evaluations": 16} if method == "shap" else {}
    inputs = {"input_ids": ids, "attention_mask": mask}
    (found,) = wf.explain(model, inputs, method=method, replace=replace, target=TARGET, progress=False, **how)  # type: ignore[call-overload]

    def score(present: set[int]) -> float:
        away = [first + i for i in range(4) if i not in present]
        if replace == "delete":
            kept = [p for p in range(12) if p not in away]
            changed = {k: v[:, kept] for k, v in inputs.items()}
            if not present:
                changed = {k: torch.cat([v[:, :first], torch.tensor([[only]]), v[:, first + 4 :]], 1)
                           for (k, v), only in zip(inputs.items(), (0, 1), strict=True)}  # fmt: skip
        else:
            changed = inputs | {"input_ids": ids.index_fill(1, torch.tensor(away, dtype=torch.long), replace)}
        with torch.no_grad():
            return float(model(**changed)[0, TARGET])

    everyone = set(range(4))
    assert found.value == pytest.approx(score(everyone), abs=1e-5)
    if method == "shap":
        assert found.base == pytest.approx(score(set()), abs=1e-5)
        assert found.scores.sum() == pytest.approx(found.value - found.base, abs=1e-4)
        return
    for gone in everyone:
        by_hand = score(everyone) - score(everyone - {gone})
        by_hand = by_hand if method == "occlusion" else (by_hand + score({gone}) - score(set())) / 2
        assert found.scores[gone] == pytest.approx(by_hand, abs=1e-5)


# Caches that cannot be cut: hybrids of attention with states that sum a text up read variants as a whole.


SIZES = {
    "vocab_size": 50, "hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 4, "num_key_value_heads": 2,
    "max_position_embeddings": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
MAMBA = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8, "mamba_chunk_size": 8}
HYBRIDS: dict[str, Callable[[], tuple[Any, Any]]] = {
    "bamba": lambda: (hf.BambaForCausalLM, hf.BambaConfig(
        **SIZES, **MAMBA, num_hidden_layers=2, attn_layer_indices=[1])),
    "minimax": lambda: (hf.MiniMaxForCausalLM, hf.MiniMaxConfig(
        **SIZES, num_hidden_layers=2, layer_types=["linear_attention", "full_attention"], num_local_experts=2,
        num_experts_per_tok=1, head_dim=8, block_size=8)),
    "recurrent_gemma": lambda: (hf.RecurrentGemmaForCausalLM, hf.RecurrentGemmaConfig(
        vocab_size=50, hidden_size=32, intermediate_size=96, num_attention_heads=4, num_hidden_layers=3, lru_width=32,
        attention_window_size=16, bos_token_id=1, eos_token_id=2, pad_token_id=0)),
}  # fmt: skip
LONGER = randint(5, 50, 1, 14)
INPUTS = {"input_ids": LONGER, "attention_mask": torch.ones_like(LONGER)}


def made(kind: Any, config: Any) -> nn.Module:
    torch.manual_seed(0)
    model: nn.Module = kind(config).eval()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(4 if weight.ndim > 1 else 1)
    return model


def by_hand(model: nn.Module, replace: int | str, target: int) -> list[float]:
    """One plain pass per token."""
    with torch.no_grad():
        scores = [float(model(input_ids=LONGER).logits[0, -1, target])]
        for gone in range(LONGER.shape[1]):
            ids = LONGER.clone()
            ids[0, gone] = 9
            left = [i for i in range(LONGER.shape[1]) if i != gone]
            changed = LONGER[:, left] if replace == "delete" else ids
            scores.append(float(model(input_ids=changed).logits[0, -1, target]))
    return [scores[0] - score for score in scores[1:]]


@pytest.mark.parametrize("name", HYBRIDS)
def test_states_that_cannot_be_cut_are_not_gone_on_from(name: str) -> None:
    require_state_per_batch(name)
    model = made(*HYBRIDS[name]())
    for replace in (9, "delete"):
        (found,) = wf.explain(model, INPUTS, method="occlusion", replace=replace, batch_size=4, progress=False)
        expected = by_hand(model, replace, found.target.index)
        np.testing.assert_allclose(found.scores, expected, atol=1e-5 * np.abs(expected).max() + 1e-5)
        assert "prefix_reused" not in found.checks
    (found,) = wf.explain(model, INPUTS, method="two_ended", replace=9, progress=False)
    assert np.isfinite(found.scores).all() and found.scores.any()


def test_angles_that_depend_on_the_length_are_shared_by_texts_of_one_length() -> None:
    """Without one of 14 tokens, the text is on the other side of the switch between short and long factors."""
    rope = {"short_factor": [1.0] * 4, "long_factor": [4.0] * 4}
    config = hf.Phi3Config(
        **SIZES,
        num_hidden_layers=2,
        original_max_position_embeddings=13,
        **{"rope_scaling": rope | {"type": "longrope"}}
        if BEFORE_FIVE
        else {"rope_parameters": rope | {"rope_type": "longrope", "rope_theta": 1e4, "factor": 4.0}},
    )
    model = made(hf.Phi3ForCausalLM, config)
    for replace, reused in ((9, True), ("delete", False)):
        (found,) = wf.explain(model, INPUTS, method="occlusion", replace=replace, batch_size=4, progress=False)
        np.testing.assert_allclose(found.scores, by_hand(model, replace, found.target.index), atol=1e-4)
        assert ("prefix_reused" in found.checks) == reused
