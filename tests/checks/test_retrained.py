"""Twins of a model that has to look at the marked position, and of one that reads texts."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from typer.testing import CliRunner

import whyformer as wf
from tests.methods.properties import model_of
from tests.models import CASES
from tests.support import folders
from tests.support.threads import beside_another_thread
from whyformer.checks.attention_debate import AttentionDebate
from whyformer.checks.retrained import CONTROL, EVEN, GUIDES, LSTM, MODEL, OWN, SEEDS, UNIFORM, RetrainedAttention
from whyformer.checks.training import ExampleRunner, Examples, Said, adversarial, copy_of, ready
from whyformer.cli.main import app
from whyformer.errors import BadInput, NotOffered, WhyformerError
from whyformer.run.session import LoadedModel

LENGTH, WIDTH = 9, 4


class Finder(nn.Module):
    """One layer of attention at home, weights written down: the first row looks for the mark and reads the sign there.

    Positions are (mark, sign). Values are linear in them, so that a mean over positions cannot know which sign counts.
    """

    def __init__(self) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(2, WIDTH) for _ in range(3))
        self.classify = nn.Linear(WIDTH, 2)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.zero_()
            self.query.bias[0], self.key.weight[0, 0] = 4.0, 2.0
            self.value.weight[0, 1] = 1.0
            self.classify.weight[:, 0] = torch.tensor([-3.0, 3.0])

    def attention(self, x: Tensor) -> Tensor:
        return (self.query(x) @ self.key(x).transpose(-1, -2)).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.classify((self.attention(x) @ self.value(x))[:, 0])

    def uniform(self, x: Tensor) -> Tensor:
        """The same, written with a mean over all positions."""
        return self.classify(self.value(x).mean(1))


def marked(count: int, seed: int = 0) -> tuple[Tensor, list[int]]:
    """Signs everywhere, a mark at one of them: its sign is the label."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.zeros(count, LENGTH, 2)
    x[:, 1:, 1] = torch.randint(0, 2, (count, LENGTH - 1), generator=generator) * 2.0 - 1
    place = torch.randint(1, LENGTH, (count,), generator=generator)
    x[torch.arange(count), place, 0] = 1
    return x, (x[torch.arange(count), place, 1] > 0).long().tolist()


@pytest.fixture(scope="module")
def finder() -> Finder:
    return Finder().eval()


HOW: dict[str, Any] = {"epochs": 6, "lr": 0.1, "batch_size": 30, "guide_epochs": 12, "lambdas": (0.02, 1.0)}


@pytest.fixture(scope="module")
def found(finder: Finder) -> RetrainedAttention:
    x, labels = marked(90, seed=1)
    return wf.retrained_attention(finder, x, labels, validation=marked(60, seed=2), **HOW)


def test_a_task_that_needs_attention(found: RetrainedAttention) -> None:
    accuracy = {m.name: m.accuracy for m in found.models if np.isnan(m.weight)}
    assert accuracy[MODEL] >= 0.95 and accuracy[CONTROL] >= 0.95
    assert accuracy[UNIFORM] <= accuracy[CONTROL] - 0.1
    uniform, own = accuracy[EVEN], accuracy[OWN]
    assert own >= uniform + 0.1  # the marked position, found by the model, is all that the MLP needs
    findings = {f.title: f for f in found.findings()}
    assert (findings["Uniform attention"].level, findings["Guided MLP"].level) == ("ok", "ok")
    assert "needs attention" in findings["Uniform attention"].text


def test_adversaries_look_further_away_the_larger_the_weight(found: RetrainedAttention) -> None:
    assert [m.weight for m in found.adversaries] == [0.0, 0.02, 1.0]
    apart = [m.jsd for m in found.adversaries]
    assert apart[0] < 0.1 < apart[2] <= np.log(2)
    assert found.adversaries[0].tvd < 0.05 < found.adversaries[2].tvd
    own = found.named(MODEL)
    assert (own.tvd, own.jsd) == (0, 0)
    faithful = [m for m in found.adversaries if m.tvd <= found.adversaries[0].tvd + 0.02]
    assert found.named("adversary", found.chosen) == max(faithful, key=lambda m: m.jsd)


