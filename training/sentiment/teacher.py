"""Step 1: fine-tune all-MiniLM-L6-v2."""

from pathlib import Path

import torch
from torch.nn import functional as F
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from training.machine import pick_device, say
from training.sentiment.acceptance import EVERYDAY_CHECK
from training.sentiment.classifier import accuracy, encode, fit, show_acceptance
from training.sentiment.labelled import load_labelled
from training.sentiment.treebank import read_tsv


def teacher_folder(args, seed):
    return Path(args.work) / f"teacher-{seed}"


def train_teacher(args, seed):
    """Fine-tune one teacher on every labelled text."""
    torch.manual_seed(seed)
    sources, _ = load_labelled(args)
    rows = [row for part in sources.values() for row in part]
    tokenizer = AutoTokenizer.from_pretrained(args.teacher)
    model = AutoModelForSequenceClassification.from_pretrained(args.teacher, num_labels=2, dtype=torch.float32).to(
        pick_device()
    )
    ids, lengths = encode(tokenizer, [text for text, _ in rows], model.device)
    labels = torch.tensor([label for _, label in rows], device=model.device)
    dev = read_tsv(Path(args.data) / "sst" / "dev.tsv")

    def report(epoch, loss):
        say(
            f"teacher {seed} epoch {epoch} loss {loss:.4f} dev {accuracy(model, tokenizer, dev):.4f}",
            f"everyday {accuracy(model, tokenizer, EVERYDAY_CHECK):.3f}",
        )

    settings = {"seed": seed, "batch": args.teacher_batch, "lr": args.teacher_lr, "epochs": args.teacher_epochs}
    fit(model, ids, lengths, lambda logits, batch: F.cross_entropy(logits, labels[batch]), settings, report)
    show_acceptance(model, tokenizer)
    model.save_pretrained(teacher_folder(args, seed))
    tokenizer.save_pretrained(teacher_folder(args, seed))


def teacher_embeddings(args):
    model = AutoModelForSequenceClassification.from_pretrained(args.teacher, dtype=torch.float32)
    return model.get_input_embeddings().weight.detach()
