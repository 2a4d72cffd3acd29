r"""Classifiers of texts for ``python -m bench.frontier --part text --model``: fine-tuned, or trained from nothing.

    python -m bench.finetune --base MINILM --data sst/train.tsv --test sst/dev.tsv --out sst-minilm
    python -m bench.finetune --base MINILM --data imdb50k.csv.xz --out imdb-minilm
    python -m bench.finetune --base MINILM --shape modernbert --data sst/train.tsv --test sst/dev.tsv --texts 6920 \
        --epochs 3 --lr 1e-3 --out sst-modernbert

--base is a folder in the format of transformers. With --shape only its tokenizer is used, and the weights begin at
random: "modernbert" (rotary positions, norms first, gated MLPs) averages all positions before its head, "roberta"
reads the first one, "gpt2" looks back only and reads the last one. Some of their tokens are masked in training, so that
a mask is nothing new to them.

--data and --test are lines of ``text<TAB>label``, or a csv.xz with the columns review and sentiment; without --test,
the texts behind those of training are. Texts are cut to --length tokens.

The folder --out holds model, tokenizer and ``held_out.tsv``, texts that training did not see, cut as the model reads
them: what --data of bench.frontier takes.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path
from typing import Any

import torch
from torch.nn import functional as F
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging as transformers_logging

from training.machine import say
from training.sentiment.classifier import LABELS, MAX_LENGTH, accuracy, encode, fit
from training.sentiment.reviews import read_reviews
from training.sentiment.treebank import read_tsv

HELD_OUT = "held_out.tsv"
SHAPES: dict[str, dict[str, Any]] = {
    "modernbert": {"classifier_pooling": "mean", "global_attn_every_n_layers": 1},
    "roberta": {"max_position_embeddings": MAX_LENGTH + 2, "type_vocab_size": 1},
    "gpt2": {"max_position_embeddings": MAX_LENGTH},
}
HEADS = 4
LONGEST = 512
MASKED = 0.15  # share of the tokens that a new model reads as masks
Texts = list[tuple[str, int]]


def labelled(path: Path, count: int = sys.maxsize) -> Texts:
    """The first texts of a file, each in one line, with the number of its class."""
    rows = read_tsv(path) if path.suffix == ".tsv" else read_reviews(path, count)
    return [(" ".join(re.sub(r"<br\s*/?>", " ", text).split()), label) for text, label in rows[:count]]


def cut(tokenizer: Any, text: str) -> str:
    """The beginning of a text that the model can read."""
    length = min(tokenizer.model_max_length, LONGEST)
    ends = tokenizer(text, truncation=True, max_length=length, return_offsets_mapping=True)["offset_mapping"]
    return text[: max(end for _, end in ends)]


def untrained(shape: str, tokenizer: Any, layers: int, width: int, classes: int) -> Any:
    config = AutoConfig.for_model(
        shape,
        **SHAPES[shape],
        vocab_size=len(tokenizer),
        hidden_size=width,
        intermediate_size=4 * width,
        num_hidden_layers=layers,
        num_attention_heads=HEADS,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.cls_token_id,
        eos_token_id=tokenizer.sep_token_id,
        cls_token_id=tokenizer.cls_token_id,
        sep_token_id=tokenizer.sep_token_id,
        num_labels=classes,
    )
    return AutoModelForSequenceClassification.from_config(config)


def masked(ids_NT: torch.Tensor, tokenizer: Any, seed: int) -> torch.Tensor:
    """The ids with some of the words masked."""
    drawn = torch.rand(ids_NT.shape, generator=torch.Generator().manual_seed(seed)) < MASKED
    special = torch.isin(ids_NT, torch.tensor(tokenizer.all_special_ids, dtype=ids_NT.dtype))
    return torch.where(drawn & ~special, tokenizer.mask_token_id, ids_NT)


def arguments(words: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.finetune", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, required=True, help="folder of a pretrained encoder and its tokenizer")
    parser.add_argument("--shape", choices=SHAPES, help="a new model of this kind instead of the pretrained one")
    parser.add_argument("--layers", type=int, default=4, help="of a new model")
    parser.add_argument("--width", type=int, default=128, help="of a new model")
    parser.add_argument("--data", type=Path, required=True, help="texts with labels")
    parser.add_argument("--test", type=Path, help="texts with labels that training does not see")
    parser.add_argument("--texts", type=int, default=4000, help="to train on")
    parser.add_argument("--held-out", type=int, default=1000, help="texts to test on, at most")
    parser.add_argument("--length", type=int, default=MAX_LENGTH, help="tokens of a text, at most; 128 with --shape")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--lr", type=float, default=1e-4)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True, help="folder of the finished classifier")
    return parser.parse_args(words)


def main(words: list[str] | None = None) -> int:
    options = arguments(words)
    torch.set_num_threads(1)
    torch.manual_seed(options.seed)
    transformers_logging.set_verbosity_error()
    transformers_logging.disable_progress_bar()
    tokenizer = AutoTokenizer.from_pretrained(options.base, model_max_length=options.length)
    rows = labelled(options.data, options.texts + (0 if options.test else options.held_out))
    train = rows[: options.texts]
    test = labelled(options.test, options.held_out) if options.test else rows[options.texts :]
    classes = 1 + max(label for _, label in rows)
    if options.shape is None:
        model = AutoModelForSequenceClassification.from_pretrained(
            options.base, num_labels=classes, dtype=torch.float32
        )
    else:
        model = untrained(options.shape, tokenizer, options.layers, options.width, classes)
    if classes == len(LABELS):
        model.config.id2label, model.config.label2id = LABELS, {label: index for index, label in LABELS.items()}
    model.to(options.device)
    ids, lengths = encode(tokenizer, [text for text, _ in train], model.device, options.length)
    if options.shape is not None:
        ids = masked(ids.cpu(), tokenizer, options.seed).to(model.device)
    labels = torch.tensor([label for _, label in train], device=model.device)

    def report(epoch: int, loss: float) -> None:
        right = accuracy(model, tokenizer, test, options.length)
        say(f"epoch {epoch}, loss {loss:.3f}, right on held-out texts: {right:.3f}")

    settings = {name: getattr(options, name) for name in ("seed", "batch", "lr", "epochs")}
    fit(model, ids, lengths, lambda logits, batch: F.cross_entropy(logits, labels[batch]), settings, report)
    model.save_pretrained(options.out)
    tokenizer.save_pretrained(options.out)
    lines = [f"{cut(tokenizer, text)}\t{label}\n" for text, label in test]
    (options.out / HELD_OUT).write_text("".join(lines), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
