"""The frontier: how faithful is every method, and for how many passes?

    python -m bench.frontier [--part text image table language] [--inputs 60] [--methods two_ended occlusion]
                             [--data dev.tsv] [--model FOLDER] [--rows adult.csv] [--photos pets.tar]
                             [--learn 12800 96000] [--learn-from train.tsv] [--cache models] [--device cuda]
                             [--out frontier] [--resume]
    python -m bench.frontier --budgets --part text --data dev.tsv     # the default beside all, within the same passes
    python -m bench.frontier --out frontier --picture docs/images     # draws what a run has written

text: the shipped sentiment model, on sentences from templates, or (--data) on lines of ``sentence<TAB>label`` or
reviews (csv.xz, columns review and sentiment), cut to 128 tokens; or a classifier of yours (--model, a folder of
transformers; ``python -m bench.finetune`` makes such).
image: a ViT of six layers, trained here on textures (or --photos) whose class is decided by a planted stamp.
pets, textures: the shipped ViTs, on --photos.
table: the shipped FT-Transformer on its 40 rows of census data, or (--rows) on some of a file.
language: a Llama of six layers, trained here on stories of facts; over tokens, and over sentences.

Comprehensiveness is how far the model's answer falls without the highest 1, 5, 10, 20 and 50 % of the parts,
sufficiency how far with these alone: probability of the class, log-probability of what a language model says. Where
--learn: explanations are also learned (wf.learn) with so many forwards, from further inputs (text: those of
--learn-from; table: other rows of --rows), and measured as a method and as a guide of shap. Where
the cause is planted, pointing (is the highest part in it?) and mass (its share of the scores) are measured, too.
Limits are 95 %, by bootstrap over inputs; differences are paired. Trained models are kept in --cache.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from bench.frontier import budgets, image, language, rows, text
from bench.frontier.claims import ahead_of_reference, claims, from_saved, learned_over, table
from bench.frontier.contenders import ON_REQUEST, Contenders
from bench.frontier.subject import Row, Subject
from bench.timing import machine
from whyformer.errors import WhyformerError

PARTS = ("text", "image", "table", "language", "pets", "textures")
CACHE = Path(tempfile.gettempdir()) / "whyformer-frontier"


def subjects(part: str, options: argparse.Namespace) -> Iterator[tuple[Subject, Contenders]]:
    count, seed, device = options.inputs, options.seed, options.device
    if part == "text":
        yield text.subject(count, seed, options.data, device, options.model, options.learn_from), text.contenders()
    elif part == "image":
        yield image.subject(count, seed, options.cache, options.photos, device), image.contenders()
    elif part == "table":
        yield rows.subject(count, device, options.rows, seed), rows.contenders()
    elif part in image.SHIPPED:
        yield image.shipped(part, count, options.photos, device), image.contenders()
    else:
        tokens, sentences = language.subjects(count, seed, options.cache, device)
        yield tokens, language.contenders_of_tokens()
        yield sentences, language.contenders_of_sentences()


def wanted(name: str, methods: list[str] | None) -> bool:
    return name in methods if methods else not name.startswith(ON_REQUEST)


def learned(subject: Subject, forwards: list[int], seed: int) -> Contenders:
    """Rows of explanations that are learned now."""
    made: Contenders = {}
    for count in forwards:
        for linear in (False, True) if count == forwards[0] else (False,):
            name = f"learned{', linear' if linear else ''}, {count:,} forwards"
            found = subject.learned(count, linear, seed)
            certificate = "" if found.certificate is None else found.certificate.verdict
            print(f"{found.seconds:4.0f} s  {name}, {found.inputs:,} inputs: {certificate}", flush=True)
            made |= {name: (found.name, {}), f"{name}, maskings=8": (found.name, {"maskings": 8})}
        guided = {"evaluations": 8, "guide": made[f"learned, {count:,} forwards"][0], **subject.masking}
        made[f"shap 8, guide learned with {count:,}"] = ("shap", guided)
    return made


def measured(
    subject: Subject, contenders: Contenders, names: list[str], path: Path | None, device: str
) -> dict[str, Row]:
    """A row per method; what is in the file already is not measured again, and every row is written at once."""
    done = {} if path is None or not path.exists() else from_saved(json.loads(path.read_text())["rows"])
    for name in names:
        if name in done:
            continue
        started = time.perf_counter()
        try:
            done[name] = subject.of_method(name, *contenders[name])
        except WhyformerError as error:
            print(f"not offered: {name}: {str(error).split('.')[0]}", flush=True)
            continue
        print(f"{time.perf_counter() - started:4.0f} s  {table([done[name]])[-1]}", flush=True)
        if path is not None:
            path.write_text(json.dumps(saved(subject, done, device)))
    return {name: done[name] for name in names if name in done}


def saved(subject: Subject, done: dict[str, Row], device: str) -> dict[str, object]:
    entries = [
        {
            "name": row.name,
            "forwards": row.forwards,
            "backwards": row.backwards,
            "measures": row.measures,
            "values": row.values_IM.tolist(),
        }
        for row in done.values()
    ]
    return {"subject": subject.name, "made_of": subject.made_of, "machine": machine(device), "rows": entries}


def report(subject: Subject, done: dict[str, Row]) -> None:
    print(f"\n## {subject.name}\n\n{subject.made_of}\n")
    print("\n".join(table(list(done.values()))))
    print("\n".join(["", *ahead_of_reference(done), *learned_over(done)]))
    for words, holds in claims(done):
        print(f"{'holds' if holds else 'FAILS'}: {words}")


def file_of(folder: Path, subject: str) -> Path:
    return folder / f"{subject.replace(', ', '_').replace(' ', '_')}.json"


def arguments(given: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.frontier", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", nargs="+", choices=PARTS, default=list(PARTS[:4]))
    parser.add_argument("--budgets", action="store_true", help="the default at four budgets, beside all others")
    parser.add_argument("--inputs", type=int, default=60, help="per part; the table has 40")
    parser.add_argument("--methods", nargs="+", help="rows to measure, instead of all; 'shap 256' and its like only so")
    parser.add_argument("--data", type=Path, help="sentences for the text part")
    parser.add_argument("--model", type=Path, help="folder of a classifier of texts, instead of the shipped one")
    parser.add_argument("--rows", type=Path, help="census rows (csv) for the table part, instead of the 40 shipped")
    parser.add_argument("--photos", type=Path, help="folder or tar file for the image part, instead of textures")
    parser.add_argument("--learn", nargs="+", type=int, default=[], help="forwards to learn explanations with")
    parser.add_argument("--learn-from", type=Path, help="sentences to learn from, for the text part")
    parser.add_argument("--cache", type=Path, default=CACHE, help="folder where trained models are kept")
    parser.add_argument("--device", default="cpu", help="of models, in training too; judged are numbers on the CPU")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="folder for every number, as JSON")
    parser.add_argument("--resume", action="store_true", help="measure only what --out does not have yet")
    parser.add_argument("--picture", type=Path, help="folder: draw what --out has, and measure nothing")
    options = parser.parse_args(given)
    if options.photos is None and any(part in image.SHIPPED for part in options.part):
        parser.error(f"{' and '.join(image.SHIPPED)} need --photos")
    if options.out is None and (options.resume or options.picture is not None):
        parser.error("--resume and --picture need the --out of the run that has measured")
    return options


def main(given: list[str] | None = None) -> int:
    options = arguments(given)
    if options.picture is not None:
        from bench.frontier.picture import draw

        for path in sorted(options.out.glob("*.json")):
            print(draw(json.loads(path.read_text()), options.picture / f"frontier_{path.stem}.png"))
        return 0
    torch.set_num_threads(1)
    print(machine(options.device))
    if options.out is not None:
        options.out.mkdir(parents=True, exist_ok=True)
    for part in options.part:
        for subject, contenders in subjects(part, options):
            print(f"\n{subject.name}: {subject.made_of}", flush=True)
            among = budgets.contenders(subject.masking) if options.budgets else contenders
            names = [n for n in among if wanted(n, options.methods)]
            path = None if options.out is None else file_of(options.out, subject.name)
            if path is not None and path.exists() and not options.resume:
                path.unlink()
            done = measured(subject, among, names, path, options.device)
            more = learned(subject, options.learn, options.seed)  # last: guide="auto" takes a learned one
            report(subject, done | measured(subject, more, list(more), path, options.device))
            if options.budgets:
                print("\n".join(["", *budgets.cells(done)]), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
