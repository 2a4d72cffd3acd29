"""compare and recommend where one input gives several explanations: detections of an image, tokens of an answer."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import whyformer as wf
from tests.methods.properties import model_of
from tests.models import CASES
from tests.support import processors
from tests.support.language import shared, tokenizer
from whyformer.engines.perturbation.variants import variants_of
from whyformer.errors import BadInput, UnknownName
from whyformer.evaluate.games import games_of, overlap
from whyformer.evaluate.recommend import halves
from whyformer.evidence import spread
from whyformer.verbs import Explainer

METHODS = ["generic_attention", "raw_attention"]
METRICS = ["aopc", "ranked_truthfulness"]
SURE = 0.405  # of small pictures: detections on all four, several on one
SMALL = 16


@cache
def pictures(count: int = 4) -> list[Any]:
    """Lying and standing, so that a batch has padding at the right and at the bottom."""
    from PIL import Image

    random = np.random.default_rng(0)
    sizes = [(40, 60), (60, 40)] * count
    return [Image.fromarray(random.integers(0, 255, (*s, 3)).astype(np.uint8)) for s in sizes[:count]]


class Swapping(nn.Module):
    """Query 0 names class 1 while the first patch is bright; query 1, at the same place, else, never or always."""

    main_input_name = "pixel_values"

    def __init__(self, second: str) -> None:
        super().__init__()
        self.inner, self.second = CASES["detr"].build(None), second
        self.config = self.inner.config

    def forward(self, pixel_values: torch.Tensor, pixel_mask: torch.Tensor | None = None) -> Any:
        out = self.inner(pixel_values=pixel_values, pixel_mask=pixel_mask)
        bright = (pixel_values[:, :, :8, :8].mean((1, 2, 3)) > 0.5).float()
        named, empty = 50.0 * torch.eye(4)[1], 50.0 * torch.eye(4)[3]
        first = bright[:, None] * named + (1 - bright[:, None]) * empty
        else_named = (1 - bright[:, None]) * named + bright[:, None] * empty
        second = {"else": else_named, "never": empty, "always": named}[self.second]
        out.logits = out.logits * 0.01 + torch.stack([first, second.expand_as(first), *[empty.expand_as(first)] * 4], 1)
        out.pred_boxes = torch.tensor([0.5, 0.5, 0.4, 0.4]) + 0 * out.pred_boxes
        return out


SwappingForObjectDetection = type("SwappingForObjectDetection", (Swapping,), {})


def images() -> dict[str, torch.Tensor]:
    pixels = torch.randn(2, 3, 16, 40, generator=torch.Generator().manual_seed(0)) * 0.1
    pixels[:, :, :8, :8] += 2.0
    return {"pixel_values": pixels}


def logits_without(row: int, patches: Any, query: int) -> torch.Tensor:
    """(2, C) of a query, for one of two padded pictures: as it is, and with some patches black."""
    encoded = processors.detr()(pictures(2), return_tensors="pt")
    columns = 6 if row == 0 else 4
    pixels = encoded["pixel_values"][row : row + 1].repeat(2, 1, 1, 1)
    for patch in patches:
        r, c = divmod(int(patch), columns)
        pixels[1, :, 8 * r : 8 * r + 8, 8 * c : 8 * c + 8] = 0
    with torch.no_grad():
        return model_of("detr")(pixels, encoded["pixel_mask"][[row, row]]).logits[:, query]


def test_the_value_is_that_of_the_query_on_the_changed_pixels() -> None:
    asked = [(3, 1), (2, 0)]
    with games_of(Explainer(model_of("detr"), processors.detr()), pictures(2), target=asked, replace="zero") as games:
        assert [len(p) for p in games.parts] == [24, 24]  # patches, and none of the queries
        assert [games.units[row].grid for row in range(2)] == [(4, 6), (6, 4)]
        for row, (query, index) in enumerate(asked):
            absent = np.array([0, 3, 4, 5, 6, 23])
            present = np.ones((2, 24), bool)
            present[1, absent] = False
            logits = logits_without(row, absent, query)
            said = games.game(row).ask(present)
            assert said[:, 1] == pytest.approx(logits[:, index].tolist(), abs=1e-5)
            assert said[:, 0] == pytest.approx(logits.softmax(-1)[:, index].tolist(), abs=1e-5)
            assert said[:, 2].tolist() == (logits.argmax(-1) == index).float().tolist()
            assert abs(said[0, 1] - said[1, 1]) > 1e-4


def test_padding_is_never_touched_and_what_is_put_in_is_of_the_picture() -> None:
    explainer = Explainer(model_of("detr"), processors.detr())
    with games_of(explainer, pictures(2), target=(1, 0), replace="mean") as games:
        mask = games.batch.tensors["pixel_mask"].bool()
        assert not mask.all()
        for row in range(2):
            whole = games.batch.tensors["pixel_values"][row]
            run, place = games.run_of(row)
            variants = variants_of(run, place, [(int(p),) for p in games.parts[row]], "mean", games.pool, (0, row))
            empty = variants.batch(np.zeros((1, 24), bool), 0).tensors["pixel_values"][0]
            assert torch.equal(empty[:, ~mask[row]], whole[:, ~mask[row]])
            assert torch.allclose(empty[:, mask[row]], whole[:, mask[row]].mean(1, keepdim=True), atol=1e-5)


def test_all_detections_are_compared_and_limits_are_over_images(tmp_path: Path) -> None:
    how: dict[str, Any] = {"processor": processors.detr(SMALL), "method": METHODS, "metric": METRICS, "target": SURE}
    found = wf.compare(model_of("detr"), pictures(), cache=tmp_path, **how)
    detections = wf.explain(model_of("detr"), pictures(), processor=processors.detr(SMALL), target=SURE)
    assert found.inputs == sum(map(len, detections)) > 4
    assert f"{found.inputs} explanations of 4 inputs" in found.warnings[0]
    own = np.array(found.values["aopc"]["generic_attention"])
    of = [i for i, group in enumerate(detections) for _ in group]
    score = found["generic_attention"].scores["aopc"]
    assert (score.mean, score.low, score.high) == pytest.approx([float(v[0]) for v in spread(own[:, None], 0, of)])
    again = wf.compare(model_of("detr"), pictures(), cache=tmp_path, **how)
    assert again.variants == 0 and again.values == found.values


def test_masks_may_be_given_per_image_or_per_detection() -> None:
    boxes = [[(0, 0, 0.5, 1)], [(0.5, 0, 1, 1)]]
    how: dict[str, Any] = {"processor": processors.detr(), "method": METHODS, "metric": ["relevance_mass"]}
    found = wf.compare(model_of("detr"), pictures(2), masks=boxes, target=0.4, **how)
    groups = wf.explain(model_of("detr"), pictures(2), processor=processors.detr(), target=0.4)
    each = [box for box, group in zip(boxes, groups, strict=True) for _ in group]
    assert len(each) > 2
    again = wf.compare(model_of("detr"), pictures(2), masks=each, target=0.4, **how)
    assert str(found.values) == str(again.values)
    with pytest.raises(BadInput, match="1 masks for 2 inputs"):
        wf.compare(model_of("detr"), pictures(2), masks=boxes[:1], target=0.4, **how)


def test_recommend_keeps_the_detections_of_an_image_on_one_side() -> None:
    how: dict[str, Any] = {"processor": processors.detr(SMALL), "method": METHODS, "target": SURE}
    found = wf.recommend(model_of("detr"), pictures(), **how)
    assert found.chosen("any cost")["method"] in METHODS
    assert "explanations of 4 inputs" in found.warnings[0]
    with games_of(Explainer(model_of("detr"), processors.detr(SMALL)), pictures(), target=SURE) as games:
        choosing, testing = halves(games, list(range(games.size)))
    assert sorted(choosing + testing) == list(range(games.size))
    assert len({games.of[i] for i in choosing}) == len({games.of[i] for i in testing}) == 2
    assert not {games.of[i] for i in choosing} & {games.of[i] for i in testing}
    assert found.chosen_on == found.reported_on == games.size
    with pytest.raises(BadInput, match=r"at least 4 inputs \(got 2\)"):
        wf.recommend(model_of("detr"), pictures(2), **how)


@pytest.mark.parametrize("second", ["else", "never", "always"])
def test_a_query_that_takes_the_object_over_is_named(second: str, tmp_path: Path) -> None:
    model = SwappingForObjectDetection(second).eval()
    results = [
        wf.compare(model, images(), method=["occlusion"], metric=["aopc"], target=(0, 1), replace="zero", cache=c)
        for c in (tmp_path, tmp_path)
    ]
    assert results[1].variants == 0
    for found in results:  # what was kept on disk tells it, too
        said = [w for w in found.warnings if "another query" in w]
        assert len(said) == (second == "else") and all("(100%)" in words for words in said)


class Each(Swapping):
    """Classes asked for one by one, none for "no object"."""

    def forward(self, pixel_values: torch.Tensor, pixel_mask: torch.Tensor | None = None) -> Any:
        out = super().forward(pixel_values, pixel_mask)
        out.logits = (out.logits[..., :3] - 25) / 10  # 2.5 where a class is named, -2.5 where none is
        return out


def test_a_detector_that_asks_for_each_class_by_itself() -> None:
    model = type("EachForObjectDetection", (Each,), {})("else").eval()
    with games_of(Explainer(model), images(), target=(0, 1), replace="zero") as games:
        present = np.ones((2, len(games.parts[0])), bool)
        present[1, 0] = False  # the bright patch
        said = games.game(0).ask(present)
    with torch.no_grad():
        logits = [float(model(**images()).logits[0, 0, 1]), said[1, 1]]
    assert said[:, 1] == pytest.approx(logits, abs=1e-4)
    assert said[:, 0] == pytest.approx([1 / (1 + np.exp(-x)) for x in logits], abs=1e-4)
    assert said[:, 2].tolist() == [1, 0]  # the highest of three is no detection where it is below one half
    assert said[:, 3].tolist() == [0, 1]
    found = wf.check(model, images(), target=(0, 1), checks={"class_dependence": {}, "wiegreffe_pinter": {}})
    assert set(found.results) == {"class_dependence", "wiegreffe_pinter"}
    quick = {"jain_wallace": {"permutations": 2, "candidates": 1, "steps": 2}}
    test = wf.check(model, images(), target=(0, 1), checks=quick).results["jain_wallace"].inputs[0]
    assert test.original.value == pytest.approx(said[0, 0], abs=1e-4)


def test_overlap_of_boxes() -> None:
    one = torch.tensor([0.5, 0.5, 0.4, 0.4])
    others = torch.tensor([[0.5, 0.5, 0.4, 0.4], [0.7, 0.5, 0.4, 0.4], [0.9, 0.9, 0.1, 0.1], [0.5, 0.5, 0.2, 0.4]])
    assert overlap(others, one).tolist() == pytest.approx([1, 1 / 3, 0, 0.5])


def test_whole_inputs_are_drawn_for_limits() -> None:
    values = np.random.default_rng(0).normal(size=(12, 2))
    of = np.repeat(np.arange(12), 3)
    for one, many in zip(spread(values), spread(np.repeat(values, 3, axis=0), 0, of), strict=True):
        assert one == pytest.approx(many)
    alone = spread(np.repeat(values, 3, axis=0))
    assert (alone[2] - alone[1] < 0.75 * (spread(values)[2] - spread(values)[1])).all()
    assert np.isnan(spread(values[:3], 0, [0, 0, 0])[1]).all()


def test_a_replacement_that_detectors_lack_is_refused() -> None:
    with pytest.raises(UnknownName, match="mean, zero, blur, grey, black"):
        wf.compare(model_of("detr"), images(), method=METHODS, target=(0, 1), replace="resample")


# compare, recommend and check on language models: the answer's log-probability is what parts are judged by.


PAIRS = [
    ("The cat sat on the mat . He said yes . The capital of france is", "paris ."),
    ("The dog ran home . It was big . She said no . The cat is", "red and blue ."),
    ("A dog . A cat . What is it ?", "it was a cat"),
    ("He ran . She sat . Who ran ?", "he ran home ."),
]


def log_probability(prompt: str, answer: str) -> float:
    lm, tok = shared("llama"), tokenizer()
    before, said = tok(prompt)["input_ids"], tok(answer)["input_ids"]
    with torch.no_grad():
        rows = lm(input_ids=torch.tensor([before + said])).logits[0].log_softmax(1)
    return sum(float(rows[len(before) + t - 1, token]) for t, token in enumerate(said))


def test_variants_are_judged_by_the_answers_log_probability() -> None:
    with games_of(wf.Explainer(shared("llama"), tokenizer()), PAIRS, units="sentence", replace="delete") as games:
        assert [len(parts) for parts in games.parts] == [3, 4, 3, 3]
        game = games.game(0)
        assert game.parts == 3 and game.whole("logit") == pytest.approx(log_probability(*PAIRS[0]), rel=1e-4)
        present = np.array([[True, False, True]])
        without = PAIRS[0][0].replace("He said yes . ", "")
        assert game.values(present, "logit")[0] == pytest.approx(log_probability(without, PAIRS[0][1]), rel=1e-4)


def test_compare(tmp_path: Path) -> None:
    how: dict[str, Any] = {"processor": tokenizer(), "replace": "unk", "progress": False}
    methods = ["generic_attention", "attn_lrp", "occlusion"]
    metrics: dict[str, Any] = {"comprehensiveness": {}, "linear_surrogate": {}, "ranked_truthfulness": {}}
    metrics["max_sensitivity"] = {"samples": 2}  # each explains everything once more
    compared = wf.compare(shared("llama"), PAIRS, method=methods, metric=metrics, cache=tmp_path, **how)
    assert not compared.failures and compared.inputs == 4 and compared.value == "log-probability of the answer"
    # What leave-one-out measures is what occlusion says.
    best = max(compared.values["ranked_truthfulness"], key=lambda m: np.mean(compared.values["ranked_truthfulness"][m]))
    assert best in {"occlusion", "greedy"}
    again = wf.compare(shared("llama"), PAIRS, method=methods, metric=metrics, cache=tmp_path, **how)
    assert again.variants == 0
    assert again.values["comprehensiveness"]["attn_lrp"] == compared.values["comprehensiveness"]["attn_lrp"]
    others = [(PAIRS[0][0], "rome ."), *PAIRS[1:]]
    other = wf.compare(shared("llama"), others, method=methods[:1], metric=["comprehensiveness"], cache=tmp_path, **how)
    assert other.variants > 0, "another answer is another question"


def test_an_answer_is_no_decision_that_could_flip() -> None:
    with pytest.raises(wf.errors.NotOffered, match="no decision"):
        wf.compare(
            shared("llama"), PAIRS[:2], method=["raw_attention"], metric=["positive_perturbation"],
            processor=tokenizer(), progress=False,
        )  # fmt: skip


def test_recommend_and_check() -> None:
    how: dict[str, Any] = {"processor": tokenizer(), "progress": False}
    both = wf.recommend(shared("llama"), PAIRS, method=["attn_lrp"], spaces=[], **how)
    assert {name for name, _ in both.leaders} == {"attn_lrp", "attn_lrp(first_token=False)"}
    without = wf.explain(shared("llama"), PAIRS[0], processor=tokenizer(), span=True, first_token=False)
    whole = wf.explain(shared("llama"), PAIRS[0], processor=tokenizer(), span=True)
    assert without.scores[0] == 0 and np.array_equal(without.scores[1:], whole.scores[1:])
    assert without.checks["first_token_share"] == whole.checks["first_token_share"] > 0
    chosen = wf.recommend(shared("llama"), PAIRS, method=["attn_lrp"], spaces=["attention"], units="word", **how)
    wf.explain(shared("llama"), PAIRS[0], processor=tokenizer(), span=True, units="word", **chosen.chosen("any cost"))
    checked = wf.check(shared("llama"), PAIRS[:1], checks=["sinks", "class_dependence"], **how)
    assert {finding.check for finding in checked.findings} == {"sinks", "class_dependence"}
