"""Is what recommend chooses within a budget ever behind the best method in hindsight? Text, image and table, held out.

    python -m bench.recommend_budget [--kinds text image table] [--budgets 3 30 100] [--inputs 40] [--halves 10 20]
                                     [--splits 20] [--data dev.tsv] [--photos pets.tar] [--device cuda] [--out FOLDER]
    python -m bench.recommend_budget --saved FOLDER … [--halves 10 20] [--splits 20]     # other rules, nothing is run
    python -m bench.recommend_budget --guides attn_lrp+alone attn_lrp [--kinds …] [--budgets 30 100] [--inputs 40]

The shipped models: sentences made from templates (or --data), drawn pictures (or --photos, for the model of cats and
dogs), and rows that the model was not trained on. So many inputs choose, as many others test; splits draw both anew
from the same inputs, and share what was run. The best in hindsight is whoever did best on the half that tests. Its lead
over the choice is paired, with 95 % limits by bootstrap over inputs; since it is picked by the numbers that it is
judged by, these exclude zero too often, so that *behind* is told by turning signs, over all who stand (``chance`` in
the result). What does much besides passes of the model (decompx, attention_flow, value_zeroing) is left out unless
--all is said. --out writes AOPC and insertion of every method on every input, as JSON, from which --saved chooses by
other rules: the mean AOPC (what ``recommend`` does), the mean of both, both for those whose lead in AOPC is within its
limits, and the mean rank by AOPC. Readings of attention, which differ from split to split, are not in these files.
--guides compares Shapley values that lean on one guide or another, each with the evaluations that the budget leaves it:
AOPC and insertion, and how far the first is ahead of each other one, paired over inputs, with 95 % limits.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import rankdata

import whyformer as wf
from bench.frontier.text import made_sentences, read_sentences
from bench.one_pass import pictures
from bench.timing import machine
from whyformer.demo import load_adult, load_pets, load_sentiment, load_textures
from whyformer.demo.census import adult_rows
from whyformer.demo.pictures import SHAPES, TEXTURES, picture
from whyformer.evaluate import candidate_pool
from whyformer.evaluate.candidate import Candidate, Trial, evaluated, wanted
from whyformer.evaluate.candidate_pool import (
    BACKWARD,
    SPACES,
    AffordableMethods,
    Rates,
    budget_of,
    guided_shap,
    longest,
)
from whyformer.evaluate.comparison import RARE, chance_of_lead
from whyformer.evaluate.games import Games, games_of
from whyformer.evaluate.metrics.faithfulness import aopc, insertion, top_away, top_kept
from whyformer.evidence import spread

Array = np.ndarray[Any, Any]
KINDS = ("text", "image", "table")
SLOW = {"random", "decompx", "attention_flow", "value_zeroing"}


def drawn_pictures(count: int, seed: int) -> list[Any]:
    from PIL import Image

    generator = np.random.default_rng(seed)
    kinds = [(str(generator.choice(SHAPES)), str(generator.choice(TEXTURES))) for _ in range(count)]
    return [Image.fromarray(picture(shape, texture, seed + n)) for n, (shape, texture) in enumerate(kinds)]


def subject(kind: str, options: argparse.Namespace) -> tuple[wf.Explainer, list[Any]]:
    """The model, with what reads its inputs; and the inputs."""
    count, seed = options.inputs, options.seed
    if kind == "text":
        made = read_sentences(options.data, count, seed) if options.data else made_sentences(count, seed)
        model, processor = load_sentiment()
    elif kind == "image":
        made = pictures(options.photos, count) if options.photos else drawn_pictures(count, seed)
        model, processor = load_pets() if options.photos else load_textures()
    else:
        made, (model, processor) = adult_rows()[:count], load_adult()
    return wf.Explainer(model.float().to(options.device), processor), made


@dataclass(frozen=True)
class Split:
    """One choice on some inputs, tested on others."""

    chosen: str
    hindsight: str
    lead: tuple[float, float, float]  # of the best in hindsight, paired, with its own limits
    chance: float

    @property
    def behind(self) -> bool:
        return self.chance < RARE


@dataclass(frozen=True)
class Row:
    """One kind, budget and size of the halves, over all splits."""

    kind: str
    budget: str
    half: int
    fit: int
    splits: list[Split]
    seconds: float

    @property
    def behind(self) -> int:
        return sum(split.behind for split in self.splits)

    def line(self) -> str:
        splits, often = self.splits, Counter(split.chosen for split in self.splits).most_common(2)
        best = sum(split.chosen == split.hindsight for split in splits)
        alone = sum(split.lead[1] > 0 for split in splits)
        lead, most = (f"{f([s.lead[0] for s in splits]):.3f}" for f in (np.mean, np.max))
        chosen = ", ".join(f"{name} ({count})" for name, count in often)
        cells = [self.kind, self.budget, self.half, self.fit, chosen, f"{best} of {len(splits)}", lead, most]
        return "| " + " | ".join(map(str, [*cells, alone, self.behind])) + " |"


HEAD = ("inputs", "budget", "choose and test", "fit", "chosen (times)", "best in hindsight", "mean lead of the best")
HEAD += ("largest lead", "own limits above zero", "behind")


def split_of(standing: AffordableMethods, choosing: Sequence[int], testing: Sequence[int], seed: int) -> Split:
    """As ``recommend`` chooses and tests."""
    finalists = candidate_pool.finalists(standing.pool, standing.truth_M(choosing))
    names = [standing.pool.candidates[m].name for m in finalists]
    column = int(np.argmax(standing.judged(finalists, choosing, "choosing").mean(0)))
    return tested(names, column, standing.judged(finalists, testing, "testing"), seed)


def tested(names: Sequence[str], column: int, tested_IM: Array, seed: int) -> Split:
    mean_M, low_M, high_M = spread(tested_IM - tested_IM[:, [column]], seed)
    best = int(np.argmax(mean_M)) if mean_M.max() > 0 else column
    lead = float(mean_M[best]), float(low_M[best]), float(high_M[best])
    return Split(names[column], names[best], lead, chance_of_lead(tested_IM, column, seed, range(len(tested_IM))))


def halves_of(inputs: int, half: int, options: argparse.Namespace) -> Iterator[tuple[list[int], list[int]]]:
    for number in range(options.splits):
        order = np.random.default_rng([options.seed, half, number]).permutation(inputs).tolist()
        yield order[:half], order[half : 2 * half]


def rows_of(
    options: argparse.Namespace, methods: Sequence[str], spaces: Sequence[str] = SPACES, guided: bool = True
) -> Iterator[tuple[Row, AffordableMethods]]:
    for kind in options.kinds:
        explainer, made = subject(kind, options)
        explainer.advises = False
        with games_of(explainer, made, seed=options.seed, progress=False) as games:
            for budget in options.budgets:
                standing = AffordableMethods(games, wanted(methods), spaces, budget_of(budget), guided=guided)
                for half in options.halves:
                    if 2 * half > len(made):
                        continue
                    started, splits = time.perf_counter(), []
                    for choosing, testing in halves_of(len(made), half, options):
                        splits.append(split_of(standing, choosing, testing, options.seed))
                    fit = len(candidate_pool.finalists(standing.pool, standing.truth_M(choosing)))
                    yield Row(kind, budget, half, fit, splits, time.perf_counter() - started), standing


def saved(standing: AffordableMethods, row: Row) -> dict[str, Any]:
    """Every method but readings of attention, which differ from split to split: what judges said, per input."""
    numbers = range(standing.pool.spaced, len(standing.pool.candidates))
    inputs = range(standing.games.size)
    inserted_IM = []
    for i in inputs:
        trials = [Trial(standing.pool.scores[i][m], standing.games.game(i)) for m in numbers]
        standing.games.game(i).ask(np.concatenate([top_kept(trial) for trial in trials]))
        inserted_IM.append([insertion(trial) for trial in trials])
    values_IMJ = np.stack([standing.judged(list(numbers), list(inputs), "all"), np.array(inserted_IM)], 2)
    names = [standing.pool.candidates[m].name for m in numbers]
    head = {"kind": row.kind, "budget": row.budget, "names": names, "judges": ["aopc", "insertion"]}
    return head | {"values": values_IMJ.tolist()}


# Other rules of choice, from what was written: (I, M, J) of the inputs that choose → which of the methods.


def by_both_where_level(values_IMJ: Array) -> int:
    aopc_IM = values_IMJ[:, :, 0]
    leader = int(np.argmax(aopc_IM.mean(0)))
    _, low_M, _ = spread(aopc_IM[:, [leader]] - aopc_IM)
    level_M = (low_M <= 0) | (np.arange(len(low_M)) == leader)
    return int(np.argmax(np.where(level_M, values_IMJ.mean((0, 2)), -np.inf)))


RULES: dict[str, Callable[[Array], int]] = {
    "mean AOPC": lambda values_IMJ: int(np.argmax(values_IMJ[:, :, 0].mean(0))),
    "mean of AOPC and insertion": lambda values_IMJ: int(np.argmax(values_IMJ.mean((0, 2)))),
    "AOPC, both where level": by_both_where_level,
    "mean rank by AOPC": lambda values_IMJ: int(np.argmax(rankdata(values_IMJ[:, :, 0], axis=1).mean(0))),
}


def compared_rules(options: argparse.Namespace) -> Iterator[str]:
    """A line per rule and size of the halves: over all files and splits, leads of the best, and how often behind."""
    files = [json.loads(path.read_text()) for folder in options.saved for path in sorted(folder.glob("*.json"))]
    for half in options.halves:
        for rule, choose in RULES.items():
            splits = []
            for file in files:
                values_IMJ = np.array(file["values"])
                if 2 * half <= len(values_IMJ):
                    for choosing, testing in halves_of(len(values_IMJ), half, options):
                        column = choose(values_IMJ[choosing])
                        splits.append(tested(file["names"], column, values_IMJ[testing][:, :, 0], options.seed))
            best, alone = sum(s.chosen == s.hindsight for s in splits), sum(s.lead[1] > 0 for s in splits)
            lead, behind = np.mean([s.lead[0] for s in splits]), sum(s.behind for s in splits)
            yield f"| {half} | {rule} | {best} of {len(splits)} | {lead:.4f} | {alone} | {behind} |"


# One guide or another, each with the evaluations that the budget leaves it.


def compared_guides(options: argparse.Namespace) -> Iterator[str]:
    """A line per kind, budget and guide: evaluations, passes that were counted, both judges, and the first's lead."""
    for kind in options.kinds:
        explainer, made = subject(kind, options)
        with games_of(explainer, made, seed=options.seed, progress=False) as games:
            units = len(games.units[longest(games)])
            for budget in options.budgets:
                most = budget_of(budget).most
                entries = [guided_shap(guide, units, Rates(), most) for guide in options.guides]
                done = [evaluated(entry, games, games.scalar) for entry in entries if entry is not None]
                if not done:
                    continue
                values_IMJ = np.array([_both_judges(games, i, done) for i in range(games.size)])
                for number, entry in enumerate(done):
                    passes = entry.forwards + BACKWARD * entry.backwards
                    means = [f"{mean:.4f}" for mean in values_IMJ[:, number].mean(0)]
                    cells = [kind, budget, entry.name, f"{passes:.1f}", *means]
                    ahead = np.stack(spread(values_IMJ[:, 0] - values_IMJ[:, number], options.seed), 1)
                    cells += ["" if not number else "{:+.4f} ({:+.4f} to {:+.4f})".format(*judge) for judge in ahead]
                    yield "| " + " | ".join(map(str, cells)) + " |"


