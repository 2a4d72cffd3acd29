"""Is what recommend chooses within a budget ever behind the best method in hindsight? Text, image and table, held out.

    python -m bench.recommend_budget [--kinds text image table] [--budgets 3 30 100] [--inputs 40] [--splits 2]

The shipped models, on sentences made from templates, drawn pictures, and rows that the model was not trained on. Half
of the inputs choose, by AOPC, among everything that fits; the other half tests. The best in hindsight is whoever did
best on the half that tests, and its lead over the choice is paired: the same inputs, 95 % limits by bootstrap over
them. Other splits are other orders of the same inputs. What does much besides passes of the model (decompx,
attention_flow, value_zeroing) is left out unless --all is said.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

import whyformer as wf
from bench.frontier.text import made_sentences
from bench.timing import machine
from whyformer.demo import load_adult, load_sentiment, load_textures
from whyformer.demo.census import adult_rows
from whyformer.demo.pictures import SHAPES, TEXTURES, picture
from whyformer.evaluate.budgeted import Budgeted

SLOW = {"random", "decompx", "attention_flow", "value_zeroing"}


def drawn_pictures(count: int, seed: int) -> list[Any]:
    from PIL import Image

    generator = np.random.default_rng(seed)
    kinds = [(str(generator.choice(SHAPES)), str(generator.choice(TEXTURES))) for _ in range(count)]
    return [Image.fromarray(picture(shape, texture, seed + n)) for n, (shape, texture) in enumerate(kinds)]


KINDS: dict[str, tuple[Callable[[], Any], Callable[[int, int], list[Any]]]] = {
    "text": (load_sentiment, made_sentences),
    "image": (load_textures, drawn_pictures),
    "table": (load_adult, lambda count, seed: adult_rows()[:count]),
}


@dataclass(frozen=True)
class Row:
    """One choice on one split."""

    kind: str
    budget: str
    split: int
    budgeted: Budgeted
    seconds: float

    def line(self) -> str:
        choice, best = self.budgeted.choice, self.budgeted.hindsight
        lead = "–" if best is choice else "{:+.3f} ({:+.3f} to {:+.3f})".format(*best.over_choice)
        passes = f"{choice.forwards:.3g}" + (f" + {choice.backwards:.3g}" if choice.backwards else "")
        aopc = f"{choice.mean:.3f} ({choice.low:.3f} to {choice.high:.3f})"
        fit = len(self.budgeted.contestants)
        head = f"| {self.kind} | {self.budget} | {self.split} | {fit} | {choice.name} | {passes}"
        return f"{head} | {aopc} | {best.name} | {lead} | {'BEHIND' if self.budgeted.behind else 'level'} |"


def rows_of(
    kinds: Sequence[str],
    budgets: Sequence[str],
    inputs: int,
    splits: int,
    methods: Sequence[str],
    seed: int,
    **how: Any,
) -> Iterator[Row]:
    for kind in kinds:
        load, make = KINDS[kind]
        explainer, made = wf.Explainer(*load()), make(inputs, seed)
        for split in range(splits):
            order = np.random.default_rng([seed, split]).permutation(len(made))
            some = [made[i] for i in order]
            with tempfile.TemporaryDirectory() as folder:  # budgets share what was computed
                for budget in budgets:
                    started = time.perf_counter()
                    result = explainer.recommend(some, budget=budget, methods=methods, cache=folder, seed=seed, **how)
                    yield Row(kind, budget, split, result.budgeted, time.perf_counter() - started)


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--budgets", nargs="*", default=["3", "30", "100"])
    parser.add_argument("--inputs", type=int, default=40)
    parser.add_argument("--splits", type=int, default=2)
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args(argv)
    print(machine())
    methods = options.methods or [m for m in wf.list_methods() if options.all or m not in SLOW]
    print("| inputs | budget | split | fit | chosen | passes | AOPC, tested | best in hindsight | its lead | |")
    print("|---|---|---|---|---|---|---|---|---|---|")
    rows = []
    how = (options.kinds, options.budgets, options.inputs, options.splits, methods, options.seed)
    for row in rows_of(*how):
        rows.append(row)
        print(row.line(), flush=True)
    behind = sum(row.budgeted.behind for row in rows)
    best = sum(row.budgeted.hindsight is row.budgeted.choice for row in rows)
    leads = [row.budgeted.hindsight.over_choice[0] for row in rows]
    held = "holds" if not behind else "FAILS"
    print(
        f"{held}: the choice is behind the best in hindsight by more than chance in {behind} of {len(rows)} cases; "
        f"it is the best in {best}; mean lead {np.mean(leads):.3f}, largest {max(leads):.3f}"
    )
    return 0


if __name__ == "__main__":
    main()
