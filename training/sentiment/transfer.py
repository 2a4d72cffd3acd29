"""Step 2: the texts that the student learns from, with what the teachers say of each."""

import json
import random
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from training.machine import pick_device, say
from training.sentiment.acceptance import near_acceptance
from training.sentiment.classifier import predict
from training.sentiment.labelled import load_labelled
from training.sentiment.reviews import split_review
from training.sentiment.teacher import teacher_embeddings
from training.sentiment.treebank import held_out_keys, key_of

UNKNOWN = -1  # the label of a text that only the teachers judge


@torch.no_grad()
def near_words(args, words, count=12):
    """For each word that is one token of the teacher: the words with the nearest embeddings."""
    tokenizer = AutoTokenizer.from_pretrained(args.teacher)
    table = teacher_embeddings(args).to(pick_device())
    known = {word: i for word, i in tokenizer.get_vocab().items() if word.isalpha() and word.isascii()}
    names, rows = list(known), torch.tensor(list(known.values()), device=table.device)
    vectors = F.normalize(table[rows], dim=1)
    asked = sorted({word for word in words if word in known and len(word) > 2})
    near = {}
    for start in range(0, len(asked), 1000):
        part = asked[start : start + 1000]
        own = F.normalize(table[torch.tensor([known[word] for word in part], device=table.device)], dim=1)
        best = (own @ vectors.T).topk(count + 1, dim=1).indices[:, 1:].tolist()
        near |= {word: [names[i] for i in indices] for word, indices in zip(part, best, strict=True)}
    return near


def replaced_copies(args, sentences, rng):
    """Copies of sentences with about a third of the words replaced by near ones, label unknown."""
    near = near_words(args, {word for text in sentences for word in text.split()})
    copies = []
    for text in sentences:
        for _ in range(args.copies):
            words = [rng.choice(near[word]) if word in near and rng.random() < 0.35 else word for word in text.split()]
            copies.append((" ".join(words), UNKNOWN))
    return copies


def transfer_texts(args):
    """Every text the student learns from, with its label or UNKNOWN."""
    rng = random.Random(args.data_seed + 1)
    sources, reviews = load_labelled(args)
    held_out = held_out_keys(Path(args.data) / "sst")
    texts = dict(replaced_copies(args, [text for text, _ in sources["sentences"]], rng))
    texts |= {part: UNKNOWN for review, _ in reviews for part in split_review(review)}
    texts |= {text: UNKNOWN for text, _ in sources.pop("endings")}  # a review's label does not fit each part
    for rows in sources.values():
        texts |= dict(rows)
    kept = [
        (text, label) for text, label in texts.items() if not near_acceptance(text) and key_of(text) not in held_out
    ]
    say(f"{len(kept)} texts in the transfer set")
    return kept


def label_texts(args):
    """Write WORK/transfer.json and WORK/transfer.safetensors (labels, mean logits of the teachers)."""
    rows = transfer_texts(args)
    texts = [text for text, _ in rows]
    logits = torch.zeros(len(rows), 2)
    folders = sorted(Path(args.work).glob("teacher-*"))
    for folder in folders:
        model = AutoModelForSequenceClassification.from_pretrained(folder).to(pick_device())
        logits += predict(model, AutoTokenizer.from_pretrained(folder), texts) / len(folders)
        say("labelled by", folder.name)
    labels = torch.tensor([label for _, label in rows])
    known = labels != UNKNOWN
    agreed = (logits.argmax(1)[known] == labels[known]).float().mean()
    say(f"{len(folders)} teachers agree with {agreed:.3f} of {int(known.sum())} labels")
    save_file({"labels": labels, "logits": logits}, Path(args.work) / "transfer.safetensors")
    (Path(args.work) / "transfer.json").write_text(json.dumps(texts), encoding="utf-8")