def test_a_task_that_needs_no_attention(finder: Finder) -> None:
    """Are most signs positive? A mean over positions says so."""
    x, _ = marked(160)
    labels = (x[..., 1].sum(1) > 0).long().tolist()
    how = HOW | {"epochs": 10, "lambdas": (0.0,), "guide_epochs": 1}
    result = wf.retrained_attention(finder, x, labels, start="fresh", validation=0.75, **how)
    finding = result.findings()[0]
    assert result.named(UNIFORM).accuracy >= max(0.9, result.named(CONTROL).accuracy - 0.02)
    assert finding.level == "warning" and "does not need attention" in finding.text
    assert (result.training, result.validation) == (40, 120)
    few = replace(result, validation=30).findings()[0]  # the same accuracies, with wider intervals
    assert few.level == "note" and "Inconclusive" in few.text


def test_verdicts_are_no_larger_than_what_was_seen(finder: Finder) -> None:
    """Few held-out examples, an accuracy of 1, attention that did not move: each is named, and no verdict follows."""
    x, labels = marked(80, seed=8)
    brief = {"epochs": 1, "guide_epochs": 1, "lambdas": (0.1,), "lr": 1e-6}
    result = wf.retrained_attention(finder, x, labels, validation=marked(30, seed=9), **brief)
    model = result.named(MODEL)
    # Wilson 1927: of 30 right among 30, the lower end is 30 / (30 + 1.96²).
    assert (model.accuracy, model.high) == (1, 1) and model.low == pytest.approx(30 / (30 + 1.96**2), abs=1e-3)
    assert not any("1.000 to 1.000" in finding.text for finding in result.findings())
    unmoved = {f.title: f for f in result.findings()}["Model-consistent adversary"]
    assert unmoved.level == "note" and "too briefly" in unmoved.text and "depend" not in unmoved.text
    for finding in replace(result, validation=29).findings():
        assert finding.level == "note" and "29 held-out examples are too few" in finding.text
    moved = [replace(m, jsd=0.5, tvd=0.4) if m.weight == 0.1 else m for m in result.models]
    paid = {f.title: f for f in replace(result, models=tuple(moved), chosen=0.0).findings()}
    assert "depend on each other" in paid["Model-consistent adversary"].text


def test_copies_that_learned_less_than_the_model_decide_nothing(found: RetrainedAttention) -> None:
    """An adversary far from the model's attention, and from its output, is no model with the same output."""
    titles = ("Uniform attention", "Model-consistent adversary")
    alike = [replace(m, jsd=0.6) if m.weight == found.chosen else m for m in found.models]
    assert {f.title: f for f in replace(found, models=tuple(alike)).findings()}[titles[1]].level == "warning"
    for accuracy, says in ((0.5, "most frequent class"), (0.8, "Worse than the model")):
        short = {"accuracy": accuracy, "low": accuracy - 0.1, "high": accuracy + 0.1, "tvd": 0.3}
        models = [replace(m, **short) if m.name == CONTROL or m.weight >= 0 else m for m in alike]
        findings = {f.title: f for f in replace(found, models=tuple(models), majority=0.55).findings()}
        for title in titles:
            assert findings[title].level == "note" and says in findings[title].text
            assert "too briefly" in findings[title].text
    dearer = [replace(m, jsd=0.5, tvd=0.05) if m.weight == 1 else replace(m, jsd=0.1) for m in found.models]
    undecided = replace(found, models=tuple(dearer), chosen=0.0).findings()[-1]
    assert undecided.level == "note" and "inconclusive" in undecided.text


def test_fresh_weights_are_drawn_as_the_model_was(tokenizer: Any) -> None:
    """BERT's embeddings are small, as its configuration says; parameters that nobody draws change as well."""
    model = folders.bert()
    model.mark = nn.Parameter(torch.arange(6.0))
    with ready(copy_of(LoadedModel(model, tokenizer)), 0, "fresh") as parameters:
        drawn = dict(zip((name for name, _ in model.named_parameters()), parameters, strict=True))
        words = drawn["bert.embeddings.word_embeddings.weight"]
        assert float(words.detach().std()) == pytest.approx(model.config.initializer_range, rel=0.2)
        for name, old in model.named_parameters():
            assert old.detach().std() == 0 or not torch.equal(old, drawn[name])


