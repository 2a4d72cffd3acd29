"""The sets of bench/citations.py: questions, documents and answers whose sources are known.

Each file is downloaded from its public place on first use, into a folder of yours, and is not part of whyformer:

    verifiability   Anirudh-Phukan/verifiability-granular (no licence stated): answers of search engines, by sentence
    xor_attriqa     Betswish/MIRAGE-reproduce (no licence stated): answers of CORA, in English translation, by passage
    morehopqa       Alab-NII/morehopqa (Apache-2.0): questions of two steps, with a paragraph of another question
    agentdojo       wbopan/flashtrace (MIT): tool calls of GPT-4o and Qwen3-4B that an injected text asked for
    needle          none: written here, after the description of NVIDIA/RULER's multikey and multivalue needles

Sources of morehopqa are sentences that contain the answer of a step, in the paragraph that the set names for that step.
"""

from __future__ import annotations

import json
import re
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from whyformer.explainer import CoreExplainer
from whyformer.inputs.units import Span, prompt_of, sentences
from whyformer.language.citations import prompt_with

RAW = "https://raw.githubusercontent.com"
VERIFIABILITY = f"{RAW}/Anirudh-Phukan/verifiability-granular/ccdf8d3bc27559e98c8ab01ace976830975f2a79"
XOR = f"{RAW}/Betswish/MIRAGE-reproduce/a9201b69d015ad0a5e830b36f7e855da74fe827f/sec4_alignment/data/xor_attriqa"
MOREHOP = f"{RAW}/Alab-NII/morehopqa/27c72b1a220255093266a61f9e70af6ae981dc0b/datasets/files"
TRACES = f"{RAW}/wbopan/flashtrace/13865e9c41bbce945b32861c84ea19b7e185fd4e/evaluations/agentdojo/results"
FILES = {
    "verifiability_granular_test.jsonl": f"{VERIFIABILITY}/verifiability_granular_test.jsonl",
    **{f"{kind}-{part}.jsonl": f"{XOR}/{kind}/{part}.jsonl"
       for kind in ("concat-in-language", "in-language") for part in ("val", "fi", "ru")},
    "morehopqa_final_150samples.json": f"{MOREHOP}/morehopqa_final_150samples.json",
    "detailed_traces.jsonl": f"{TRACES}/pilot/explanations/detailed_traces.jsonl",
    "trajectories.jsonl": f"{TRACES}/e2e/qwen3_4b_thinking/trajectories.jsonl",
}  # fmt: skip
CITED = re.compile(r"\[ (\d+)  (.*?) \]")  # of verifiability-granular: a span of the answer and its passage
THOUGHT = re.compile(r"<think>.*?</think>\s*", re.DOTALL)
WINDOW, PASSAGES = 10, 3  # most sentences around a cited one, and most passages: the sets have up to 3,000 tokens
NEEDLES, NOISES = 8, 4  # sentences with numbers, and of noise
FIRST = "quiet brave amber hollow gentle rapid silver narrow clever frozen".split()
SECOND = "harbor meadow lantern copper falcon orchard bridge violin glacier pepper".split()
NOISE = "The grass is green.|The sky is blue.|The sun is yellow.|Here we go.|There and back again.".split("|")


@dataclass(frozen=True)
class Case:
    """A prompt and a written text, of which the part ``span`` has known sources among ``units`` of the prompt."""

    name: str
    prompt: str
    written: str
    span: Span  # characters of the written text
    units: tuple[Span, ...]  # characters of the prompt: sentences, or whole documents
    gold: tuple[bool, ...]  # which units are sources
    documents: tuple[Span, ...]
    thoughts: bool = False


def fetched(folder: Path, name: str, address: str) -> Path:
    """Return the path of a file in the folder; it is downloaded if it is not there."""
    path = folder / name
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        urllib.request.urlretrieve(address, path)
    return path


def texts(folder: Path, name: str) -> list[Any]:
    """Return the rows of a file of FILES, downloaded into the folder if it is not there."""
    text = fetched(folder, name, FILES[name]).read_text(encoding="utf-8")
    return list(json.loads(text)) if name.endswith(".json") else [json.loads(line) for line in text.splitlines()]


def overlaps(unit: Span, gold: list[Span]) -> bool:
    """Whether at least half of the unit's characters are in one of the gold spans."""
    shared = (min(unit[1], end) - max(unit[0], start) for start, end in gold)
    return max(shared, default=0) * 2 >= unit[1] - unit[0]


