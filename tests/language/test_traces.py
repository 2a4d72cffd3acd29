"""Traces of agents: what drove each step of a run (whyformer/language/traces.py)."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import whyformer as wf
from tests.references import hops as methods
from tests.references import traces as twin
from tests.support.language import model, tokenizer
from whyformer.errors import BadInput, MissingProcessor, NotOffered, TooLong
from whyformer.inputs.units import prompt_of
from whyformer.language.agent_runs import documents_in, parts_of, places_of, read_run
from whyformer.language.traces import handed_on, shares_of

WORDS = ("think", "tool_call", "name", "arguments", "first", "second", "mail", "open", "n")
HEAD = "{% for t in tools or [] %}<|im_start|>system {{ t | tojson }} <|im_end|> {% endfor %}"
THOUGHT = "{% if m.reasoning_content %}<think> {{ m.reasoning_content }} </think> {% endif %}"
CALLS = (
    "{% for c in m.tool_calls %} <tool_call> "
    "{{ {'name': c.function.name, 'arguments': c.function.arguments} | tojson }} </tool_call>{% endfor %}"
)
TAGS = (
    "{% for c in m.tool_calls %} open {{ c.function.name }} {% for v in c.function.arguments.values() %}big {{ v }} "
    "{% endfor %}{% endfor %}"
)
END = " <|im_end|> {% endfor %}{% if add_generation_prompt %}<|im_start|>assistant {% endif %}"


def template(thought: str = THOUGHT, content: str = "{{ m.content or '' }}", calls: str = CALLS) -> str:
    return f"{HEAD}{{% for m in messages %}}<|im_start|>{{{{ m['role'] }}}} {thought}{content}{calls}{END}"


@cache
def tok(written: str = template(), longest: int = 256) -> Any:
    made = copy.deepcopy(tokenizer(WORDS))
    made.chat_template, made.model_max_length = written, longest
    return made


@cache
def lm(family: str = "llama", double: bool = False) -> Any:
    made: Any = model(family)
    made.resize_token_embeddings(len(tok()), mean_resizing=False)
    return made.double() if double else made


def call(name: str, number: str = "", **arguments: str) -> dict[str, Any]:
    return {"id": number, "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}}


def run() -> list[dict[str, Any]]:
    return [
        {"role": "system", "content": "he is a dog . she ran home ."},
        {"role": "user", "content": "where is the cat ?"},
        {
            "role": "assistant",
            "reasoning_content": "it was big",
            "content": None,
            "tool_calls": [call("open", "a", first="cat"), call("mail", "b", first="dog", second="red")],
        },
        {"role": "tool", "tool_call_id": "b", "content": "the dog ran ."},
        {"role": "tool", "tool_call_id": "a", "content": "the cat sat on the mat .\n\nthe dog ran home . yes"},
        {"role": "assistant", "content": "on the mat ."},
    ]


def traced(messages: Any = None, written: str = template(), **how: Any) -> wf.Trace:
    how = {"method": "generic_attention"} | how
    return wf.trace(how.pop("lm", lm()), messages or run(), processor=how.pop("processor", tok(written)), **how)


def spans_in(text: str, parts: list[str]) -> list[tuple[int, int]]:
    """Return the tokens of parts, each after the one before it."""
    offsets = tok()(text, return_offsets_mapping=True, add_special_tokens=False)["offset_mapping"]
    at, spans = 0, []
    for part in parts:
        start = text.index(part, at)
        at = start + len(part)
        inside = [i for i, (a, b) in enumerate(offsets) if a < at and b > start]
        spans.append((inside[0], inside[-1] + 1))
    return spans


WRITTEN = [
    "it was big",
    'open", "arguments": {"first": "cat"}',
    'mail", "arguments": {"first": "dog", "second": "red"}',
]
READ = ["he is a dog .", "she ran home .", "where is the cat ?"]
RESULT = ["the dog ran .", "the cat sat on the mat .", "the dog ran home .", "yes"]


@pytest.mark.parametrize("method", ["input_x_gradient", "generic_attention"])
@pytest.mark.parametrize("family", ["llama", "qwen3"])
def test_shares_and_origins_as_in_plain_torch(family: str, method: str) -> None:
    plain: Any = copy.deepcopy(lm(family, double=True))
    plain.set_attn_implementation("eager")
    found = traced(lm=plain, method=method)
    text = tok().apply_chat_template(
        [{**m, "tool_calls": read_run(run()).messages[2]["tool_calls"]} if "tool_calls" in m else m for m in run()],
        tokenize=False,
    )
    ids = tok()(text, add_special_tokens=False)["input_ids"]
    spans = spans_in(text, [*READ, *WRITTEN, *RESULT, "on the mat ."])
    steps, read = [*spans[3:6], spans[-1]], [*spans[:3], *spans[6:-1]]
    scores, shares, origins, totals = twin.traced(plain, ids, steps, read, getattr(methods, method))
    place = {span: number for number, span in enumerate(sorted(spans))}
    for row in range(4):
        for name, expected in (("scores", scores), ("shares", shares), ("origins", origins)):
            values = getattr(found, name)[row]
            wanted = np.full(len(spans), np.nan if name == "scores" else 0.0)
            for span, value in expected[row].items():
                wanted[place[span]] = value
            np.testing.assert_allclose(values, wanted, atol=1e-5 * np.nanmax(np.abs(wanted)), err_msg=f"{name} {row}")
        total = np.nansum(found.scores[row]) + found.outside[row]
        assert total == pytest.approx(totals[row], abs=1e-4 * float(np.nansum(np.abs(found.scores[row]))))
    # Left out: what the model wrote in its message up to the step is less likely by the drop.
    for row, (_, stop) in enumerate(steps):
        begin = spans_in(text, ["<think>"])[0][0] if row < 3 else steps[3][0]
        earlier = np.array([span[1] <= begin for span in sorted(spans)])  # than the message
        first = int(np.argmax(np.where(earlier, found.origins[row], 0.0)))
        if not found.origins[row][earlier].any():
            assert np.isnan(found.drops[row]).all()
            continue
        gone = range(*sorted(spans)[first])
        whole = twin.log_probability(plain, ids[:stop], begin)
        kept = [token for place, token in enumerate(ids[:stop]) if place not in gone]
        without = twin.log_probability(plain, kept, begin - len(gone))
        assert found.log_probabilities[row] == pytest.approx(whole, rel=1e-4)
        assert found.drops[row, first] == pytest.approx(whole - without, abs=1e-4)
        assert np.isnan(np.delete(found.drops[row], first)).all()
    silent = [row for row in range(4) if not found.shares[row].any()]
    assert len(silent) < 3
    for row, warning in zip(silent, found.warnings, strict=True):
        assert f"no source speaks for step {row}," in warning


@pytest.mark.parametrize("method", ["attn_lrp", "generic_attention", "occlusion", "raw_attention"])
def test_shares_sum_to_one_and_origins_were_read(method: str) -> None:
    found = traced(method=method)
    speaking = np.nan_to_num(found.scores).max(1) > 0
    np.testing.assert_allclose(found.shares.sum(1), speaking, atol=1e-9)
    np.testing.assert_allclose(found.origins.sum(1), speaking, atol=1e-9)
    assert speaking.sum() >= 3
    steps = [step.source for step, heard in zip(found.steps, speaking, strict=True) if heard]
    assert (found.shares >= 0).all() and not found.origins[:, steps].any()
    assert np.isnan(found.scores[0, 3:]).all() and np.isnan(found.scores[:, steps[-1]]).all()


def test_a_step_that_nothing_speaks_for_keeps_its_share() -> None:
    shares = shares_of(np.array([[-1.0, np.nan, np.nan, np.nan], [1.0, 3.0, np.nan, np.nan], [1.0, 1.0, 2.0, -5.0]]))
    np.testing.assert_allclose(shares, [[0, 0, 0, 0], [0.25, 0.75, 0, 0], [0.25, 0.25, 0.5, 0]])
    np.testing.assert_allclose(handed_on(shares, [1, 2, 3]), [[0] * 4, [0.25, 0.75, 0, 0], [0.375, 0.625, 0, 0]])


def test_steps_sources_and_calls() -> None:
    found = traced()
    assert [(step.kind, step.text, step.message) for step in found.steps] == [
        ("thought", "it was big", 2),
        ("tool call", 'open({"first": "cat"})', 2),
        ("tool call", 'mail({"first": "dog", "second": "red"})', 2),
        ("answer", "on the mat .", 5),
    ]
    assert [found.sources[step.source].step for step in found.steps] == [0, 1, 2, 3]
    read = [(s.text, s.role, s.message, s.document, s.call) for s in found.sources if s.step is None]
    assert read == [
        ("he is a dog .", "system", 0, 0, None),
        ("she ran home .", "system", 0, 0, None),
        ("where is the cat ?", "user", 1, 0, None),
        ("the dog ran .", "tool", 3, 0, 2),
        ("the cat sat on the mat .", "tool", 4, 0, 1),
        ("the dog ran home .", "tool", 4, 1, 1),
        ("yes", "tool", 4, 1, 1),
    ]
    assert found.calls == (1, 2)


def test_units_and_definitions_of_tools() -> None:
    messages = run()
    messages[4]["content"] = '["the cat sat . yes", {"first": "the dog"}]'
    tools = [{"type": "function", "function": {"name": "mail", "arguments": "big red"}}]
    given = {"messages": messages, "tools": tools}
    texts = {units: [s.text for s in traced(given, units=units).sources] for units in ("document", "message")}
    assert texts["document"][0] == texts["message"][0] == json.dumps(tools[0])
    assert texts["document"][1] == "he is a dog . she ran home ." == texts["message"][1]
    assert texts["document"][-3:-1] == ['"the cat sat . yes"', '{"first": "the dog"}']
    assert texts["message"][-2] == messages[4]["content"]
    assert documents_in("[1, 2", "tool") == [(0, 5)] and documents_in("a\n\n\nb ", "tool") == [(0, 1), (4, 5)]
    assert documents_in("a\n\nb", "user") == [(0, 4)] and documents_in("[[1], 2]", "tool") == [(1, 4), (6, 7)]


@pytest.mark.parametrize(
    "written",
    [
        template(calls=TAGS),
        template(content="{{ m.content | tojson if m.role == 'tool' else m.content or '' }}"),
        template(
            thought="{% if m.reasoning_content and loop.index > 3 %}<think> {{ m.reasoning_content }} {% endif %}"
        ),
    ],
    ids=["calls as tags", "escaped results", "forgotten thoughts"],
)
def test_templates(written: str) -> None:
    messages = run()
    messages[4]["content"] = 'the "cat" sat .\n\nthe dog ran'
    messages += [{"role": "user", "content": "no !"}, {"role": "assistant", "content": "yes .", "thinking": "he"}]
    if "loop" in written:
        messages[-1]["reasoning_content"] = messages[-1].pop("thinking")
        found = traced(messages, written)
        assert [step.kind for step in found.steps] == ["tool call", "tool call", "answer", "thought", "answer"]
        assert found.warnings == ("messages[2]: the chat template does not write its thoughts, so they are left out.",)
        return
    found = traced([*messages[:-1], {"role": "assistant", "content": "yes ."}], written)
    assert [step.kind for step in found.steps] == ["thought", "tool call", "tool call", "answer", "answer"]
    result = [s.text for s in found.sources if s.message == 4]
    escaped = json.dumps(messages[4]["content"])[1:-1]
    assert result == [escaped] if "tojson if" in written else ['the "cat" sat .', "the dog ran"]
    assert found.steps[2].text == 'mail({"first": "dog", "second": "red"})'


def test_thoughts_and_calls_inside_the_content() -> None:
    inline = '<think> it was big </think> yes . <tool_call> {"name": "open"} </tool_call>'
    messages = [*run()[:2], {"role": "assistant", "content": inline}, *run()[4:]]
    found = traced(messages)
    assert [(step.kind, step.text) for step in found.steps[:3]] == [
        ("thought", "it was big"), ("answer", "yes ."), ("tool call", '{"name": "open"}'),
    ]  # fmt: skip


def test_short_contents_are_not_found_inside_the_template() -> None:
    messages = [{"role": "user", "content": "user"}, {"role": "assistant", "content": "he said assistant"}]
    messages += [{"role": "user", "content": "a"}, {"role": "assistant", "content": "im"}]
    prompt, written = prompt_of(messages, tok())
    parts = parts_of(read_run(messages))
    places = places_of(parts, prompt, written, 3)
    text = str(prompt) + written
    assert [text[start:end] for _, start, end in places] == ["user", "he said assistant", "a", "im"]
    assert places[0].start == len("<|im_start|>user ") and places[2].start == text.rindex("user a") + 5


def test_why_cause_and_chain() -> None:
    found = traced(top=3)
    for step in range(4):
        drivers = found.why(step)
        assert [d.share for d in drivers] == sorted((d.share for d in drivers), reverse=True)
        assert sum(d.share for d in drivers) == pytest.approx(1) and all(d.step != step for d in drivers)
        path = found.chain(step)
        assert path[0].source == drivers[0].source and path[-1].step is None
        if drivers[0].step is not None:
            assert path[1].source == found.why(drivers[0].step)[0].source
    cause = found.cause()
    assert cause.step == 2 and cause.call == found.steps[2].text and cause.text == cause.drivers[0].text
    assert repr(cause.drivers) == repr(found.why(2, origins=True)) and all(d.step is None for d in cause.drivers)
    assert cause.factor == pytest.approx(np.exp(-cause.drop)) and cause.confirmed == (cause.drop > np.log(1.5))
    assert np.isfinite([d.drop for d in cause.drivers[:2]]).all()
    for wrong, words in ((3, "of kind answer, not a tool call: calls are 1, 2"), (4, "has 4 steps, 0 to 3")):
        with pytest.raises(BadInput, match=words):
            found.cause(wrong)
    with pytest.raises(BadInput, match="no tool call"):
        traced([run()[1], run()[5]]).cause()


def test_a_tool_result_leads_on_to_its_call() -> None:
    scores = np.full((2, 4), np.nan)
    scores[0, 0], scores[1, :3] = 1.0, (0.1, 0.2, 0.7)
    base = traced([*run()[:2], {**run()[2], "tool_calls": [call("open", "a", first="cat")]}, *run()[4:]])
    steps = (base.steps[1], base.steps[2])
    sources = [base.sources[i] for i in (2, 4, 5, 8)]
    from dataclasses import replace

    linked = replace(
        base, steps=tuple(replace(s, source=p) for s, p in zip(steps, (1, 3), strict=True)),
        sources=tuple(replace(s, step={1: 0, 3: 1}.get(i), call=0 if i == 2 else None) for i, s in enumerate(sources)),
        scores=scores, drops=scores, log_probabilities=np.zeros(2), outside=np.zeros(2),
    )  # fmt: skip
    assert [d.source for d in linked.chain(1)] == [2, 1, 0]


def test_the_same_twice_and_in_any_batch(tmp_path: Path) -> None:
    first, second = traced(method="occlusion"), traced(method="occlusion", batch_size=2)
    np.testing.assert_array_equal(first.scores, traced(method="occlusion").scores)
    np.testing.assert_allclose(first.scores, second.scores, atol=1e-5 * np.nanmax(np.abs(first.scores)))
    (tmp_path / "run.json").write_text(json.dumps({"messages": run()}), encoding="utf-8")
    for given in (tmp_path / "run.json", str(tmp_path / "run.json"), tuple(run())):
        np.testing.assert_array_equal(traced(given, method="occlusion").scores, first.scores)
    for ending in ("json", "npz"):
        again = wf.load(first.save(tmp_path / f"trace.{ending}"))
        assert isinstance(again, wf.Trace) and again.steps == first.steps and again.sources == first.sources
        np.testing.assert_array_equal(again.origins, first.origins)
    table = first.to_frame()
    assert len(table) == int((~np.isnan(first.scores)).sum())
    assert table.groupby("step")["share"].sum().tolist() == pytest.approx([1.0] * 4)
    assert first.cost.forwards > 0 and "trace" in first.to_dict()["what"]


def test_the_model_and_its_text_are_left_as_they_were() -> None:
    messages = run()
    before, weights = copy.deepcopy(messages), {k: v.clone() for k, v in lm().state_dict().items()}
    traced(messages)
    assert messages == before and all((weights[k] == v).all() for k, v in lm().state_dict().items())


ERRORS: list[tuple[Any, str]] = [
    ({"steps": []}, "without messages"),
    (3, "the run is a int"),
    ([{"content": "no"}], r"messages\[0\] is"),
    ([{"role": "user", "content": "no"}], 'no message of the role "assistant"'),
    ([], 'no message of the role "assistant"'),
    ([{"role": "assistant", "content": "no"}], r"messages\[0\] is the assistant's"),
    ([run()[1], {"role": "assistant", "content": ""}], "empty message"),
    ([run()[1], {"role": "assistant", "tool_calls": [{"function": {"arguments": "{}"}}]}], "names no function"),
    ([run()[1], {"role": "assistant", "tool_calls": "open"}], "give a list of calls"),
    ([{"role": "user", "content": [{"type": "image"}]}, run()[5]], "a content of image"),
    ({"messages": run(), "tools": "open"}, "tools of a run are a list"),
    ("nowhere.json", "no run of an agent at"),
]


@pytest.mark.parametrize(("given", "words"), ERRORS, ids=[words for _, words in ERRORS])
def test_what_is_not_a_run_is_refused(given: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        wf.trace(lm(), given, processor=tok())


def test_what_cannot_be_traced_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{messages: no}", encoding="utf-8")
    with pytest.raises(BadInput, match="not a JSON file"):
        traced(tmp_path / "run.json")
    with pytest.raises(TooLong, match=r"too long at messages\[2\]: prompt and answer have"):
        traced(processor=tok(longest=40))
    with pytest.raises(NotOffered, match="has no chat template"):
        traced(processor=tok(""))
    with pytest.raises(NotOffered, match="does not write the tool calls"):
        traced(written=template(calls=""))
    with pytest.raises(MissingProcessor, match="give processor=tokenizer"):
        wf.trace(lm(), run())
    with pytest.raises(NotOffered, match="not a server"):
        wf.trace(lambda prompts, answers: [-1.0] * len(prompts), run())
    with pytest.raises(BadInput, match="units"):
        traced(units="word")
    with pytest.raises(BadInput, match="steps"):
        traced(steps=3)
