"""The debate about attention in one call: what is tested, by whom, and what follows from it."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import kendalltau
from torch import Tensor, nn

import whyformer as wf
from tests.checks.test_retrained import Finder, Pooled, marked
from whyformer.checks import attention_debate as module
from whyformer.checks.attention_debate import AttentionDebate
from whyformer.checks.jain_wallace import jain_wallace
from whyformer.checks.retrained import EVEN, GUIDES, LSTM
from whyformer.errors import WhyformerError

BRIEF: dict[str, Any] = {"epochs": 1, "guide_epochs": 1, "lambdas": (0.1,), "permutations": 5, "lr": 1e-6}


@pytest.fixture(scope="module")
def debate() -> AttentionDebate:
    x, labels = marked(60, seed=1)
    return wf.attention_debate(Finder().eval(), x, labels, validation=marked(40, seed=2), tested=30, seed=3, **BRIEF)


def test_held_out_inputs_are_tested(debate: AttentionDebate) -> None:
    """As wf.check tests each by itself; Kendall's τ by hand."""
    x, _ = marked(40, seed=2)
    model = Finder().eval()
    order = torch.randperm(40, generator=torch.Generator().manual_seed(3))[:30].sort().values
    assert len(debate.tests.inputs) == 30 and debate.copies.validation == 40
    for place in (0, 29):
        one, test = x[order[place]][None], debate.tests.inputs[place]
        probability, weights = model(one).softmax(-1)[0, 1].item(), model.attention(one)[0, 0].detach()
        changes = []
        for unit in range(x.shape[1]):
            without = one.clone()
            without[0, unit] = 0
            changes.append(abs(model(without).softmax(-1)[0, 1].item() - probability))
        expected = kendalltau(weights.numpy(), np.float32(changes)).statistic
        assert test.tau_loo == pytest.approx(expected, abs=0.06)  # changes of 1e-8 are ties or none
        shares = weights / weights.sum()
        assert test.entropy == pytest.approx(float(-(shares * shares.log()).sum() / np.log(len(shares))), abs=1e-5)


def test_classes_rows_and_intervals(debate: AttentionDebate) -> None:
    assert sum(len(tests) for tests in debate.classes.values()) == 30 and len(debate.classes) == 2
    frame = debate.to_frame()
    assert set(frame["class"]) == set(debate.classes) and frame["change"].max() <= debate.tests.epsilon
    text = str(next(f for f in debate.findings() if f.title == "Shuffled attention"))
    assert "95 % CI" in text
    page = debate.to_html()
    assert "1.000 – 1.000" not in page and "Property 1" in page and "Property 2" in page
    accuracy, *_ = (m for m in debate.copies.models if m.accuracy == 1)
    assert accuracy.low < 0.95


def test_the_verdict_is_what_most_tests_say(debate: AttentionDebate) -> None:
    first = debate.findings()[0]
    assert (
        first.title == "Verdict" and first.numbers["for"] + first.numbers["against"] + first.numbers["undecided"] == 6
    )
    assert debate.verdict == "supported" and first.level == "ok"  # the marked position alone decides
    still = tuple(replace(t, tau_gradient=0.0, tau_loo=0.0, median_change=0.0, jsd=0.6) for t in debate.tests.inputs)
    against = replace(debate, tests=replace(debate.tests, inputs=still))
    assert against.verdict == "not supported" and against.findings()[0].level == "warning"
    flat = tuple(replace(m, accuracy=0.8, low=0.7, high=0.9) for m in debate.copies.models)
    most = tuple(replace(t, median_change=0.1 * (i % 2), tau_gradient=0.6 * (i % 2)) for i, t in enumerate(still))
    unsure = replace(debate, tests=replace(debate.tests, inputs=most), copies=replace(debate.copies, models=flat))
    assert (unsure.votes["warning"], unsure.votes["note"], unsure.verdict) == (1, 5, "inconclusive")
    few = replace(debate, tests=replace(debate.tests, inputs=still[:29]), copies=replace(debate.copies, validation=29))
    assert few.verdict == "inconclusive" and all(f.level == "note" for f in few.findings())
    assert sum("29 held-out" in f.text for f in few.findings()) == 7


def test_it_is_saved_whole(debate: AttentionDebate, tmp_path: Path) -> None:
    loaded = wf.load(debate.save(tmp_path / "debate.json"))
    assert [str(f) for f in loaded.findings()] == [str(f) for f in debate.findings()]