def case_of(
    explainer: CoreExplainer,
    name: str,
    question: str,
    documents: list[str],
    answer: str,
    gold: list[list[Span]],
    part: str | None = None,
    whole: bool = False,
) -> Case:
    """Return the case in the prompt of wf.cite; gold: characters of each document. whole: units are documents."""
    names = [f"document {number}" for number in range(1, len(documents) + 1)]
    prompt, places = prompt_with(explainer, question, names, documents)
    units: list[Span] = []
    sources: list[bool] = []
    for text, spans, ((start, end), begin) in zip(documents, gold, places, strict=True):
        if whole:
            units.append((start, end))
            sources.append(bool(spans))
            continue
        for a, b in sentences(text):
            units.append((begin + a, begin + b))
            sources.append(overlaps((a, b), spans))
    at = 0 if part is None else answer.index(part)
    span = (at, len(answer) if part is None else at + len(part))
    boxes = tuple(place for place, _ in places)
    return Case(name, str(prompt), answer, span, tuple(units), tuple(sources), boxes)


def spaced(text: str) -> str:
    return re.sub(r"\s+", " ", text).strip()


def verifiability(explainer: CoreExplainer, folder: Path) -> Iterator[Case]:
    for row in texts(folder, "verifiability_granular_test.jsonl"):
        numbers = {int(number) - 1 for number, _ in CITED.findall(row["summary"])}
        answer, chunk = spaced(CITED.sub(r" \2 ", row["summary"])), spaced(row["chunk"])
        answer = re.sub(r" ([.,;:!?)])", r"\1", answer)
        passages = [spaced(passage) for passage in row["passages"]]
        if chunk not in answer or not numbers or max(numbers) >= len(passages):
            continue
        first, last = min(numbers), max(numbers)
        before = int(np.random.default_rng(first).integers(0, WINDOW))
        start, end = max(0, first - before), max(last + 1, first - before + WINDOW)
        document, gold = "", []
        for number, passage in enumerate(passages[start:end], start):
            gold += [(len(document), len(document) + len(passage))] if number in numbers else []
            document += passage + " "
        answer = answer[: answer.index(chunk) + len(chunk)]
        yield case_of(explainer, "verifiability", row["question"], [document.strip()], answer, [gold], chunk)


def xor_attriqa(explainer: CoreExplainer, folder: Path) -> Iterator[Case]:
    for part in ("val", "fi", "ru"):
        rows = texts(folder, f"in-language-{part}.jsonl")
        for row in texts(folder, f"concat-in-language-{part}.jsonl"):
            if not 0 < sum(row["ais"]) < len(row["ais"]):
                continue
            first = rows[row["idxs"][0]]
            good = [i for i, holds in enumerate(row["ais"]) if holds]
            others = [i for i, holds in enumerate(row["ais"]) if not holds]
            shown = sorted([*good, *others[: max(1, PASSAGES - len(good))]])
            passages = [spaced(row["split_passages_en"][i]) for i in shown]
            gold = [[(0, len(text))] if i in good else [] for i, text in zip(shown, passages, strict=True)]
            question = re.sub(r"\s*\[b?\]?\s*$", "", first["query_translated_en"])
            answer = first["prediction_translated_en"]
            yield case_of(explainer, "xor_attriqa", question, passages, answer, gold, whole=True)


def morehop_row(explainer: CoreExplainer, rows: list[Any], number: int, thoughts: bool) -> Case | None:
    """Return the case of a row, its paragraphs and one of the next row; None if a step has no sentence."""
    row, other = rows[number], rows[(number + 1) % len(rows)]
    rng = np.random.default_rng(number)
    both = [*row["context"], other["context"][0]]
    paragraphs = [both[i] for i in rng.permutation(len(both))]
    steps = [step for step in row["question_decomposition"] if step["paragraph_support_title"]]
    documents, gold = [f"{title}: {spaced(' '.join(lines))}" for title, lines in paragraphs], []
    for document, (title, _) in zip(documents, paragraphs, strict=True):
        said = [step["answer"].lower() for step in steps if step["paragraph_support_title"] == title]
        gold.append([(a, b) for a, b in sentences(document) if any(s in document[a:b].lower() for s in said)])
    if sum(map(bool, gold)) < 2 or len({title for title, _ in paragraphs}) < len(paragraphs):
        return None
    if not thoughts:
        return case_of(explainer, "morehopqa", row["previous_question"], documents, row["previous_answer"], gold)
    thought = " ".join(f"{step['question']} {step['answer']}." for step in steps)
    written = f"<think>\n{thought}\n</think>\n\n{row['previous_answer']}"
    case = case_of(explainer, "morehopqa, thoughts", row["previous_question"], documents, written, gold)
    start = written.rindex(row["previous_answer"])
    return Case(**{**vars(case), "span": (start, len(written)), "thoughts": True})


