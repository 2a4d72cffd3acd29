"""Random weights, other classes, neighbours, shifts, noise, sinks, leaks: each check sees what it is there to see."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.checks.quick import exam_of
from tests.methods.properties import model_of
from tests.models import CASES, LEAKY, WITHOUT_ATTENTION
from whyformer import registry
from whyformer.checks.check import capture_audit, class_dependence, sinks
from whyformer.checks.exam import Exam
from whyformer.checks.invariance import _amount, _shifted, invariance, stability
from whyformer.checks.randomisation import Redrawn, _evidence, parts_of, randomisation
from whyformer.loan.borrow import known_about
from whyformer.registry import constant, method
from whyformer.run import Attribution, Run
from whyformer.verbs import Explainer


@pytest.fixture
def ramp() -> Iterator[str]:
    """A "method" that gives every model the same map: the position itself."""

    flags: dict[str, Any] = {"signed": False, "class_specific": False, "specificity": "attention"}

    @method(paper="none", needs=set(), cost=constant(1, 0), cost_text="1 forward", **flags)
    def ramp(run: Run) -> Attribution:
        """The number of the position."""
        return Attribution(torch.arange(run.length).expand(run.keep_BN.shape).float() * run.keep_BN)

    yield "ramp"
    del registry._METHODS["ramp"]


def levels(result: Any) -> list[str]:
    return [f.level for f in result.findings()]


# Random weights


def test_a_map_that_ignores_the_weights_is_flagged(ramp: str) -> None:
    found = randomisation(exam_of(method=ramp), copies=2, beside=2)
    assert all(s.cascading == s.independent == 1.0 for s in found.stages)
    assert levels(found)[0] == "warning" and "nearly the same map" in found.findings()[0].text


def test_a_map_that_depends_on_the_weights_is_not() -> None:
    model, tokenizer = wf.demo.load_sentiment()
    exam = Exam(Explainer(model, tokenizer), ["I like the movie , although the plot is a little thin ."])
    found = randomisation(exam, copies=3)
    assert found.final < 0.5 and levels(found) == ["ok"]
    assert [s.part for s in found.stages][:3] == ["classifier", "bert.pooler.dense", "bert.encoder.layer.3"]
    assert found.stages[-1].part.startswith("bert.embeddings")


def test_a_randomised_model_is_flagged() -> None:
    model, tokenizer = wf.demo.load_sentiment()
    random = copy.deepcopy(model)
    text = "I like the movie , although the plot is a little thin ."
    encoded = tokenizer(text, return_tensors="pt")
    for number, part in enumerate(parts_of(random, lambda m: m(**encoded))):
        Redrawn(random).draw(part, seed=100 + number)
    found = wf.check(random, text, processor=tokenizer, checks={"randomisation": {"copies": 1}}).of("warning")
    assert "looks random" in found[-1].title


def test_an_image_whose_mean_colour_says_the_same_is_no_sign_of_an_untrained_model() -> None:
    """Its mean colour carries the class, so that masking patches by it takes nothing away."""

    class Redness(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = model_of("vit")

        def forward(self, pixel_values: Tensor) -> Tensor:
            logits = 0.01 * self.inner(pixel_values=pixel_values).logits
            return logits + 20 * pixel_values.mean((1, 2, 3))[:, None] * torch.eye(logits.shape[1])[0]

    exam = Exam(Explainer(Redness().eval()), {"pixel_values": torch.ones(1, 3, 32, 32)}, method="occlusion", target=0)
    assert _evidence(exam) > 10


def test_every_parameter_is_drawn_and_equal_shapes_differ() -> None:
    for name in ("bert", "vit"):  # vit: CLS and position tokens belong to no layer of their own
        model = model_of(name)
        spoilt = copy.deepcopy(model)
        inputs = CASES[name].inputs()
        parts = parts_of(spoilt, lambda m, i=inputs: m(**i), by="module")
        named = [n for part in parts for n in part.parameters]
        assert sorted(named) == sorted(n for n, _ in model.named_parameters())
        for number, part in enumerate(parts):
            Redrawn(spoilt).draw(part, number)
        for (n, a), b in zip(model.named_parameters(), spoilt.parameters(), strict=True):
            assert a.std() == 0 or not torch.equal(a, b), n
    queries = [p for n, p in spoilt.named_parameters() if p.shape == (32, 32)]
    assert len({q.detach().numpy().tobytes() for q in queries}) == len(queries) > 4
    again = copy.deepcopy(model)
    with Redrawn(again) as drawn:
        for seed in (7, 0):  # drawn twice, the first time leaves no trace
            for number, part in enumerate(parts):
                drawn.draw(part, seed + number)
        assert all(torch.equal(a, b) for a, b in zip(spoilt.parameters(), again.parameters(), strict=True))
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), again.parameters(), strict=True))


def bits(model: torch.nn.Module) -> list[bytes]:
    """Every weight and buffer, bit by bit: -0.0 is not 0.0."""
    return [v.detach().contiguous().view(torch.uint8).numpy().tobytes() for v in model.state_dict().values()]


# While parts go one by one; in the cascade
def test_one_part_is_held_at_a_time_and_no_model_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    held: list[int] = []
    draw = Redrawn.draw

    def watched(self: Redrawn, part: Any, seed: int) -> None:
        draw(self, part, seed)
        held.append(sum(t.numel() * t.element_size() for t in self._originals.values()))

    model = copy.deepcopy(model_of("bert"))
    exam = Exam(Explainer(model), CASES["bert"].inputs(), method="raw_attention")
    _ = exam.explanations
    monkeypatch.setattr(Redrawn, "draw", watched)
    monkeypatch.setattr(copy, "deepcopy", None)
    found = randomisation(exam, copies=2, beside=2)
    sizes = {n: p.numel() * p.element_size() for n, p in model.named_parameters()}
    parts = parts_of(model, lambda m: m(**CASES["bert"].inputs()))
    each = [sum(sizes[n] for n in part.parameters) for part in parts]
    assert held[: len(parts)] == each  # alone: this part and nothing else
    assert held[len(parts) : 2 * len(parts)] == np.cumsum(each).tolist()  # cascading: what is random by now
    assert max(held) == sum(sizes.values())  # never more than the weights once
    assert len(found.stages) == len(parts)


def test_parameters_that_share_memory_and_weights_of_inference_mode() -> None:
    shared = torch.nn.Sequential(torch.nn.Linear(3, 3), torch.nn.Linear(3, 3))
    shared[1].weight.data = shared[0].weight.data  # two parameters, one memory
    with torch.inference_mode():
        inference = torch.nn.Linear(3, 3)
    for model in (shared, inference):
        before = bits(model)
        with Redrawn(model) as drawn:
            for number, part in enumerate(parts_of(model, lambda m: m(torch.ones(1, 3)), by="module")):
                drawn.draw(part, number)
            assert bits(model) != before
        assert bits(model) == before


def test_nothing_is_remembered_of_the_random_model() -> None:
    model = copy.deepcopy(model_of("bert"))
    exam = Exam(Explainer(model), CASES["bert"].inputs())
    facts = known_about(model)
    before = dict(facts)
    with exam.borrowing(), Redrawn(model):
        facts["seen"] = "while it was random"
    assert facts == before and len(before) > 0


# Other classes


def test_a_map_of_no_class_is_flagged_and_a_map_of_its_class_is_not() -> None:
    found = class_dependence(exam_of(method="raw_attention"))
    assert levels(found) == ["warning"] and "does not depend on the class" in found.findings()[0].text
    assert found.classes[0][0] != found.classes[0][1]
    assert "warning" not in levels(class_dependence(exam_of(method="generic_attention")))
    assert levels(class_dependence(exam_of(method="input_x_gradient"))) == ["ok"]


# Neighbours and shifts


def test_neighbours_that_leak_are_seen() -> None:
    assert levels(invariance(exam_of()))[0] == "ok"

    class Sociable(torch.nn.Module):
        """Every input hears the mean of its batch: as a norm that takes its statistics from it."""

        def __init__(self) -> None:
            super().__init__()
            self.inner = copy.deepcopy(model_of("bert"))
            self.config = self.inner.config

        def get_input_embeddings(self) -> torch.nn.Module:
            return self.inner.get_input_embeddings()

        def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor | None = None) -> Any:
            embedded = self.inner.get_input_embeddings()(input_ids)
            mixed = embedded + embedded.mean((0, 1))
            return self.inner(inputs_embeds=mixed, attention_mask=attention_mask).logits

    exam = Exam(Explainer(Sociable()), CASES["bert"].inputs(), method="saliency")
    assert levels(invariance(exam))[0] == "warning"


def test_a_shift_that_the_model_takes_back_moves_input_times_gradient_only() -> None:
    """Kindermans et al. 2019: gradients stay, gradient × input does not."""
    for name in ("bert", "vit"):
        still = {m: invariance(exam_of(name, method=m)) for m in ("saliency", "generic_attention", "input_x_gradient")}
        assert max(still["saliency"].shift, still["generic_attention"].shift) < 1e-3
        assert still["input_x_gradient"].shift > 0.05
        assert levels(still["input_x_gradient"])[1] == "warning"


def test_the_shift_moves_input_times_gradient_by_shift_times_gradient() -> None:
    """Σ_d (x_d + m_d)·g_d - Σ_d x_d·g_d = m·g, with the gradient as it was."""
    exam = exam_of(method="input_x_gradient", target=1)
    table = model_of("bert").get_input_embeddings().weight.detach()
    amount = _amount(table, exam.seed)
    words = table[CASES["bert"].inputs()["input_ids"][0]].clone()[None].requires_grad_()
    mask = CASES["bert"].inputs()["attention_mask"][:1]
    logits = model_of("bert")(inputs_embeds=words, attention_mask=mask).logits[0]
    (gradient,) = torch.autograd.grad(logits[1] - logits.mean(), words)
    moved = _shifted(exam)
    assert moved is not None
    difference = moved[0].scores - exam.explanations[0].scores
    assert difference == pytest.approx((gradient[0] @ amount).numpy(), abs=1e-4)


# Noise


def test_noise_moves_maps_by_as_much_as_it_is() -> None:
    little, much = (stability(exam_of(), noise=n, draws=3) for n in (1e-3, 1.0))
    assert little.sensitivity < 0.05 and little.spearman > 0.9 and levels(little) == ["ok"]
    assert much.sensitivity > 10 * little.sensitivity
    drawn = [stability(exam_of(seed=seed), draws=2).sensitivity for seed in (3, 3, 4)]
    assert drawn[0] == drawn[1] != drawn[2]
    assert 0 < stability(exam_of("vit"), draws=2).sensitivity < 1, "pixels get noise, too"


# Sinks and capture


def test_sinks_count_special_tokens_and_the_first_position() -> None:
    inputs = CASES["bert"].inputs()
    inputs["input_ids"][0, 4] = 0  # an id that the configuration calls special
    exam = exam_of(inputs=inputs, method="raw_attention", options={"layers": 0})
    found = sinks(exam)
    shares = [
        float(e.scores[[i for i, s in enumerate(e.units.special) if s or i == 0]].sum() / e.scores.sum())
        for e in exam.explanations
    ]
    assert found.scores == pytest.approx(np.mean(shares))
    own = wf.Explainer(model_of("bert")).record(inputs).sites[0].attention_BHQK
    by_hand = [
        float(own[0][:, :10][..., [0, 4]].sum() / own[0][:, :10].sum()),
        float(own[1][:, :7][..., [0]].sum() / own[1][:, :7].sum()),
    ]
    assert found.attention[0] == pytest.approx(np.mean(by_hand), abs=1e-5)


def test_leaks_and_models_without_attention_are_reported() -> None:
    assert levels(capture_audit(exam_of())) == ["ok"]
    leaky, without = LEAKY["token_mixing"], WITHOUT_ATTENTION["resnet"]
    for case, words in ((leaky, "outside the captured attention"), (without, "No attention was found")):
        found = capture_audit(Exam(Explainer(case.build(None)), case.inputs()))
        assert levels(found) == ["warning"] and words in found.findings()[0].text
        assert (found.leak > 0) == (case is leaky)
