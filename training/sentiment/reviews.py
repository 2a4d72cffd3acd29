"""IMDb reviews, whole and in parts."""

import csv
import html
import lzma
import re


def read_reviews(path, limit):
    with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return [
            (html.unescape(row["review"]), int(row["sentiment"] == "positive"))
            for _, row in zip(range(limit), rows, strict=False)
        ]


def split_review(review):
    """Sentences of 3 to 64 words."""
    lines = re.split(r"<br\s*/?>|\n", review)
    parts = [part.strip() for line in lines for part in re.split(r"(?<=[.!?])\s+", line)]
    return [part for part in parts if 3 <= len(part.split()) <= 64]


def review_ending(review, rng):
    """The last 15 to 90 words of a review, which mostly sum up its judgement."""
    return " ".join(re.sub(r"<br\s*/?>", " ", review).split()[-rng.randint(15, 90) :])