def test_a_recurrent_model() -> None:
    """The base LSTM learns what its words say; the model's weights have no query."""
    torch.manual_seed(0)
    ids = torch.randint(2, 20, (80, 7))
    labels = (ids[:, 0] > 10).long().tolist()  # the place counts, which words alone do not have
    how = BRIEF | {"guide_epochs": 40, "tested": 3, "attention_at": {"softmax": "b k"}}
    debate = wf.attention_debate(Pooled().eval(), {"input_ids": ids}, labels, validation=0.4, **how)
    accuracy = {m.name: m.accuracy for m in debate.copies.models if m.name in {LSTM, *GUIDES}}
    assert len(accuracy) == 6 and accuracy[LSTM] > accuracy[EVEN] + 0.1
    assert len(debate.tests.inputs) == 3 and all(0 <= t.median_change <= 1 for t in debate.tests.inputs)


class Known(nn.Module):
    """The sign behind the mark is the class. Positions are (mark, loudness, sign); attention has no query.

    ``decides``: attention looks behind the mark, and values are signs. Otherwise it looks at what is loud, and every
    value is the sign that counts, so that no weights change the output.
    """

    def __init__(self, decides: bool, seed: int) -> None:
        super().__init__()
        self.decides = decides
        self.look, self.softmax = nn.Linear(2, 1, bias=False), nn.Softmax(-1)
        self.value, self.classify = nn.Linear(1, 4, bias=False), nn.Linear(4, 2, bias=False)
        noise = torch.randn(4, generator=torch.Generator().manual_seed(seed)) * 0.3
        with torch.no_grad():
            self.look.weight.copy_(torch.tensor([6.0, 0.5] if decides else [0.0, 6.0]) + noise[:2])
            self.value.weight.fill_(0.5)
            self.classify.weight.copy_((torch.tensor([[-1.5], [1.5]]) + noise[2:, None]).expand(2, 4))

    def forward(self, x: Tensor) -> Tensor:
        mark, loud, sign = x.split(1, -1)
        behind = mark.roll(1, 1)
        value = sign if self.decides else (behind * sign).sum(1, keepdim=True).expand_as(sign)
        weights = self.softmax(self.look(torch.cat([behind, loud], -1))[..., 0])
        return self.classify((weights[..., None] * self.value(value)).sum(1))


def behind_a_mark(count: int, seed: int, length: int = 8) -> tuple[Tensor, list[int]]:
    generator = torch.Generator().manual_seed(seed)
    place, rows = torch.randint(0, length - 1, (count,), generator=generator), torch.arange(count)
    mark, loud = torch.zeros(count, length), torch.rand(count, length, generator=generator)
    sign = torch.randint(0, 2, (count, length), generator=generator) * 2.0 - 1
    mark[rows, place] = 1
    return torch.stack([mark, loud, sign], -1), (sign[rows, place + 1] > 0).long().tolist()


def test_attention_that_decides_is_told_from_attention_that_cannot(monkeypatch: pytest.MonkeyPatch) -> None:
    """In ten of ten seeds; ten inputs with a short search are enough for what differs so much."""
    monkeypatch.setattr(module, "jain_wallace", partial(jain_wallace, steps=5, candidates=2))
    monkeypatch.setattr(module, "ENOUGH", 10)
    how: dict[str, Any] = {
        "epochs": 4,
        "lr": 0.1,
        "batch_size": 50,
        "seeds": 1,
        "guide_epochs": 10,
        "lambdas": (1.0,),
        "tested": 10,
    }
    how |= {"permutations": 5, "attention_at": {"softmax": "b k"}}
    found = []
    for seed in range(10):
        x, labels = behind_a_mark(50, seed)
        how |= {"validation": behind_a_mark(100, 1000 + seed), "seed": seed}
        debates = [wf.attention_debate(Known(decides, seed).eval(), x, labels, **how) for decides in (True, False)]
        found.append(tuple(one.verdict for one in debates))
    assert found == [("supported", "not supported")] * 10


def test_options_of_the_training_are_checked_at_once() -> None:
    x, labels = marked(20)
    with pytest.raises(WhyformerError, match="epoch"):
        wf.attention_debate(Finder().eval(), x, labels, epoch=3)
    with pytest.raises(WhyformerError, match="epochs"):
        wf.attention_debate(Finder().eval(), x, labels, epochs=0)
