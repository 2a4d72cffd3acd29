"""Every labelled text, by the source it comes from."""

import random
from pathlib import Path

from training.machine import say
from training.sentiment.acceptance import near_acceptance
from training.sentiment.everyday import everyday_sentences
from training.sentiment.reviews import read_reviews, review_ending
from training.sentiment.treebank import detokenize, held_out_keys, key_of, read_phrases, read_tsv


def load_labelled(args):
    """The labelled texts by source, none of them held out or near an acceptance sentence."""
    rng = random.Random(args.data_seed)
    sst = Path(args.data) / "sst"
    held_out = held_out_keys(sst)
    reviews = read_reviews(Path(args.data) / "imdb50k.csv.xz", args.reviews)
    sentences = [row for row in read_tsv(sst / "train.tsv") if key_of(row[0]) not in held_out]
    natural = [(detokenize(text), label) for text, label in sentences]
    sources = {
        "sentences": sentences,
        "natural": [row for row, old in zip(natural, sentences, strict=True) if row != old],
        "phrases": read_phrases(sst, held_out),
        "endings": [(review_ending(text, rng), label) for text, label in reviews],
        "everyday": everyday_sentences(args.everyday, rng),
    }
    if args.limit:
        sources = {name: rows[: args.limit] for name, rows in sources.items()}
        reviews = reviews[: args.limit]
    sources = {name: [row for row in rows if not near_acceptance(row[0])] for name, rows in sources.items()}
    say(", ".join(f"{name} {len(rows)}" for name, rows in sources.items()))
    return sources, reviews
