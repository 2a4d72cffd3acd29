"""wf.check as a whole: findings, files, pictures, warnings on explanations; and the model as it was."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf

import whyformer as wf
from tests.checks.quick import EVERYTHING, QUICK, TEXTS, counted_calls, plain_of
from tests.methods.properties import model_of
from tests.models import CASES, LEAKY, WITHOUT_ATTENTION
from tests.models.case import seeded
from tests.models.hf import ENCODER
from tests.support import folders
from whyformer.checks.check import CHECKS, RESULTS, Sinks
from whyformer.checks.exam import Finding
from whyformer.checks.invariance import Invariance
from whyformer.errors import BadInput, NonFinite


def checked_bert(**how: Any) -> wf.CheckUp:
    """A check-up of two inputs of token ids."""
    return wf.check(model_of("bert"), CASES["bert"].inputs(), **how)


def test_every_check_has_its_result_and_says_something(found: wf.CheckUp) -> None:
    assert set(found.results) == set(CHECKS) == set(RESULTS)
    assert {f.check for f in found.findings} == set(CHECKS)
    assert all(isinstance(result, RESULTS[name]) for name, result in found.results.items())
    order = [f.level for f in found.findings]
    assert order == sorted(order, key=["warning", "note", "ok"].index)


def test_the_model_is_handed_back_unchanged(tokenizer: Any) -> None:
    model = folders.bert().train()
    model.bert.pooler.requires_grad_(False)
    before = {k: v.clone() for k, v in model.state_dict().items()}
    flags = [(p.requires_grad, p.grad) for p in model.parameters()]
    torch.manual_seed(7)
    state = torch.get_rng_state()
    changing = ("randomisation", "invariance", "stability", "jain_wallace")  # weights, hooks, embeddings, attention
    wf.check(model, TEXTS[0], processor=tokenizer, checks={name: QUICK.get(name, {}) for name in changing})
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(v, before[k]) for k, v in model.state_dict().items())
    assert [(p.requires_grad, p.grad) for p in model.parameters()] == flags
    assert all(m.training for m in model.modules())
    assert not any(m._forward_hooks or m._forward_pre_hooks for m in model.modules())


def test_findings_travel_with_an_explanation(tokenizer: Any) -> None:
    explanation = wf.explain(folders.bert(), TEXTS[0], processor=tokenizer)
    warned = wf.CheckUp("m", "x", 1, (Finding("warning", "sinks", "Sinks", "beware"), Finding("ok", "a", "b", "c")))
    attached = warned.attach(explanation)
    assert attached.warnings == (*explanation.warnings, "check-up: Sinks: beware")
    assert warned.attach(attached).warnings == attached.warnings  # once is enough
    assert "Sinks: beware" in attached.to_html() and "Sinks: beware" not in explanation.to_html()
    noted = wf.CheckUp("m", "x", 1, (Finding("note", "sinks", "Sinks", "mind"),))
    assert noted.attach(explanation).warnings == explanation.warnings
    assert "check-up: Sinks: mind" in noted.attach(explanation, notes=True).warnings
    with pytest.raises(ValueError, match="level"):
        Finding("bad", "sinks", "t", "x")


def test_a_shift_that_changes_sizes_and_no_order_is_told_as_that() -> None:
    _, shifted = Invariance("attn_lrp", 0.0, 0.0, 0.25, 1.0).findings()
    assert shifted.level == "warning" and "changes scores by up to 25.0% of the largest one" in shifted.text


def test_what_cannot_be_checked_is_said_and_the_rest_goes_on() -> None:
    case = WITHOUT_ATTENTION["resnet"]
    found = wf.check(case.build(None), case.inputs(), method="saliency", checks={"jain_wallace": {}, "invariance": {}})
    assert [f.check for f in found.findings] == ["jain_wallace", "invariance", "invariance"]
    assert "was not run" in found.findings[0].title
    leaky = LEAKY["token_mixing"]
    found = wf.check(leaky.build(None), leaky.inputs(), method="generic_attention", checks=["capture_audit", "sinks"])
    assert found.findings[0].title == "Leak"
    assert found.findings[1].title == "sinks was not run"


def test_a_weight_of_nan_is_refused() -> None:
    """A comparison with NaN is false, so that checks would pass."""
    model = folders.bert()
    model.bert.encoder.layer[0].attention.self.query.weight.data[0, 0] = torch.nan
    with pytest.raises(NonFinite, match=r"the weight bert\.encoder\.layer\.0\..*query\.weight holds NaN"):
        wf.check(model, CASES["bert"].inputs(), checks=["sinks"])


def test_a_number_has_no_class_that_could_change() -> None:
    config = hf.BertConfig(**(ENCODER | {"num_labels": 1}))
    model = seeded(lambda: hf.BertForSequenceClassification(config))
    checks = {"serrano_smith": {"layers": "all"}, "stability": {"noise": 1.0, "draws": 1}}
    said = {f.title: f for f in wf.check(model, CASES["bert"].inputs(), method="raw_attention", checks=checks).findings}
    assert "cannot change to another class" in said["serrano smith was not run"].text
    assert "predictions stay" not in said["Noise"].text


@pytest.mark.parametrize(("share", "level"), [(0.3, "ok"), (0.7, "note"), (0.995, "warning")])
def test_special_tokens_that_have_nearly_all_of_it_are_a_warning(share: float, level: str) -> None:
    (finding,) = Sinks("x", share, 0.2, ()).findings()
    assert finding.level == level and ("still usable" in finding.text) == (level == "note")


def test_an_interrupted_check_up_keeps_what_is_done(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(exam: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setitem(CHECKS, "invariance", interrupted)
    found = checked_bert(checks=["sinks", "invariance", "stability"])
    assert list(found.results) == ["sinks"]
    assert "not run: invariance, stability" in found.of("note")[-1].text
    with pytest.raises(KeyboardInterrupt):
        checked_bert(checks=["invariance"])


def test_one_bar_at_a_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(checked_bert(checks=["stability", "sinks"], progress=True).results) == 2
    assert "noise" not in capsys.readouterr().err


@pytest.mark.parametrize("as_frame", [True, False])
def test_rows_of_a_table(as_frame: bool) -> None:
    import pandas as pd

    from tests.tables.models import LAYOUTS, rows, table

    inputs = pd.DataFrame(rows(2)) if as_frame else rows(1)[0]
    some = ("jain_wallace", "stability", "class_dependence") if as_frame else ("capture_audit",)
    checks = {name: QUICK.get(name, {}) for name in (*some, "invariance")}
    how = {"method": "integrated_gradients", "checks": checks}
    found = wf.check(LAYOUTS["rtdl"].build(), inputs, processor=table(), **how)
    assert set(found.results) == set(checks)
    assert found.inputs == (2 if as_frame else 1)
    assert "was not run" not in " ".join(f.title for f in found.findings)
    assert found.results["invariance"].company < 1e-3
    assert found.results["invariance"].shift < 1e-3  # taken back, whatever the model calls its arguments


def test_attention_warnings_are_notes_for_other_methods() -> None:
    checks = {"jain_wallace": QUICK["jain_wallace"], "serrano_smith": {}}
    one = {name: tensor[:1] for name, tensor in CASES["bert"].inputs().items()}  # two would have wide intervals
    raw, weighted = (
        wf.check(model_of("bert"), one, method=method, checks=checks) for method in ("raw_attention", "grad_sam")
    )
    assert len(weighted.of("note")) == len(raw.of("note")) + len(raw.of("warning")) > len(raw.of("note"))
    assert weighted.of("warning") == ()


def test_options_reach_method_and_checks(tokenizer: Any) -> None:
    checks = {"jain_wallace": {**QUICK["jain_wallace"], "layers": "all", "heads": [1], "rows": "all"}}
    how: dict[str, Any] = {"processor": tokenizer, "method": "raw_attention", "layers": 0, "target": "negative"}
    found = wf.check(folders.bert(), TEXTS[0], checks=checks, **how).results["jain_wallace"]
    assert found.where == "layer all, heads [1], rows all"
    assert found.inputs[0].original.target.label == "negative"


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"checks": ["jain_walace"]}, "Did you mean 'jain_wallace'"),
        ({"checks": {"sinks": {"layers": 1}}}, "unknown option of sinks"),
        ({"checks": []}, "checks is empty"),
        ({"method": "generic"}, "unknown method"),
        ({"method": "raw_attention", "layer": 1}, "unknown option of raw_attention"),
        ({"checks": {"jain_wallace": {"permutations": 0}}}, "permutations"),
        ({"checks": {"jain_wallace": {"layers": 7}}}, "numbered"),
        ({"checks": {"randomisation": {"copies": 3, "beside": 2}}}, "at most beside"),
        ({"target": [0]}, "targets: 1, inputs: 2"),
    ],
)
def test_bad_requests_are_refused_before_long_work(how: dict[str, Any], says: str) -> None:
    with pytest.raises(BadInput, match=says):
        checked_bert(**how)


# A check-up with a cache: what is done is not done again, and a stopped one goes on where it was.


def test_what_is_in_the_cache_is_not_done_again(
    tmp_path: Path, found: wf.CheckUp, tokenizer: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = folders.bert()
    calls = counted_calls(monkeypatch)
    how: dict[str, Any] = {"processor": tokenizer, "checks": EVERYTHING, "cache": tmp_path}
    first = wf.check(model, TEXTS, **how)
    assert len(calls) > 20
    calls.clear()
    assert plain_of(first) == plain_of(found)  # as without a cache
    again = wf.check(model, TEXTS, **how)
    assert not calls
    assert plain_of(again) == plain_of(first)
    assert type(again.results["jain_wallace"].inputs[0].original) is wf.Explanation
    assert not list(tmp_path.glob("*.part"))


def test_a_stopped_check_up_goes_on_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from whyformer.checks import jain_wallace as module

    done: list[int] = []
    one = module._one

    def stopped(exam: Any, *how: Any) -> Any:
        if len(done) == 1:
            raise KeyboardInterrupt
        done.append(1)
        return one(exam, *how)

    def checked() -> wf.CheckUp:
        return checked_bert(checks={"sinks": {}, "jain_wallace": QUICK["jain_wallace"]}, cache=tmp_path)

    monkeypatch.setattr(module, "_one", stopped)
    assert list(checked().results) == ["sinks"]
    assert len(done) == 1  # the first input was finished, the second was not
    done.append(2)  # two are counted, so the next is let through
    assert len(checked().results["jain_wallace"].inputs) == 2
    assert len(done) == 3  # one more, not two
    monkeypatch.setattr(module, "_one", one)
    whole = checked_bert(checks={"jain_wallace": QUICK["jain_wallace"]})
    assert plain_of(checked().results["jain_wallace"]) == plain_of(whole.results["jain_wallace"])


def test_what_is_damaged_is_made_again(tmp_path: Path) -> None:
    whole = checked_bert(checks=["sinks"], cache=tmp_path)
    for path in tmp_path.glob("*.check.json"):
        path.write_text(path.read_text()[:-3])
    assert plain_of(checked_bert(checks=["sinks"], cache=tmp_path)) == plain_of(whole)
    (tmp_path / "file").write_text("")
    with pytest.raises(BadInput, match="is a file"):
        checked_bert(checks=["sinks"], cache=tmp_path / "file")
