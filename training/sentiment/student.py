"""Steps 3 and 4: a vocabulary and a small BERT that learns from the labelled texts, saved and measured."""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import BertWordPieceTokenizer
from torch.nn import functional as F
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
)

from training.machine import pick_device, say
from training.sentiment.acceptance import EVERYDAY_CHECK
from training.sentiment.classifier import LABELS, MAX_LENGTH, accuracy, encode, fit, show_acceptance
from training.sentiment.teacher import teacher_embeddings
from training.sentiment.transfer import UNKNOWN
from training.sentiment.treebank import read_tsv


def train_vocabulary(args, texts):
    """A lower-case WordPiece vocabulary, as a list of tokens."""
    trainer = BertWordPieceTokenizer(lowercase=True)
    trainer.train_from_iterator(texts, vocab_size=args.vocab, min_frequency=2, limit_alphabet=120, show_progress=False)
    return sorted(trainer.get_vocab(), key=trainer.get_vocab().get)


@torch.no_grad()
def start_embeddings(args, vocabulary):
    """Principal components of the teacher's embedding of each token (the mean over its pieces)."""
    tokenizer = AutoTokenizer.from_pretrained(args.teacher)
    table, known, special = teacher_embeddings(args), tokenizer.get_vocab(), set(tokenizer.all_special_ids)
    rows = []
    for token in vocabulary:
        pieces = [known[token]] if token in known else tokenizer.encode(token.removeprefix("##"))
        plain = [piece for piece in pieces if piece not in special] or pieces
        rows.append(table[plain].mean(0))
    rows = torch.stack(rows)
    rows = rows - rows.mean(0)
    basis = torch.linalg.svd(rows, full_matrices=False).Vh[: args.hidden]
    start = rows @ basis.T
    return start * (0.04 / start.std())


def new_student(args, vocabulary):
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=args.inner or 4 * args.hidden,
        max_position_embeddings=MAX_LENGTH,
        type_vocab_size=2,
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
        id2label=LABELS,
        label2id={name: index for index, name in LABELS.items()},
    )
    model = BertForSequenceClassification(config)
    model.bert.embeddings.word_embeddings.weight.data.copy_(start_embeddings(args, vocabulary))
    return model


def distillation_loss(args, targets, labels):
    """Cross-entropy with the softened teacher, plus that with the label where it is known."""
    soft = F.softmax(targets / args.temperature, dim=1)

    def loss_of(logits, batch):
        losses = -(soft[batch] * F.log_softmax(logits / args.temperature, dim=1)).sum(1)
        known = (labels[batch] != UNKNOWN).float()
        hard = F.cross_entropy(logits, labels[batch].clamp(min=0), reduction="none")
        return (args.temperature**2 * losses + args.hard * known * hard).mean()

    return loss_of


def train_student(args):
    torch.manual_seed(args.seed)
    texts = json.loads((Path(args.work) / "transfer.json").read_text(encoding="utf-8"))
    stored = load_file(Path(args.work) / "transfer.safetensors")
    vocabulary = train_vocabulary(args, texts)
    tokenizer = BertTokenizerFast(
        vocab={token: index for index, token in enumerate(vocabulary)}, do_lower_case=True, model_max_length=MAX_LENGTH
    )
    model = new_student(args, vocabulary).to(pick_device())
    say(f"student with {sum(p.numel() for p in model.parameters()):,} parameters, {len(vocabulary)} tokens")
    ids, lengths = encode(tokenizer, texts, model.device)
    loss_of = distillation_loss(args, stored["logits"].to(model.device), stored["labels"].to(model.device))
    dev = read_tsv(Path(args.data) / "sst" / "dev.tsv")

    def report(epoch, loss):
        say(
            f"student epoch {epoch} loss {loss:.4f} dev {accuracy(model, tokenizer, dev):.4f}",
            f"everyday {accuracy(model, tokenizer, EVERYDAY_CHECK):.3f}",
        )

    settings = {"seed": args.seed, "batch": args.batch, "lr": args.lr, "epochs": args.epochs}
    fit(model, ids, lengths, loss_of, settings, report)
    show_acceptance(model, tokenizer)
    save_student(model, tokenizer, vocabulary, Path(args.out))


def save_student(model, tokenizer, vocabulary, folder):
    """Half-precision weights; the config asks for float32, so that they load as float32."""
    model = model.cpu()
    model.half().save_pretrained(folder)
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    (folder / "model.safetensors").chmod(0o644)
    size = sum(path.stat().st_size for path in folder.iterdir())
    say(f"saved to {folder}: {size / 1e6:.2f} MB")


def load_student(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    return model.to(pick_device()), AutoTokenizer.from_pretrained(folder)


def test_student(args):
    model, tokenizer = load_student(args.out)
    for split in ("dev", "test"):
        rows = read_tsv(Path(args.data) / "sst" / f"{split}.tsv")
        say(f"{split}: {accuracy(model, tokenizer, rows):.4f} of {len(rows)} sentences")
    say(f"everyday: {accuracy(model, tokenizer, EVERYDAY_CHECK):.3f} of {len(EVERYDAY_CHECK)} sentences")
    show_acceptance(model, tokenizer)
