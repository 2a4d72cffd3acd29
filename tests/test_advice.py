"""What an error recommends is followed here: methods, options and code, on the same model and inputs."""

from __future__ import annotations

import ast
import platform
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import whyformer as wf
from tests.explainer.test_targets import Bare
from tests.models import CASES
from tests.models.kinds import KINDS
from whyformer import estimates as advice_of
from whyformer.errors import CaptureError, NotOffered, WhyformerError

METHODS = ("generic_attention", "attn_lrp", "value_norms", "decompx", "grad_cam", "input_x_gradient", "occlusion")
REFUSING = (
    "patchtst", "longformer", "mamba", "talking_heads", "t5_cls", "swin", "wav2vec2", "rtdl_ft_transformer",
    "quantised bert",
)  # fmt: skip
NAMED = re.compile(rf"\b({'|'.join(wf.list_methods())})\b(?:\((\w+)='(\w+)'\))?")
pytestmark = pytest.mark.filterwarnings("ignore")  # of the models, not of ours


@cache
def model_and_inputs(name: str) -> tuple[nn.Module, Any]:
    if name.startswith("quantised "):
        case = CASES[name.removeprefix("quantised ")]
        whole = case.build("sdpa")
        # Which kernels there are goes by the processor; torch's default is that of another one.
        if platform.machine() in {"aarch64", "arm64"}:
            torch.backends.quantized.engine = "qnnpack"
        return torch.ao.quantization.quantize_dynamic(whole, {nn.Linear}, dtype=torch.qint8), case.inputs()
    case = KINDS[name.removeprefix("bare ")].case
    model = case.build(case.implementations[0])
    return Bare(model) if name.startswith("bare ") else model, case.inputs()


def recommended(message: str) -> list[tuple[str, dict[str, str]]]:
    """Methods, with options, after the last "Use" of a message."""
    *_, advice = re.split(r"\b[Uu]se\b", message) if re.search(r"\b[Uu]se\b", message) else [""]
    return [(name, {option: value} if option else {}) for name, option, value in NAMED.findall(advice)]