def test_the_model_is_left_as_it_is(finder: Finder) -> None:
    x, labels = marked(20, seed=3)
    finder.train()
    finder.key.weight.requires_grad_(False)
    before = {name: p.clone() for name, p in finder.state_dict().items()}
    random = torch.get_rng_state()
    how = HOW | {"epochs": 1, "guide_epochs": 1}
    with beside_another_thread():
        results = [wf.retrained_attention(finder, (x,), labels, **how) for _ in range(2)]
    assert all(torch.equal(before[name], p) for name, p in finder.state_dict().items())
    assert finder.training and not finder.key.weight.requires_grad and finder.query.weight.requires_grad
    assert torch.equal(random, torch.get_rng_state())
    assert results[0].rows()[1:3] == results[1].rows()[1:3]  # NaN apart, the same seed gives the same
    assert results[0].adversaries == results[1].adversaries
    finder.eval()
    finder.key.weight.requires_grad_(True)


def examples(x: Tensor, labels: list[int]) -> Examples:
    rows = list(range(len(x)))
    return Examples((x,), len(x), labels, rows, rows, 7)


def test_frozen_attention_is_uniform(finder: Finder) -> None:
    x, labels = marked(12, seed=4)
    twin = copy_of(LoadedModel(finder))
    with ready(twin, 0, "model"):
        frozen = ExampleRunner(twin, examples(x, labels), uniform=True)
        run = frozen.run(range(12))
        logits, shown = frozen.answers(run)
        torch.testing.assert_close(logits, finder.uniform(x))
        torch.testing.assert_close(shown, torch.full_like(shown, 1 / LENGTH))
        logits[:, 1].sum().backward()
        slopes = {name: p.grad for name, p in twin.model.named_parameters()}
    assert slopes["query.weight"] is None or not slopes["query.weight"].any()  # nothing about attention is learned
    assert slopes["value.weight"] is not None and slopes["value.weight"].any()


def test_what_is_shown_is_the_row_that_is_read(finder: Finder) -> None:
    x, labels = marked(10, seed=5)
    rows = finder.attention(x)[:, 0].detach()
    loaded = LoadedModel(finder)
    with loaded.borrowed():
        said = ExampleRunner(loaded, examples(x, labels)).said(range(10), values=True)
    torch.testing.assert_close(torch.stack([said.attention[i] for i in range(10)]), rows)
    torch.testing.assert_close(torch.stack([said.values[i] for i in range(10)]), finder.value(x).detach())
    torch.testing.assert_close(torch.stack([said.probability[i] for i in range(10)]), finder(x).softmax(-1).detach())


def test_the_loss_of_an_adversary(finder: Finder) -> None:
    x, labels = marked(2, seed=6)
    theirs = Said({0: torch.tensor([0.25, 0.75]), 1: torch.tensor([1.0, 0.0])}, {})
    theirs.attention = {i: torch.full((LENGTH,), 1 / LENGTH) for i in range(2)}
    loaded = LoadedModel(finder)
    with loaded.borrowed():
        run = ExampleRunner(loaded, examples(x, labels)).run([0, 1])
        shown = torch.zeros(2, LENGTH)
        shown[0, 3], shown[1] = 1, 1 / LENGTH
        value = adversarial(theirs, 0.5)(run, torch.zeros(2, 2), shown, [0, 1])
    assert float(value) == pytest.approx(((0.25 - 0.5 * np.log(LENGTH)) + 0.5) / 2, abs=1e-5)


TEXTS = ["the movie was so good", "i hate the boring book", "a great film", "so dull", "i like it", "it was bad"] * 2


def test_texts(tokenizer: Any) -> None:
    how: dict[str, Any] = {"epochs": 1, "guide_epochs": 1, "lambdas": (0.1,), "batch_size": 4}
    found = wf.retrained_attention(folders.bert(), TEXTS, ["positive", "negative"] * 6, processor=tokenizer, **how)
    assert 0 < found.cost.backwards < found.cost.forwards
    frame = found.to_frame()
    assert list(frame["model"]) == [MODEL, CONTROL, SEEDS, UNIFORM, "adversary", "adversary", LSTM, *GUIDES]
    assert frame["lambda"].notna().sum() == 2


