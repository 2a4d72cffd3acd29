r"""Public benchmarks of explanations, by one command: whyformer's methods beside those of others.

    python -m bench.measures --data sets --model MINILM --out rows.jsonl    # all parts
    python -m bench.measures --data sets --part hatexplain --out rows.jsonl    # one of them
    python -m bench.measures --report docs/reports/public_measures.jsonl    # the tables of public_measures.md

git clones sets into --data, unless they are there (sets.py names licences). MINILM is a folder with the encoder of
all-MiniLM-L6-v2, which is fine-tuned on HateXplain first. xai_units* need captum 0.7.0 and sympy.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator
from pathlib import Path

import torch

from bench.measures import posts, xai_units
from bench.measures.report import Row, report

PARTS = ("xai_units", "xai_units_trained", "hatexplain")


def rows_of(part: str, given: argparse.Namespace) -> Iterator[Row]:
    """Yield the rows of a part."""
    if part == "xai_units":
        return xai_units.rows_of(given.data, given.inputs or 50, given.seeds)
    if part == "xai_units_trained":
        return xai_units.rows_of(given.data, given.inputs or 20, given.seeds, trained=True)
    if given.model is None:
        raise SystemExit("hatexplain needs --model, a folder of an encoder in the format of transformers.")
    return posts.rows_of(given.data, given.model, given.inputs or 100)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=PARTS, action="append", help="only this one; may be given several times")
    parser.add_argument("--data", type=Path, default=Path("sets"), help="where files of the sets are, or are written")
    parser.add_argument("--model", type=Path, help="an encoder, to fine-tune for hatexplain")
    parser.add_argument("--inputs", type=int, help="rows of a unit, or posts")
    parser.add_argument("--seeds", type=int, default=5, help="of XAI-Units' data")
    parser.add_argument("--out", type=Path, help="lines are added to this file")
    parser.add_argument("--report", type=Path, nargs="+", default=[], help="print the tables of these files")
    given = parser.parse_args()
    if given.report:
        lines = [line for path in given.report for line in path.read_text(encoding="utf-8").splitlines()]
        print(report([json.loads(line) for line in lines]))
        return
    torch.set_num_threads(1)
    rows: list[Row] = []
    for part in given.part or PARTS:
        for row in rows_of(part, given):
            rows.append(row)
            if given.out is not None:
                with given.out.open("a", encoding="utf-8") as file:
                    print(json.dumps(row), file=file)
    print(report(rows))


if __name__ == "__main__":
    main()
