"""Train a tiny translator between two invented languages, and show what its heads do.

    python -m training.translation [--out FOLDER] [--steps 1000] [--heads]

In the second language adjectives follow their noun, the verb goes to the end and the adverb behind it, and a word takes
the ending -en where the word before it, in the source, is a soft one (every second of the lexicon): "a red dog follows
a cat" becomes "un hund roten un katz folgt". So the model has to know each word's neighbour and where its translation
goes; the last is known here, and heads of the cross-attention can be held to it. Minutes on one CPU core.

--heads prints roles, confidence, relevance and ablation of the encoder, decoder and cross heads on new sentences, and
what the layers do. --out writes the model, its tokenizer and sentences.txt for
``whyformer heads --model FOLDER --file FOLDER/sentences.txt``.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

DETERMINERS = {"the": "le", "a": "un", "this": "jen", "every": "jede"}
ADJECTIVES = {"red": "rot", "small": "klen", "old": "alt", "happy": "froh", "green": "grun", "quiet": "stil"}
NOUNS = {
    "dog": "hund",
    "cat": "katz",
    "king": "kong",
    "tree": "baum",
    "house": "haus",
    "bird": "vogel",
    "child": "kind",
}
VERBS = {"sees": "sieht", "likes": "mag", "finds": "findet", "paints": "malt", "follows": "folgt"}
ADVERBS = {"quickly": "schnell", "gladly": "gern", "never": "nie", "today": "heute"}
LEXICON = DETERMINERS | ADJECTIVES | NOUNS | VERBS | ADVERBS
SOFT = frozenset(list(LEXICON)[1::2])
ENDING = "en"
PAD, BEGIN, END, UNKNOWN = "<pad>", "<s>", "</s>", "<unk>"


@dataclass(frozen=True)
class Sentence:
    """A source and its translation; ``order[t]`` is the word of the source that word t translates."""

    source: tuple[str, ...]
    order: tuple[int, ...]

    @property
    def target(self) -> tuple[str, ...]:
        before = (None, *self.source)
        return tuple(LEXICON[self.source[i]] + ENDING * (before[i] in SOFT) for i in self.order)

    @property
    def pair(self) -> tuple[str, str]:
        return " ".join(self.source), " ".join(self.target)

    @property
    def alignment(self) -> list[tuple[int, int]]:
        """(source token, decoder position that writes its translation); both texts begin with <s>."""
        return [(source + 1, target + 1) for target, source in enumerate(self.order)]


def sentence(draw: random.Random) -> Sentence:
    """One sentence: subject, adverb or none, verb, object."""
    words: list[str] = []
    order: list[int] = []

    def pick(lexicon: dict[str, str]) -> int:
        choices = list(lexicon)
        words.append(draw.choices(choices, [1 / (i + 1) for i in range(len(choices))])[0])
        return len(words) - 1

    def noun_phrase() -> None:
        determiner = pick(DETERMINERS)
        adjectives = [pick(ADJECTIVES) for _ in range(draw.choice((0, 0, 1, 1, 2)))]
        order.extend([determiner, pick(NOUNS), *adjectives])

    noun_phrase()
    adverb = [pick(ADVERBS)] if draw.random() < 0.5 else []
    verb = pick(VERBS)
    noun_phrase()
    order.extend([verb, *adverb])
    return Sentence(tuple(words), tuple(order))


def sentences(count: int, seed: int) -> list[Sentence]:
    draw = random.Random(seed)
    return [sentence(draw) for _ in range(count)]


def tokenizer_of_both() -> Any:
    """Words of both languages, with beginning and end marked."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    both = [word + ending for word in LEXICON.values() for ending in ("", ENDING)]
    words = {word: i for i, word in enumerate([PAD, BEGIN, END, UNKNOWN, *LEXICON, *both])}
    words_alone = Tokenizer(models.WordLevel(words, unk_token=UNKNOWN))
    words_alone.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    marks = [(mark, words[mark]) for mark in (BEGIN, END)]
    words_alone.post_processor = processors.TemplateProcessing(single=f"{BEGIN} $A {END}", special_tokens=marks)
    return PreTrainedTokenizerFast(
        tokenizer_object=words_alone, pad_token=PAD, bos_token=BEGIN, eos_token=END, unk_token=UNKNOWN,
        model_input_names=["input_ids", "attention_mask"],
    )  # fmt: skip


def untrained(tokenizer: Any, width: int, layers: int, heads: int) -> nn.Module:
    """A T5 of these sizes; its heads learn how much each relative position counts."""
    from transformers import T5Config, T5ForConditionalGeneration

    config = T5Config(
        vocab_size=len(tokenizer),
        d_model=width,
        d_kv=width // heads,
        d_ff=2 * width,
        num_layers=layers,
        num_decoder_layers=layers,
        num_heads=heads,
        dropout_rate=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.pad_token_id,
    )
    model: nn.Module = T5ForConditionalGeneration(config)
    return model