@pytest.mark.parametrize("name", REFUSING)
def test_recommended_methods_and_options_run(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """What runs is tried out for the first refusal; the others are of the same model and inputs."""
    model, inputs = model_and_inputs(name)
    rehearsed: list[Any] = []

    def alternatives(session: Any, _: Any, rehearse: Callable[[Any], Any] = advice_of.alternatives) -> Any:
        if not rehearsed:
            rehearsed.append(rehearse(session))
        return rehearsed[0]

    monkeypatch.setattr(advice_of, "alternatives", alternatives)
    explainer, followed = wf.Explainer(model), set()
    for method in METHODS:
        try:
            explainer.explain(inputs, method=method)
        except (NotOffered, CaptureError) as refusal:
            message = str(refusal)
            advice = recommended(message)
            assert advice or "Other methods are not supported, either" in message
            options = re.findall(r"\b(at|read|replace|scalar)='(\w+)'", message.split(" Or use ", maxsplit=1)[0])
            for other, chosen in [*advice, *((method, {option: value}) for option, value in options)]:
                if (key := (other, str(chosen))) not in followed:
                    followed.add(key)
                    few = {"steps": 3} if other == "integrated_gradients" else {}
                    explainer.explain(inputs, method=other, **chosen, **few)


def test_who_has_no_alternative_is_told_so() -> None:
    model, inputs = model_and_inputs("deformable_detr")
    explainer = wf.Explainer(model)
    with pytest.raises(CaptureError, match="Other methods are not supported, either"):
        explainer.explain(inputs, method="generic_attention")
    explainer.advises = False
    for method in ("occlusion", "input_x_gradient", "attn_lrp"):
        with pytest.raises(WhyformerError):
            explainer.explain(inputs, method=method)


def test_a_rehearsal_is_short() -> None:
    """Of methods with many passes, too, advice costs a few: it says what would run, and explains nothing."""
    model, inputs = model_and_inputs("longformer")
    calls = []
    handle = model.register_forward_hook(lambda *_: calls.append(1))
    with pytest.raises(CaptureError, match="integrated_gradients or occlusion"):
        wf.explain(model, inputs, method="decompx")
    handle.remove()
    assert len(calls) < 25


ANSWERS: dict[str, Callable[[Any], torch.Tensor]] = {
    "bare bert_tokens": lambda output: output.logits[:, 5],
    "bare bert_question": lambda output: output.start_logits[:, [5]],
    "wav2vec2_ctc": lambda output: output.logits[:, 9],
    "segformer_segmentation": lambda output: output.logits[:, :, 4, 4],
    "sam": lambda output: output.pred_masks[:, 0, 0, 8, 8, None],
    "patchtst_forecast": lambda output: output.prediction_outputs[:, 2, 1, None],
}


@pytest.mark.parametrize("name", ANSWERS)
def test_the_code_in_an_error_explains_what_it_says(name: str) -> None:
    """All that the model was given reaches it, and the value is the model's own."""
    model, inputs = model_and_inputs(name)
    if name == "bare bert_question":  # a wrapper that drops one of them explains another number
        inputs = {**inputs, "token_type_ids": (torch.arange(10) > 4).long().expand(2, 10)}
    with pytest.raises(NotOffered) as refusal:
        wf.explain(model, inputs, method="generic_attention")
    code = str(refusal.value).split(":\n", 1)[1]
    space: dict[str, Any] = {"torch": torch}
    exec(code, space)  # it stands in our own message
    with torch.no_grad():
        wanted = ANSWERS[name](model(**inputs))
    one = wf.Explainer(space["One"](model))
    explained = one.explain(inputs, method="occlusion", target=0, **({"replace": 7} if "input_ids" in inputs else {}))
    assert [e.value for e in explained] == pytest.approx(wanted[:, 0].tolist(), rel=1e-4, abs=1e-5)


def test_compare_without_a_token_that_can_stand_for_another() -> None:
    """A language model without special tokens: a masked id is the mean vector of its table, or the token given."""
    case = CASES["gpt2"]
    model = case.build("sdpa")
    model.config.pad_token_id = model.config.bos_token_id = model.config.eos_token_id = None
    inputs = {"input_ids": case.inputs()["input_ids"][:, :7]}
    methods = ["attention_rollout", "occlusion"]
    found = [wf.compare(model, inputs, method=methods, progress=False, **how) for how in ({}, {"replace": 7})]
    default, named = ({row.method: row.scores for row in each.rows} for each in found)
    assert default.keys() == named.keys() >= set(methods)
    assert repr(default["occlusion"]) != repr(named["occlusion"])


# Sentences that name a method without recommending it, by the file and some words of each.
EXCUSED = {
    ("capture/decompose/", "decompx"): "the method that raised",
    ("cli/first_steps.py", "whyformer explain"): "a command to copy, which the demo has just run",
    ("cli/first_steps.py", "shap package"): "a library",
    ("cli/analysis_commands.py", "whyformer methods generic_attention"): "how the command is written",
    ("errors.py", ""): "the same method under another name, not one to turn to",
    ("evaluate/candidate.py", "has no method"): "how a method is written",
    ("registry.py", "pass a name such as"): "how a method is written",
    ("tables/", "method='input_x_gradient'"): "the other method of explain_in_context, which reads no attention",
}
FAMILIES = "attention|gradient|perturbation|black box"


def sentences(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every text of a file that a user may read, wherever it stands: what was put together in one place, as one.

    Docstrings are for readers of the code, and words without a space are names.
    """
    holders = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    inside: set[ast.AST] = set()
    for node in ast.walk(tree):
        if isinstance(node, holders) and node.body and isinstance(node.body[0], ast.Expr):
            if isinstance(node.body[0].value, ast.Constant):
                inside.add(node.body[0].value)
        if node in inside:
            inside |= set(ast.walk(node))
            continue
        whole = isinstance(node, ast.JoinedStr) or (isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add))
        if whole or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
            inside |= set(ast.walk(node))
            if " " in (text := _text(node)):
                yield node.lineno, text


def _text(node: ast.AST) -> str:
    """The literals below a node, in the order in which they stand."""
    if isinstance(node, ast.Constant):
        return node.value if isinstance(node.value, str) else ""
    return "".join(map(_text, ast.iter_child_nodes(node)))


TURNED = re.compile(rf"\b([Uu]se|[Tt]ry|[Tt]ake|[Pp]refer|[Cc]hoose)\b[^.:=]*\b({FAMILIES})\b[^.:=]*\bmethods?\b")


def test_no_method_is_recommended_by_heart() -> None:
    """Which methods run is tested at the door of ``explain`` (estimates.py): a name in a message would be a guess."""
    root, known = Path(wf.__file__).parent, set(wf.list_methods()) - {"random"}
    guesses, excused = [], set()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).as_posix()
        tree = ast.parse(path.read_text(encoding="utf-8"))
        own = {n.name for n in tree.body if isinstance(n, ast.FunctionDef)} if place.startswith("methods/") else set()
        # A method other than those that the file defines, or a family of methods to turn to.
        names = re.compile(rf"(?<![\w.])({'|'.join(sorted(known - own))})(?!\w)")
        for line, text in sentences(tree):
            if names.search(text) or TURNED.search(text):
                reasons = {(where, words) for where, words in EXCUSED if place.startswith(where) and words in text}
                excused |= reasons
                guesses += [] if reasons else [f"{place}:{line}: {text}"]
    assert not guesses
    assert excused == set(EXCUSED), "an exception that excuses nothing goes"