class Pooled(nn.Module):
    """A recurrent classifier that weighs its states by scores without a query (Jain & Wallace 2019)."""

    def __init__(self, marked: bool = False) -> None:
        super().__init__()
        self.marked = marked
        self.embedding, self.encode = nn.Embedding(20, 6), nn.LSTM(6, 4, batch_first=True, bidirectional=True)
        self.score, self.softmax, self.decide = nn.Linear(8, 1), nn.Softmax(-1), nn.Linear(8, 2)

    def forward(self, input_ids: Tensor) -> Tensor:
        states = self.encode(self.embedding(input_ids))[0]
        scores = self.score(states)[..., 0]
        weights = wf.mark_attention(scores.softmax(-1), "b k") if self.marked else self.softmax(scores)
        return self.decide((weights[..., None] * states).sum(1))


def test_a_recurrent_model_whose_weights_have_no_query() -> None:
    torch.manual_seed(0)
    model = Pooled().eval()
    ids = torch.randint(2, 20, (40, 7))
    loaded, labels = LoadedModel(model, attention_at={"softmax": "b k"}), (ids[:, 0] > 10).long().tolist()
    with loaded.borrowed():
        said = ExampleRunner(loaded, examples(ids, labels)).said(range(10), values=True)
        even = ExampleRunner(loaded, examples(ids, labels), uniform=True).said(range(10))
    states = model.encode(model.embedding(ids[:10]))[0]
    weights = model.softmax(model.score(states)[..., 0]).detach()
    torch.testing.assert_close(torch.stack([said.attention[i] for i in range(10)]), weights)
    torch.testing.assert_close(torch.stack([said.values[i] for i in range(10)]), model.embedding(ids[:10]).detach())
    marked = Pooled(marked=True).eval()  # no module gives the weights
    marked.load_state_dict(model.state_dict())
    for explained, one in zip(
        wf.explain(marked, {"input_ids": ids[:3]}, method="raw_attention"), weights, strict=False
    ):
        np.testing.assert_allclose(explained.scores[: ids.shape[1]], one, atol=1e-6)
    flat = model.decide(states.mean(1)).softmax(-1).detach()
    torch.testing.assert_close(torch.stack([even.probability[i] for i in range(10)]), flat)
    how: dict[str, Any] = {"epochs": 1, "guide_epochs": 1, "lambdas": (0.1,), "seeds": 1}
    result = wf.retrained_attention(loaded, {"input_ids": ids}, labels, **how)
    assert np.isnan(result.named(OWN).jsd)


def test_special_tokens_get_nothing(tokenizer: Any) -> None:
    loaded = LoadedModel(folders.bert(), tokenizer)
    with loaded.borrowed():
        reader = ExampleRunner(loaded, Examples((TEXTS,), 12, [], list(range(12)), [], 3), uniform=True)
        said = reader.said([0, 2])
    for row in (0, 2):
        words = said.ordinary[row]
        assert not words[0] and not words[-1]
        torch.testing.assert_close(said.attention[row], words / words.sum())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"labels": None}, "one per input"),
        ({"labels": [0, 1]}, "2 labels for 20 inputs"),
        ({"labels": [1] * 20}, "all labels are 1"),
        ({"labels": [0, 7] * 10}, "labels: .*7"),
        ({"labels": ["yes", "no"] * 10}, "labels: .*yes"),
        ({"labels": [0, None] * 10}, "labels\\[1\\] is None"),
        ({"inputs": marked(4)[0], "labels": [0, 1, 0, 1]}, "too few"),
        ({"validation": (marked(4)[0], [0])}, "1 labels for 4 inputs"),
    ],
)
def test_what_cannot_be_trained_on_is_refused_at_once(finder: Finder, change: dict[str, Any], says: str) -> None:
    x, labels = marked(20)
    with pytest.raises(BadInput, match=says):
        wf.retrained_attention(finder, **({"inputs": x, "labels": labels} | change))


def test_models_that_cannot_be_trained_are_refused(finder: Finder) -> None:
    """Neither classifiers over one stream, nor with logits."""
    for name in ("bart", "swin"):
        inputs = {k: torch.cat([v] * 5) for k, v in CASES[name].inputs().items()}  # type: ignore[union-attr]
        with pytest.raises(WhyformerError):
            wf.retrained_attention(model_of(name), inputs, [0, 1] * 5)
    x, labels = marked(20)
    with pytest.raises(NotOffered, match="remove its final softmax or sigmoid"):
        wf.retrained_attention(nn.Sequential(finder, nn.Softmax(-1)), x, labels)