def morehopqa(explainer: CoreExplainer, folder: Path, thoughts: bool = False) -> Iterator[Case]:
    rows = texts(folder, "morehopqa_final_150samples.json")
    cases = (morehop_row(explainer, rows, number, thoughts) for number in range(len(rows)))
    yield from (case for case in cases if case is not None)


def traced(explainer: CoreExplainer, name: str, messages: list[Any], injected: str, call: str, thought: str) -> Case:
    """A run of an agent up to its call. Units: sentences of what it was given; sources: those of the injected text.

    Its own earlier calls are not units: their form is copied.
    """
    tokenizer = getattr(explainer.processor, "tokenizer", explainer.processor)
    plain = []
    for message in messages:
        content = THOUGHT.sub("", message.get("content") or "")
        for made in message.get("tool_calls") or ():
            content += json.dumps({"name": made["function"], "arguments": made["args"]})
        plain.append({"role": message["role"], "content": content.strip() or "None"})
    prompt = str(prompt_of(plain, tokenizer))
    boxes: list[Span] = []
    for message in plain:
        start = prompt.index(message["content"], boxes[-1][1] if boxes else 0)
        boxes.append((start, start + len(message["content"])))
    start = prompt.index(injected)
    boxes = [box for box, message in zip(boxes, plain, strict=True) if message["role"] != "assistant"]
    units = [(box[0] + a, box[0] + b) for box in boxes for a, b in sentences(prompt[box[0] : box[1]])]
    gold = tuple(overlaps(unit, [(start, start + len(injected))]) for unit in units)
    span = (len(thought), len(thought) + len(call))
    return Case(name, prompt, thought + call, span, tuple(units), gold, tuple(boxes), bool(thought))


def agentdojo(explainer: CoreExplainer, folder: Path) -> Iterator[Case]:
    for row in texts(folder, "detailed_traces.jsonl"):
        messages = row["original_agentdojo_logical_input"]["messages_before_target"]
        call = row["teacher_forced_target"]["text"].split("<tool_call>")[1].split("</tool_call>")[0].strip()
        yield traced(explainer, "agentdojo", messages, row["gold_injection"]["text"], call, "")


def agentdojo_thoughts(explainer: CoreExplainer, folder: Path) -> Iterator[Case]:
    for row in texts(folder, "trajectories.jsonl"):
        if not row["target_event"]:
            continue
        thought, rest = row["target_event"]["completion"].split("</think>")
        call = row["target_event"]["call"]["raw_json"]
        written = f"<think>\n{thought}</think>{rest[: rest.index(call)]}"
        calls = [i for i, message in enumerate(row["messages"]) if message["role"] == "assistant"]
        messages = row["messages"][: calls[row["target_event"]["turn_index"]]]
        injected = row["attribution"]["gold_injection"]["text"]
        yield traced(explainer, "agentdojo, thoughts", messages, injected, call, written)


def needle(explainer: CoreExplainer, write: Callable[[str], str]) -> Iterator[Case]:
    """Numbers for keys among those of other keys and noise; every third case asks for both numbers of a key.

    write: what the model writes. A case counts if it writes every number of the key; the sentence with them is cited.
    """
    number = -1
    while True:
        number += 1
        rng = np.random.default_rng([7, number])
        keys = [f"{FIRST[i]}-{SECOND[j]}" for i, j in zip(rng.permutation(10), rng.permutation(10), strict=True)]
        values = [str(rng.integers(1_000_000, 10_000_000)) for _ in range(NEEDLES)]
        owners = [keys[0], keys[0] if number % 3 == 2 else keys[1], *keys[2:NEEDLES]]
        asked = [value for key, value in zip(owners, values, strict=True) if key == keys[0]]
        facts = [f"One of the special magic numbers for {k} is: {v}." for k, v in zip(owners, values, strict=True)]
        facts += list(rng.choice(NOISE, NOISES))
        lines = [facts[i] for i in rng.permutation(len(facts))]
        document = " ".join(lines)
        gold = [
            (at.start(), at.end())
            for at in re.finditer(f"One of the special magic numbers for {keys[0]}.*?\\.", document)
        ]
        many = "are all the special magic numbers" if len(asked) > 1 else "is the special magic number"
        question = f"What {many} for {keys[0]} mentioned in the documents?"
        prompt, _ = prompt_with(explainer, question, ["document 1"], [document])
        answer = write(str(prompt))
        said = [answer[a:b] for a, b in sentences(answer) if all(value in answer[a:b] for value in asked)]
        if said:
            yield case_of(explainer, "needle", question, [document], answer, [gold], said[0])