def train(
    *, steps: int = 1000, width: int = 64, layers: int = 2, heads: int = 4, batch: int = 32, seed: int = 0
) -> tuple[nn.Module, Any]:
    """Model and tokenizer after so many steps of Adam on fresh sentences."""
    torch.manual_seed(seed)
    tokenizer = tokenizer_of_both()
    model = untrained(tokenizer, width, layers, heads)
    optimizer = torch.optim.Adam(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 50) * (1 - step / (steps + 1))
    )
    draw = random.Random(seed)
    for _ in range(steps):
        pairs = [sentence(draw).pair for _ in range(batch)]
        inputs = encoded(tokenizer, pairs)
        loss = model(**inputs).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    return model.eval(), tokenizer


def encoded(tokenizer: Any, pairs: Sequence[tuple[str, str]]) -> dict[str, torch.Tensor]:
    inputs = dict(tokenizer([source for source, _ in pairs], return_tensors="pt", padding=True))
    labels = tokenizer([target for _, target in pairs], return_tensors="pt", padding=True)["input_ids"]
    inputs["labels"] = labels.masked_fill(labels == tokenizer.pad_token_id, -100)
    return inputs


@torch.no_grad()
def exact(model: nn.Module, tokenizer: Any, test: Sequence[Sentence]) -> float:
    """Share of sentences whose greedy translation is right in every word."""
    sources = dict(tokenizer([s.pair[0] for s in test], return_tensors="pt", padding=True))
    written = model.generate(**sources, max_new_tokens=24, num_beams=1, do_sample=False)  # type: ignore[operator]
    texts = tokenizer.batch_decode(written, skip_special_tokens=True)
    return sum(text == s.pair[1] for text, s in zip(texts, test, strict=True)) / len(test)


def print_heads(model: nn.Module, tokenizer: Any, test: Sequence[Sentence]) -> None:
    """Print the tables of docs/reports/heads.md."""
    from whyformer import heads

    pairs = [s.pair for s in test]
    found = heads.roles(model, pairs, processor=tokenizer, alignments=[s.alignment for s in test])
    sure = heads.head_importance(model, pairs, processor=tokenizer, kind="confidence")
    matter = heads.head_importance(model, pairs[:20], processor=tokenizer, kind="ablation")
    passing = heads.head_importance(model, pairs[:20], processor=tokenizer, kind="relevance", rule="generic")
    print("| part | layer | head | role | offset: share | aligned | rare | confidence | relevance | ablation |")
    print("|---" * 10 + "|")
    for row in found.rows():
        at = row["layer"], row["head"]
        offset = f"{row['offset'][0]:+d}: {row['positional']:.2f}"
        aligned = "" if row["part"] != "cross" else f"{row['aligned']:.2f}"
        numbers = " | ".join(f"{table.scores[at]:.2f}" for table in (sure, passing, matter))
        print(
            f"| {row['part']} | {row['depth']} | {row['head']} | {row['role']} | {offset} | {aligned} | "
            f"{row['rare']:.2f} | {numbers} |"
        )
    print(f"\nchance: aligned {found.aligned_chance:.2f}, rare {found.rare_chance:.2f}\n")
    profile = heads.layer_profile(model, pairs[:20], processor=tokenizer)
    print("| part | layer | relevance added | entropy | distance |\n|---|---|---|---|---|")
    for row in profile.rows():
        curves = " | ".join(f"{row[name]:.2f}" for name in ("relevance added", "entropy", "distance"))
        print(f"| {row['part']} | {row['depth']} | {curves} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="folder for the model, its tokenizer and sentences.txt")
    parser.add_argument("--steps", type=int, default=1000, help="of 32 sentences each")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--heads", action="store_true", help="print what the heads do")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    model, tokenizer = train(steps=arguments.steps, seed=arguments.seed)
    test = sentences(100, seed=10_000 + arguments.seed)
    print(f"{exact(model, tokenizer, test):.1%} of {len(test)} new sentences are translated without a mistake\n")
    if arguments.heads:
        print_heads(model, tokenizer, test)
    if arguments.out is not None:
        model.save_pretrained(arguments.out)  # type: ignore[operator]
        tokenizer.save_pretrained(arguments.out)
        (arguments.out / "sentences.txt").write_text("\n".join(s.pair[0] for s in test) + "\n", encoding="utf-8")
        print(f"wrote {arguments.out}")


if __name__ == "__main__":
    main()