def test_the_command(tmp_path: Path, tokenizer: Any) -> None:
    folder = tmp_path / "bert"
    folders.bert().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    file = tmp_path / "train.tsv"
    file.write_text("".join(f"{text}\t{i % 2}\n" for i, text in enumerate(TEXTS)), encoding="utf-8")
    runner = CliRunner()
    command = ["check", "--model", str(folder), "--train", str(file), "--epochs", "1", "--json"]
    ran = runner.invoke(app, command)
    assert ran.exit_code == 0, ran.output
    assert json.loads(ran.stdout)["what"] == AttentionDebate.what
    file.write_text("no label here\n", encoding="utf-8")
    refused = runner.invoke(app, command)
    assert refused.exit_code != 0 and "line 1" in refused.output
    both = runner.invoke(app, [*command, "a text"])
    assert both.exit_code != 0 and "--train" in both.output


# A copy fine-tuned on masked inputs: it minds absent parts less, the model stays as it was, and compare asks it.


PARTS = 8


class Nervous(nn.Module):
    """Says which sign the rows have, but shouts "other" as soon as one of them is missing (all zeros)."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(2, 1, batch_first=True, bias=False)
        self.read, self.missing = nn.Linear(2, 2, bias=False), nn.Linear(1, 2, bias=False)
        with torch.no_grad():
            self.attention.in_proj_weight.copy_(torch.cat([torch.zeros(4, 2), torch.eye(2)]))
            self.attention.out_proj.weight.copy_(torch.eye(2))
            self.read.weight.copy_(torch.tensor([[2.0, 0], [-2.0, 0]]))
            self.missing.weight.copy_(torch.tensor([[-3.0], [3.0]]))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        mixed, _ = self.attention(x, x, x)
        gone = (x.abs().sum(-1) == 0).any(1).float()[:, None]
        return self.read(mixed[:, 0]) + self.missing(gone)


def signed_rows(count: int, seed: int) -> torch.Tensor:
    """All are of class 0: positive signs, beside a number that says nothing."""
    generator = torch.Generator().manual_seed(seed)
    return torch.stack([torch.ones(count, PARTS), torch.rand(count, PARTS, generator=generator) + 0.5], -1)


def test_the_copy_learns_to_do_without_a_part_and_the_model_stays() -> None:
    model = Nervous().eval()
    before = {k: v.clone() for k, v in model.state_dict().items()}
    surrogate = wf.masked_surrogate(model, {"x": signed_rows(20, 0)}, beta=0.2, epochs=8, lr=0.1, seed=1)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in model.parameters()) and not surrogate.model.training
    assert (surrogate.trained_on, surrogate.measured_on) == (16, 4)
    assert surrogate.before < 0.7 and surrogate.after == 1

    # On the model itself a missing row turns the answer over, whichever it is; by the copy it does not.
    how: dict[str, Any] = {"method": ["occlusion"], "metric": {"f_fidelity_plus": {"beta": 0.2}, "single_deletion": {}}}
    itself = wf.compare(model, {"x": signed_rows(3, 1)}, **how)
    by_copy = wf.compare(model, {"x": signed_rows(3, 1)}, surrogate=surrogate.model, **how)
    falls, less = (np.mean(r.values["f_fidelity_plus"]["occlusion"]) for r in (itself, by_copy))
    assert falls > 0.5 and less < 0.2
    assert any("f_fidelity_plus and single_deletion: measured" in warning for warning in itself.warnings)
    assert not any("fine-tuning" in warning for warning in by_copy.warnings)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"inputs": {"x": signed_rows(3, 0)}}, "too few"),
        ({"labels": [0, 1]}, "2 labels for 9 inputs"),
        ({"lr": 1e30, "epochs": 9}, "diverged|labels"),
    ],
)
def test_mistakes_about_a_surrogate_are_named(how: dict[str, Any], says: str) -> None:
    with pytest.raises((BadInput, NotOffered), match=says):
        wf.masked_surrogate(Nervous().eval(), how.pop("inputs", {"x": signed_rows(9, 0)}), **how)
