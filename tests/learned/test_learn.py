"""wf.learn: what it learns, where the result is accepted, its file, and what is refused."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import save

import whyformer as wf
from tests.learned.small import Additive, bert, learned_bert, texts, tokenizer
from tests.references.maskings import averaged
from whyformer.engines.perturbation.maskings import random_maskings
from whyformer.errors import BadInput, NonFinite, NotOffered, UnknownName
from whyformer.evaluate.games import games_of
from whyformer.learned import learning
from whyformer.learned.learned import CHECKSUM, HEADER, _checksum, fingerprint_of
from whyformer.learned.network import Network, drawn_masks
from whyformer.loan.spread import Peak, measured_on_cpu


def test_an_additive_model_is_learned_exactly() -> None:
    model = Additive()
    learned = wf.learn(model, texts(40), tokenizer(), forwards=800, linear=True, progress=False)
    assert learned.certificate.r2[0] > 0.999 and learned.certificate.rank[0] > 0.9  # equal words tie
    exact = wf.explain(model, "the film was very funny", tokenizer(), method="shap")
    own = wf.explain(model, "the film was very funny", tokenizer(), method=learned)
    assert np.allclose(own.scores, exact.scores, atol=1e-2 * np.abs(exact.scores).max())


def test_one_pass_explains_and_the_certificate_is_on_the_result() -> None:
    model, learned = learned_bert()
    one = wf.explain(model, "the film was great", tokenizer(), method=learned)
    assert (one.cost.forwards, one.cost.backwards) == (1, 1)
    assert one.method == learned.name and one.signed
    assert any("10 held-out inputs" in warning for warning in one.warnings)
    assert not one.scores[list(one.units.special)].any() and one.scores.any()
    beside = wf.explain(model, ["the film was great", "a very long sad story"], tokenizer(), method=learned)
    assert np.allclose(beside[0].scores, one.scores, atol=1e-4)


def test_its_average_over_maskings_is_that_of_single_passes_at_the_declared_cost() -> None:
    model, learned = learned_bert()
    tokens, how = tokenizer()(["the film was great"], return_tensors="pt"), {"method": learned, "target": 1}
    maskings = np.pad(random_maskings(4, 4, seed=0), ((0, 0), (1, 1)), constant_values=True)

    def scores_of(kept: Any) -> np.ndarray:
        ids = torch.where(torch.tensor(kept)[None], tokens["input_ids"], tokenizer().mask_token_id)
        return wf.explain(model, {**tokens, "input_ids": ids}, tokenizer(), **how)[0].scores

    scores, _ = averaged(scores_of, maskings)
    (found,) = wf.explain(model, ["the film was great"], tokenizer(), maskings=4, **how)
    assert np.allclose(found.scores, scores, atol=1e-4 * np.abs(scores).max())
    estimate = wf.estimate(model, "the film was great", tokenizer(), method=learned, maskings=4)
    assert (found.cost.forwards, found.cost.backwards) == (estimate.forwards, estimate.backwards) == (5, 4)


def test_the_target_enters() -> None:
    model, learned = learned_bert()
    scores = [wf.explain(model, "a good story", tokenizer(), method=learned, target=t).scores for t in (0, 1, 2)]
    assert not np.allclose(scores[0], scores[1]) and not np.allclose(scores[1], scores[2])


def test_examples_of_the_second_class_hold_its_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    """One example per class: the same masks, and for all features the centred logits of the two most likely."""
    model, seen = bert(), []
    monkeypatch.setattr(learning, "trained", lambda some, others, **options: seen.extend(some) or _stop())
    with pytest.raises(_Stopped):
        wf.learn(model, texts(), tokenizer(), forwards=800, progress=False)
    pairs = [(a, b) for a, b in itertools.pairwise(seen) if a.masks_MP is b.masks_MP]
    assert pairs
    with torch.no_grad():
        logits = {
            tuple(sorted((said - said.mean()).topk(2).values.tolist()))
            for text in texts()
            for said in model(**tokenizer()(text, return_tensors="pt")).logits
        }
    for first, second in pairs:
        assert not np.allclose(first.values_M, second.values_M) and first.whole > second.whole
        assert min(abs(low - second.whole) + abs(high - first.whole) for low, high in logits) < 1e-4


def test_variants_of_different_inputs_share_batches() -> None:
    """As on a GPU: fewer calls of the model, the same answers, and every variant is counted once."""
    explainer, some = wf.Explainer(bert(), tokenizer()), texts(12)
    said, calls, counted = {}, {}, {}
    for together in (False, True):
        with games_of(explainer, some, seed=0, runner_up=True, together=together) as games:
            drawn = {n: drawn_masks(len(p), 8, np.random.default_rng(n)) for n, p in enumerate(games.parts)}
            sizes: list[int] = []
            hook = games.modality.model.register_forward_pre_hook(lambda *_, sizes=sizes: sizes.append(1))
            said[together] = games.ask(drawn)
            again = games.ask(drawn)
            hook.remove()
            assert all(np.array_equal(again[n], said[together][n]) for n in drawn)
            calls[together], counted[together] = len(sizes), games.forwards
    assert calls[True] < calls[False] and counted[True] == counted[False]
    for number, answers in said[False].items():
        assert answers.shape[1] == 4 and np.ptp(answers[:, 3]) > 0
        assert np.allclose(answers, said[True][number], atol=1e-5)


class _Stopped(Exception): ...


def _stop() -> None:
    raise _Stopped


def test_it_is_accepted_wherever_a_method_is(tmp_path: Path) -> None:
    model, learned = learned_bert()
    path = learned.save(tmp_path / "bert.learned")
    assert path.stat().st_size < 20e6
    some = texts(5, seed=3)
    by_method = wf.explain(model, some, tokenizer(), method=[learned, "grad_sam"])
    assert set(by_method) == {learned.name, "grad_sam"}
    by_file = wf.explain(model, some, tokenizer(), method=str(path))
    assert np.allclose(by_file[2].scores, by_method[learned.name][2].scores, atol=1e-4)
    for given in (learned, str(path), {"method": learned}):
        compared = wf.compare(model, some, tokenizer(), method=[given, "grad_sam"], metric="comprehensiveness")
        assert learned.name in {row.name for row in compared.rows}
    assert wf.Explainer(model, tokenizer()).estimate(some, method=learned).forwards == 1
    assert learned.name not in wf.list_methods()
    assert wf.load(path).name == learned.name


def test_as_a_guide_of_shap(tmp_path: Path) -> None:
    model, learned = learned_bert()
    path = learned.save(tmp_path / "bert.learned")
    text = "the old film was very very long and not very good"
    options: dict[str, Any] = {"method": "shap", "evaluations": 8}
    guided = wf.explain(model, text, tokenizer(), guide=learned, **options)
    again = wf.explain(model, text, tokenizer(), guide=str(path), **options)
    assert np.allclose(guided.scores, again.scores, atol=1e-5)
    assert guided.options["guide"] == learned.name
    assert guided.errors is not None and guided.errors.any()
    assert not np.allclose(
        guided.scores, wf.explain(model, text, tokenizer(), algorithm="regression", **options).scores
    )


def test_the_automatic_guide_is_a_certified_learned_method_of_this_model() -> None:
    model, learned = learned_bert()
    text = "the old film was very very long and not very good"

    def guide(model: torch.nn.Module) -> Any:
        return wf.explain(model, text, tokenizer(), method="shap", evaluations=8, guide="auto").options["guide"]

    doubtful = replace(learned, certificate=_with_lead(learned.certificate, -0.1))
    assert guide(model) == "attn_lrp+alone", doubtful.certificate.verdict
    certified = replace(learned, certificate=_with_lead(learned.certificate, 0.1))
    assert certified.certificate.better
    assert guide(model) == certified.name
    assert guide(bert(1)) == "attn_lrp+alone"  # other weights


def _with_lead(certificate: Any, lead: float) -> Any:
    """The certificate, with this lead over every other method."""
    own, *others = certificate.methods
    return replace(certificate, methods=(own, *(replace(m, ahead=(lead, lead / 2, 2 * lead)) for m in others)))


@pytest.mark.parametrize("change", ["weights", "data", "buffer"])
def test_another_model_is_refused(change: str) -> None:
    _, learned = learned_bert()
    model = bert()
    wf.explain(model, "good", tokenizer(), method=learned)  # the same weights
    with torch.no_grad():
        if change == "weights":
            model.classifier.weight[0, 0] += 1
        elif change == "data":
            model.classifier.weight.data += 1  # which torch does not count
            wf.Explainer(model).refresh()
        else:
            model.bert.embeddings.position_ids += 0  # the same numbers
    if change == "buffer":
        wf.explain(model, "good", tokenizer(), method=learned)
        return
    with pytest.raises(BadInput, match="other weights"):
        wf.explain(model, "good", tokenizer(), method=learned)


def test_fingerprints_are_of_the_weights_alone() -> None:
    assert fingerprint_of(bert()) == fingerprint_of(bert())
    assert fingerprint_of(bert()) != fingerprint_of(bert(1))


def test_other_questions_are_refused() -> None:
    model, learned = learned_bert()
    for error, words, asked in (
        (BadInput, "units", {"units": "word"}),
        (BadInput, "scalar", {"scalar": "probability"}),
        (NotOffered, "one class", {"target": (0, 1)}),
    ):
        with pytest.raises(error, match=words):
            wf.explain(model, "a good story", tokenizer(), method=learned, **asked)
    with pytest.raises(UnknownName, match="path"):
        wf.explain(model, "good", tokenizer(), method="learned:00000000")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    model, learned = learned_bert()
    data = learned.save(tmp_path / "bert.learned").read_bytes()
    flipped = bytearray(data)
    flipped[-5] ^= 255
    for name, content in (
        ("cut", data[: len(data) // 2]),
        ("flipped", bytes(flipped)),
        ("other", b"PK"),
        ("empty", b""),
    ):
        path = tmp_path / f"{name}.learned"
        path.write_bytes(content)
        with pytest.raises(BadInput, match="not a saved learned method"):
            wf.explain(model, "good", tokenizer(), method=str(path))
    with pytest.raises(BadInput, match="no file"):
        wf.explain(model, "good", tokenizer(), method=str(tmp_path / "none.learned"))


@pytest.mark.parametrize("heads", [[300_000_000], [-3], [2**62], [1] * 1000])
def test_sizes_are_compared_with_the_weights_before_memory_is_taken(heads: list[int], tmp_path: Path) -> None:
    _, learned = learned_bert()
    weights = {name: np.zeros(1, np.float32) for name in ("states_mean", "head_weights")}
    header = json.dumps({k: v for k, v in learned.to_dict().items() if k != "weights"} | {"heads": heads})
    metadata = {HEADER: header, CHECKSUM: _checksum(header, weights)}
    (small := tmp_path / "x.learned").write_bytes(save(weights, metadata))
    with measured_on_cpu():
        peak = Peak(torch.device("cpu"))
    with pytest.raises(BadInput, match="its weights are not those of its network"):
        wf.load(small)
    assert peak.bytes < 100e6


def test_a_table_of_heads_is_not_larger_than_the_file_justifies(tmp_path: Path) -> None:
    """One layer of many heads among many of one: a file of 2 MB took 15 GB."""
    _, learned = learned_bert()
    heads = [1] * 1000 + [1000]
    weights = {name: tensor.numpy() for name, tensor in Network(heads, 0, linear=True).state_dict().items()}
    facts = {"heads": heads, "linear": True}
    header = json.dumps({k: v for k, v in learned.to_dict().items() if k != "weights"} | facts)
    (small := tmp_path / "x.learned").write_bytes(save(weights, {HEADER: header, CHECKSUM: _checksum(header, weights)}))
    with pytest.raises(BadInput, match="a table of its heads would be far larger"):
        wf.load(small)


def test_plain_data_round_trips(tmp_path: Path) -> None:
    _, learned = learned_bert()
    for ending in ("json", "npz", "learned"):
        back = wf.load(learned.save(tmp_path / f"back.{ending}"))
        assert back.name == learned.name and back.certificate == learned.certificate, ending
        assert back.distance == learned.distance


# Errors before long work


def test_too_few_inputs() -> None:
    with pytest.raises(BadInput, match=r"at least 30 inputs \(got 29\)"):
        wf.learn(bert(), texts(29), tokenizer())
    with pytest.raises(BadInput, match="at least 30"):
        wf.learn(bert(), "one text", tokenizer())


def test_constant_and_broken_models() -> None:
    constant, broken = bert(), bert()
    with torch.no_grad():
        constant.classifier.weight.zero_()
        broken.classifier.weight.fill_(torch.nan)
    with pytest.raises(BadInput, match="nothing to learn"):
        wf.learn(constant, texts(), tokenizer(), progress=False)
    with pytest.raises(NonFinite):
        wf.learn(broken, texts(), tokenizer(), progress=False)


def test_models_from_outside_are_not_offered() -> None:
    def says(prompts: Any) -> Any:
        raise AssertionError("nothing is asked")

    with pytest.raises((NotOffered, BadInput)):
        wf.learn(says, texts(), progress=False)


def test_a_broken_network_says_so_and_is_not_recommended() -> None:
    model, learned = learned_bert()
    generator = np.random.default_rng(0)
    weights = {k: generator.permutation(v.ravel()).reshape(v.shape) for k, v in learned.weights.items()}
    weights["score.weight"] = generator.normal(size=weights["score.weight"].shape).astype(np.float32)
    shuffled = replace(learned, weights=weights)
    from whyformer.explainer import CoreExplainer
    from whyformer.learned.learning import certify
    from whyformer.options import Evaluation

    asked = Evaluation(progress=False)
    certificate = certify(CoreExplainer(model, tokenizer()), shuffled.name, texts(12, seed=5), asked)
    assert not certificate.better and "Not better than" in certificate.verdict and certificate.r2[0] < 0.5
    broken = replace(shuffled, certificate=certificate)
    one = wf.explain(model, "a good long story", tokenizer(), method=broken)
    assert any("not recommended" in warning for warning in one.warnings)
    found = wf.recommend(model, texts(8, seed=6), tokenizer(), method=[broken, "grad_sam"], spaces=[], progress=False)
    assert "Not better than" in found.excluded[broken.name]


def test_resumes_from_its_cache(tmp_path: Path) -> None:
    model, _ = learned_bert()
    asked: dict[str, Any] = {"forwards": 800, "progress": False, "cache": tmp_path, "linear": True}
    first = wf.learn(model, texts(), tokenizer(), **asked)
    again = wf.learn(model, texts(), tokenizer(), **asked)
    assert again.name == first.name and again.forwards < first.forwards / 2
    assert "Weight of each head" in first.to_html()


def test_away_from_home() -> None:
    model, learned = learned_bert()
    usual = wf.explain(model, texts(10, seed=9), tokenizer(), method=learned)
    assert sum(any("unlike those" in w for w in e.warnings) for e in usual) <= 2
    narrow = replace(learned, distance=0.01)
    one = wf.explain(model, "a good story", tokenizer(), method=narrow)
    assert any("unlike those" in w for w in one.warnings)
    replace(learned)  # registered as it was


def test_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, learned = learned_bert()
    learned.show()
    shown = capsys.readouterr().out
    assert "held-out" in shown and "two_ended" in shown and "comprehensiveness" in shown
    assert learned.certificate.verdict.split(":")[0] in " ".join(shown.split())
    assert "Certificate" in learned.to_html()
    assert len(learned.to_frame()) == len(learned.certificate.methods)
