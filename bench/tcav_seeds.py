"""TCAV on the shipped model of textures with other seeds: other pictures, other splits, each time.

    python -m bench.tcav_seeds [--seeds 20]

Prints, per pair of concepts, the lowest and highest score over the seeds, how often the corrected p was below 0.05, how
often a claim was made (p and accuracy), and the range of the mean derivative beside that of random vectors.
"""

from __future__ import annotations

import argparse

from whyformer.cli.analysis_commands import shipped_concepts
from whyformer.concepts import ConceptScore, tcav

PAIRS = [("striped", "dotted"), ("striped", "bubbly"), ("bubbly", "striped"), ("dotted", "bubbly")]


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=20)
    options = parser.parse_args(argv)
    found: dict[str, list[ConceptScore]] = {}
    random: list[float] = []
    for seed in range(options.seeds):
        given = shipped_concepts(seed)
        result = tcav(given.pop("model"), **given, relative=PAIRS, pooling="mean", seed=seed)
        random.append(result.random_magnitude)
        for row in result.rows:
            found.setdefault(row.name, []).append(row)
    sizes = sorted(random)
    print("| concept | lowest score | highest score | p < 0.05 | claimed | magnitude |\n|---|---|---|---|---|---|")
    for name, rows in found.items():
        scores, moved = [row.mean for row in rows], [row.magnitude for row in rows]
        tested, claimed = sum(row.p < 0.05 for row in rows), sum(row.significant for row in rows)
        cells = [f"{min(scores):.2f}", f"{max(scores):.2f}", f"{tested} of {len(rows)}", f"{claimed} of {len(rows)}"]
        cells.append(f"{min(moved):+.3f} to {max(moved):+.3f}")
        print(f"| {name.replace('|', chr(92) + '|')} | {' | '.join(cells)} |")
    print(f"random vectors: ±{sizes[0]:.3f} to ±{sizes[-1]:.3f}")


if __name__ == "__main__":
    main()
