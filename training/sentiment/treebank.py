"""The Stanford Sentiment Treebank: its sentences, the phrases of its trees, and which of them are held out."""

import gzip
import re

from training.machine import say


def words_of(text):
    """The plain lower-case words of a text, to compare texts whatever their punctuation."""
    return re.findall(r"[a-z0-9']+", text.lower().replace("-lrb-", "lrb").replace("-rrb-", "rrb"))


def key_of(text):
    return " ".join(words_of(text))


def read_tsv(path):
    rows = (line.rsplit("\t", 1) for line in path.read_text(encoding="utf-8").splitlines() if line)
    return [(text, int(label)) for text, label in rows]


def read_trees(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def tree_text(tree):
    return " ".join(re.findall(r"\(\d ([^()]+)\)", tree))


def tree_phrases(tree):
    """Every phrase of a tree such as ``(3 (2 a) (3 b))``, as (text, label from 0 to 4)."""
    stack, phrases = [], []
    for label, word, close in re.findall(r"\((\d) |([^() ]+)|(\))", tree):
        if label:
            stack.append((int(label), []))
        elif word:
            stack[-1][1].append(word)
        elif close:
            number, inside = stack.pop()
            phrases.append((" ".join(inside), number))
            if stack:
                stack[-1][1].extend(inside)
    return phrases


def tidy_phrase(text):
    """A tree's phrase in the way the .tsv files write theirs: lower case, no hyphens, no full stop."""
    text = text.replace("-LRB-", "lrb").replace("-RRB-", "rrb").replace("\\/", " ").replace("-", " ")
    return re.sub(r" \.$", "", " ".join(text.lower().split()))


def held_out_keys(sst):
    """Keys of every dev and test sentence, the neutral ones included."""
    texts = []
    for split in ("dev", "test"):
        texts += [text for text, _ in read_tsv(sst / f"{split}.tsv")]
        texts += [tree_text(tree) for tree in read_trees(sst / f"trees_{split}.txt.gz")]
    return {key_of(text) for text in texts}


def read_phrases(sst, held_out):
    """Labelled phrases of the training trees, without the neutral ones.

    The file of training trees may also hold dev trees: a tree whose sentence is held out is dropped.
    """
    trees = read_trees(sst / "trees_train.txt.gz")
    trees = [tree for tree in trees if key_of(tree_text(tree)) not in held_out]
    found = {}
    for tree in trees:
        for text, label in tree_phrases(tree):
            if label != 2 and words_of(text):
                found.setdefault(tidy_phrase(text), label)
    say(f"{len(trees)} training trees, {len(found)} phrases that are not neutral")
    return [(text, int(label > 2)) for text, label in found.items() if key_of(text) not in held_out]


def detokenize(text):
    """Treebank spelling to everyday spelling: ``do n't`` becomes ``don't``."""
    text = re.sub(r" (n't|'s|'re|'ve|'ll|'d|'m)\b", r"\1", text)
    return text.replace("lrb ", "(").replace(" rrb", ")").replace("`` ", '"').replace(" ''", '"')