def _both_judges(games: Games, number: int, done: Sequence[Candidate]) -> list[list[float]]:
    game, parts = games.game(number), games.parts[number]
    trials = [Trial(entry.explanations[number].scores[parts], game) for entry in done]
    game.ask(np.concatenate([asked(trial) for trial in trials for asked in (top_away, top_kept)]))
    return [[aopc(trial), insertion(trial)] for trial in trials]


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", nargs="*", choices=KINDS, default=[*KINDS])
    parser.add_argument("--budgets", nargs="*", default=["3", "30", "100"])
    parser.add_argument("--inputs", type=int, default=40, help="to draw from; the table has 40")
    parser.add_argument("--halves", nargs="*", type=int, default=[10, 20], help="so many inputs choose, and test")
    parser.add_argument("--splits", type=int, default=20)
    parser.add_argument("--data", type=Path, help="sentences, as lines of sentence<TAB>label")
    parser.add_argument("--photos", type=Path, help="folder or tar file, for the model of cats and dogs")
    parser.add_argument("--methods", nargs="*")
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for every number, as JSON")
    parser.add_argument("--saved", type=Path, nargs="+", help="folders that --out wrote: compare rules of choice")
    parser.add_argument("--guides", nargs="+", help="of Shapley values: compare these")
    return parser.parse_args(argv)


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    if options.saved:
        print("| choose and test | rule | best in hindsight | mean lead of the best | own limits above zero | behind |")
        print("|---" * 6 + "|", flush=True)
        for line in compared_rules(options):
            print(line, flush=True)
        return 0
    print(machine(options.device))
    if options.guides:
        print("| inputs | budget | method | passes | AOPC | insertion | AOPC of the first is ahead by | insertion |")
        print("|---" * 8 + "|", flush=True)
        for line in compared_guides(options):
            print(line, flush=True)
        return 0
    methods = options.methods or [m for m in wf.list_methods() if options.all or m not in SLOW]
    print("| " + " | ".join(HEAD) + " |\n" + "|---" * len(HEAD) + "|", flush=True)
    rows = []
    for row, standing in rows_of(options, methods):
        rows.append(row)
        print(row.line(), flush=True)
        if options.out is not None:
            options.out.mkdir(parents=True, exist_ok=True)
            (options.out / f"{row.kind}_{row.budget}.json").write_text(json.dumps(saved(standing, row)))
    behind, count = sum(row.behind for row in rows), sum(len(row.splits) for row in rows)
    held = "holds" if not behind else "FAILS"
    print(f"{held}: the choice is behind the best in hindsight by more than chance in {behind} of {count} splits")
    return 0


if __name__ == "__main__":
    main()
