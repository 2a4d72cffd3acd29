"""Do citations name the right sources? Precision, recall and F1 of wf.cite on five sets, by method.

    python -m bench.smollm2 smol
    python -m bench.citations --folder smol --data sets --out citations.jsonl    # goes on where it was interrupted
    python -m bench.citations --folder smol --data sets --out packages.jsonl --packages    # ContextCite and AT2
    python -m bench.citations --report citations.jsonl packages.jsonl    # the tables of docs/reports/citations.md

SmolLM2-135M-Instruct reads the prompt of wf.cite and an answer, which others wrote; those of the needles it wrote
itself. Every method ranks the sources (sentences; passages in xor_attriqa). A source is cited as by wf.cite: it is
among the first three, and without it the answer's log-probability falls by more than SUPPORT and by at least a share of
the largest fall. Falls of all sources are measured once, by leaving one out; they are the method "ablation" as well.
``--packages`` needs context-cite and at2; ``$(python -m bench.peers --python at2)`` is a Python that has them. AT2's
weights of attention heads are trained on the falls of the other half of the cases.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import torch

import whyformer as wf
from bench.citations import sets
from bench.citations.report import ABLATION, Row, report, shortened
from bench.citations.sets import Case
from bench.smollm2 import load

METHODS = ("attn_lrp", "generic_attention", "grad_sam", "input_x_gradient", "raw_attention")
OPTIONS: dict[str, dict[str, Any]] = {"raw_attention": {"layers": "mean"}}
HOPS = ("attn_lrp", "generic_attention")  # also through thoughts
MOST = {"xor_attriqa": 600, "morehopqa": 450, "morehopqa, thoughts": 490, "agentdojo": 700, "agentdojo, thoughts": 2200}
USUAL = 350  # most tokens of the other sets
GENERATED, ABLATIONS = 48, 32  # tokens of an answer to a needle; prompts with half of the sources, for ContextCite


def cases_of(explainer: wf.Explainer, folder: Path) -> dict[str, Iterator[Case]]:
    """Return the cases of each set, in a fixed order."""

    @torch.no_grad()
    def write(prompt: str) -> str:
        ids = explainer.processor(prompt, return_tensors="pt").to(explainer.model.device)
        model: Any = explainer.model
        said = model.generate(**ids, max_new_tokens=GENERATED, do_sample=False)[0, ids["input_ids"].shape[1] :]
        return str(explainer.processor.decode(said, skip_special_tokens=True)).strip()

    return {
        "needle": sets.needle(explainer, write),
        "verifiability": sets.verifiability(explainer, folder),
        "xor_attriqa": sets.xor_attriqa(explainer, folder),
        "morehopqa": sets.morehopqa(explainer, folder),
        "morehopqa, thoughts": sets.morehopqa(explainer, folder, thoughts=True),
        "agentdojo": sets.agentdojo(explainer, folder),
        "agentdojo, thoughts": sets.agentdojo_thoughts(explainer, folder),
    }


def fits(case: Case, tokenizer: Any) -> bool:
    """Whether a case has sources, others than sources, and few enough tokens."""
    tokens = len(tokenizer(case.prompt + case.written)["input_ids"])
    return 0 < sum(case.gold) < len(case.gold) and tokens <= MOST.get(case.name, USUAL)


def left_out(case: Case) -> tuple[str, list[tuple[int, int]]]:
    """Return the prompt without the sources, and where its documents are then."""
    prompt, removed = case.prompt, [span for span, gold in zip(case.units, case.gold, strict=True) if gold]
    for start, end in sorted(removed, reverse=True):
        prompt = prompt[:start] + prompt[end:]

    def place(at: int) -> int:
        return at - sum(min(at, end) - start for start, end in removed if start < at)

    boxes = [(place(start), place(end)) for start, end in case.documents]
    return prompt, [box for box in boxes if prompt[slice(*box)].strip()]


def measured(explainer: wf.Explainer, case: Case, ablated: bool = True, methods: tuple[str, ...] = METHODS) -> Row:
    """Return scores of every method and, if wanted, falls of the log-probability, per unit and per document."""
    how: dict[str, Any] = {"span": case.span, "units": list(case.units), "progress": False}
    pair, scores, seconds = [(case.prompt, case.written)], {}, {}
    for name in methods:
        if case.thoughts and name not in HOPS:
            continue
        for hops in (0, 1) if case.thoughts else (0,):
            label = f"{name}, hops=1" if hops else name
            through = {"through": "thoughts", "hops": hops} if hops else {}
            started = time.perf_counter()
            why = explainer.explain(pair, method=name, **how, **through, **OPTIONS.get(name, {}))[0]
            scores[label], seconds[label] = np.asarray(why.scores, float).tolist(), time.perf_counter() - started
    row: Row = {"scores": scores, "seconds": seconds}
    if not ablated or len(case.units) > 60 or (case.thoughts and case.name != "morehopqa, thoughts"):
        return row
    away: dict[str, Any] = {"method": "occlusion", "replace": "delete", "span": case.span, "progress": False}
    started = time.perf_counter()
    row["drops"] = np.asarray(explainer.explain(pair, units=list(case.units), **away)[0].scores, float).tolist()
    seconds[ABLATION] = time.perf_counter() - started
    if case.name in ("needle", "verifiability", "morehopqa"):
        prompt, boxes = left_out(case)
        for key, text, places in (("with", case.prompt, case.documents), ("without", prompt, boxes)):
            known = explainer.explain([(text, case.written)], units=list(places), **away) if places else []
            row[key] = [float(score) for why in known for score in why.scores]
    return row


def noted(path: Path | None) -> list[Row]:
    lines = path.read_text(encoding="utf-8").splitlines() if path is not None and path.exists() else []
    return [json.loads(line) for line in lines]


def rows_of(model: Any, tokenizer: Any, given: argparse.Namespace) -> Iterator[Row]:
    """A row per case, from the first that is not noted yet."""
    explainer = wf.Explainer(model, tokenizer)
    done = {(row["set"], row["case"]) for row in noted(given.out)}
    part, parts = map(int, given.part.split("/"))
    work: Callable[[Case, bool], Row] = partial(measured, explainer)
    if given.packages:
        from bench.citations.packages import packages

        work = packages(model, tokenizer, ABLATIONS)
    for name, cases in cases_of(explainer, given.data).items():
        if given.sets and name not in given.sets:
            continue
        chosen = islice((case for case in cases if fits(case, tokenizer)), given.cases)
        for number, case in enumerate(chosen):
            if number % parts != part or (name, number) in done:
                continue
            started = time.perf_counter()
            row = {"set": name, "case": number, "gold": [int(gold) for gold in case.gold]}
            row |= work(case, number < given.ablated)
            row["tokens"] = len(tokenizer(case.prompt + case.written)["input_ids"])
            yield row | {"all_seconds": time.perf_counter() - started}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", help="where python -m bench.smollm2 FOLDER wrote the model; else from the package")
    parser.add_argument("--data", type=Path, default=Path("sets"), help="where files of the sets are, or are written")
    parser.add_argument("--out", type=Path, help="one line per case; an interrupted run goes on")
    parser.add_argument("--cases", type=int, default=14, help="at most, per set")
    parser.add_argument("--sets", nargs="*", help="only these")
    parser.add_argument("--part", default="0/1", help="every so manieth case: 0/2 and 1/2, with a file each, are all")
    parser.add_argument("--ablated", type=int, default=14, help="of them, with drops, or with ContextCite")
    parser.add_argument("--packages", action="store_true", help="context-cite and at2 instead of whyformer")
    parser.add_argument("--report", type=Path, nargs="+", default=[], help="print the tables of these files")
    parser.add_argument("--short", type=Path, help="with --report: write one line per case, with the scores of AT2")
    given = parser.parse_args()
    if given.out is not None:
        torch.set_num_threads(1)
        model, tokenizer = load(given.folder)
        with given.out.open("a", encoding="utf-8") as file:
            for row in rows_of(model, tokenizer, given):
                print(json.dumps(row), file=file, flush=True)
    rows = [row for path in given.report for row in noted(path)]
    if given.short:
        given.short.write_text("".join(f"{json.dumps(row)}\n" for row in shortened(rows)), encoding="utf-8")
    elif rows:
        report(rows)


if __name__ == "__main__":
    main()
