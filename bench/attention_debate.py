"""Is attention an explanation? wf.attention_debate on two data sets, two encoders, beside the papers' numbers.

    python -m bench.attention_debate --sst SST --imdb imdb50k.csv.xz [--out debates] [--processes 4]

SST holds train.tsv and test.tsv, one "sentence<TAB>label" per line; the other file has the columns review and
sentiment. A BiLSTM with additive attention (Jain & Wallace 2019) and a BERT of two layers learn each of them from
nothing; copies start from what they learned. Prints tables with the papers' numbers beside; debates that lie in the
folder are read.
"""

from __future__ import annotations

import argparse
import csv
import lzma
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

import whyformer as wf
from bench.jobs import Job, done_jobs
from whyformer.checks.attention_debate import AttentionDebate
from whyformer.checks.retrained import CONTROL, GUIDES, MODEL, SEEDS, UNIFORM

WIDTH, BATCH, EPOCHS, WORDS = 64, 32, 3, 40
RATES = {"BiLSTM": 3e-3, "BERT": 1e-3}
# Kendall's τ: Jain & Wallace 2019, LSTM with tanh attention, mean of each class, and of gradients with leave-one-out.
# F1: Wiegreffe & Pinter 2019, tables 2 and 3 (LSTM).
PAPERS: dict[str, dict[str, str]] = {
    "SST": {
        "τ with gradients": "0.34, 0.36",
        "τ with leave-one-out": "0.27, 0.32",
        "τ of gradients with leave-one-out": "0.66",
        "own attention, retrained": "0.831",
        "uniform attention, retrained": "0.822",
        "MLP, uniform weights": "0.812",
        "MLP, weights it learns": "0.817",
        "MLP, the base LSTM's attention": "0.824",
        "MLP, the adversary's attention": "0.592",
    },
    "IMDb": {
        "τ with gradients": "0.44, 0.43",
        "τ with leave-one-out": "0.34, 0.34",
        "τ of gradients with leave-one-out": "0.52",
        "own attention, retrained": "0.902",
        "uniform attention, retrained": "0.879",
        "MLP, uniform weights": "0.863",
        "MLP, weights it learns": "0.888",
        "MLP, the base LSTM's attention": "0.905",
        "MLP, the adversary's attention": "0.700",
    },
}


class AttentiveBiLSTM(nn.Module):
    """Embedding, one bidirectional LSTM, additive attention without a query, a linear decision."""

    def __init__(self, vocabulary: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, WIDTH)
        self.encode = nn.LSTM(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)
        self.inner, self.score = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 1, bias=False)
        self.softmax, self.decide = nn.Softmax(-1), nn.Linear(WIDTH, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        lengths = attention_mask.sum(1).cpu()
        packed = pack_padded_sequence(self.embedding(input_ids), lengths, batch_first=True, enforce_sorted=False)
        states, _ = pad_packed_sequence(self.encode(packed)[0], batch_first=True, total_length=input_ids.shape[1])
        scores = self.score(self.inner(states).tanh())[..., 0]
        weights = self.softmax(scores.masked_fill(attention_mask == 0, -1e9))
        logits: Tensor = self.decide((weights[..., None] * states).sum(1))
        return logits


def made(encoder: str, vocabulary: int) -> nn.Module:
    if encoder == "BiLSTM":
        return AttentiveBiLSTM(vocabulary)
    from transformers import BertConfig, BertForSequenceClassification

    size: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": 2, "num_attention_heads": 4}
    size |= {"vocab_size": vocabulary, "intermediate_size": 2 * WIDTH, "max_position_embeddings": 512}
    return BertForSequenceClassification(BertConfig(hidden_dropout_prob=0, attention_probs_dropout_prob=0, **size))


Examples = tuple[list[str], list[int]]


def examples_of(name: str, path: Path, train: int, held: int) -> tuple[Examples, Examples]:
    """Texts with labels to train on, and held out. Of a review, the last words: it ends with what it says."""
    if name == "SST":
        parts = []
        for part in ("train", "test"):
            lines = (path / f"{part}.tsv").read_text(encoding="utf-8").splitlines()
            parts.append([line.rsplit("\t", 1) for line in lines if line.strip()])
    else:
        with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
            rows = [(r["review"].replace("<br />", " "), r["sentiment"]) for r in csv.DictReader(file)]
        every = [[" ".join(text.split()[-WORDS:]), str(int(label == "positive"))] for text, label in rows]
        parts = [every[:25_000], every[25_000:]]
    chosen = []
    for part, count in zip(parts, (train, held), strict=True):
        some = [part[i] for i in np.random.default_rng(0).permutation(len(part))[:count]]
        chosen.append(([text for text, _ in some], [int(label) for _, label in some]))
    return chosen[0], chosen[1]


def learned(model: nn.Module, tokenizer: Any, examples: Examples, epochs: int, lr: float) -> nn.Module:
    """As the copies learn: Adam, gradients clipped to length 1."""
    texts, labels = examples
    optimizer = torch.optim.Adam(model.parameters(), lr=lr)
    for _ in range(epochs):
        for some in torch.randperm(len(texts)).split(BATCH):
            tokens = tokenizer([texts[i] for i in some], padding=True, return_tensors="pt", return_token_type_ids=False)
            output = model(**tokens)
            loss = nn.functional.cross_entropy(getattr(output, "logits", output), torch.tensor(labels)[some])
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
    return model.eval()


def debated(job: Job, paths: dict[str, Path], train: int, copies: int, held: int, tested: int, folder: Path) -> Path:
    """One debate, stored in the folder."""
    torch.set_num_threads(1)
    (data, encoder), seed = job[0].split(), job[1]
    file = folder / f"{data}_{encoder}.json"
    if file.exists():
        return file
    _, tokenizer = wf.demo.load_sentiment()
    examples, others = examples_of(data, paths[data], train, held)
    torch.manual_seed(seed)
    model = learned(made(encoder, len(tokenizer)), tokenizer, examples, EPOCHS, RATES[encoder])
    some = tuple(part[:copies] for part in examples)
    how: dict[str, Any] = {"attention_at": {"softmax": "b k"}} if encoder == "BiLSTM" else {}
    how |= {"epochs": 2, "lr": RATES[encoder], "lambdas": (0.1,), "seeds": 3, "tested": tested, "guide_epochs": 6}
    how |= {"validation": others, "tokenizer": tokenizer, "batch_size": BATCH, "seed": seed, "progress": False}
    return wf.attention_debate(model, *some, **how).save(file)


def both_classes(debate: AttentionDebate, name: str) -> str:
    means = [np.nanmean([getattr(test, name) for test in tests]) for tests in debate.classes.values()]
    return ", ".join(f"{mean:.2f}" for mean in means)


def cells_of(debate: AttentionDebate) -> dict[str, str]:
    tests, copies = debate.tests, debate.copies
    f1 = {m.name: f"{m.f1:.3f}" for m in copies.models}
    seeds = [m for m in copies.models if m.name in (CONTROL, SEEDS)]
    entropy, change = ([getattr(t, name) for t in tests.inputs] for name in ("entropy", "median_change"))

    def three(name: str) -> str:
        mean, low, high = tests.spread(name)
        return f"{mean:.3f} [{low:.3f}, {high:.3f}]"

    cells = {f"τ with {words}": both_classes(debate, f"tau_{n}") for n, words in TAUS.items()}
    cells |= {f"significant, {words}": f"{tests.significant(n):.0%}" for n, words in TAUS.items()}
    cells["τ of gradients with leave-one-out"] = f"{tests.mean('tau_between'):.2f}"
    cells["shuffled: change of the output"] = three("median_change")
    cells["its correlation with the entropy of attention"] = f"{spearmanr(entropy, change).statistic:.2f}"
    cells["adversarial: JSD"] = three("jsd")
    cells["adversarial: TVD"] = three("change")
    cells["the model"] = f1[MODEL]
    among = [m.f1 for m in seeds]
    cells["own attention, retrained"] = f"{np.mean(among):.3f} ({min(among):.3f} to {max(among):.3f})"
    cells["uniform attention, retrained"] = f1[UNIFORM]
    cells |= {name: f1[name] for name in GUIDES}
    cells["other seeds: TVD, JSD"] = ", ".join(f"{np.mean([getattr(m, n) for m in seeds]):.2f}" for n in ("tvd", "jsd"))
    cells |= {f"copy, λ = {m.weight:g}: TVD, JSD": f"{m.tvd:.2f}, {m.jsd:.2f}" for m in copies.adversaries}
    cells |= {f.title: f.level for f in debate.findings() if f.title != "Other seeds"}
    return cells | {"Verdict": debate.verdict}


TAUS = {"gradient": "gradients", "loo": "leave-one-out"}


def report(debates: dict[str, AttentionDebate]) -> None:
    """The tables as markdown, and which differences between guides are significant."""
    shown = {name: cells_of(debate) for name, debate in debates.items()}
    sets = list(dict.fromkeys(name.split()[0] for name in debates))
    columns = [column for data in sets for column in (*(n for n in debates if n.split()[0] == data), f"{data}, papers")]
    print("\n| | " + " | ".join(columns) + " |\n" + "|---" * (len(columns) + 1) + "|")
    for row in dict.fromkeys(row for cells in shown.values() for row in cells):
        cells = [shown[c].get(row, "") if c in shown else PAPERS[c.split(",")[0]].get(row, "") for c in columns]
        print(f"| {row} | " + " | ".join(cells) + " |")
    even, own_weights, lstm, _, adversary = GUIDES
    for name, debate in debates.items():
        for worse, better in ((even, own_weights), (own_weights, lstm), (even, lstm), (adversary, even)):
            gain = debate.copies.lost(debate.copies.named(better), debate.copies.named(worse))
            print(f"{name}: accuracy, {better} - {worse}: {gain[0]:+.3f} [{gain[1]:+.3f}, {gain[2]:+.3f}]")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sst", type=Path, help="folder with train.tsv and test.tsv")
    parser.add_argument("--imdb", type=Path, help="imdb50k.csv.xz")
    parser.add_argument("--encoders", nargs="+", choices=RATES, default=list(RATES))
    parser.add_argument("--out", type=Path, default=Path("debates"), help="folder of the debates")
    parser.add_argument("--train", type=int, default=4000)
    parser.add_argument("--copies", type=int, default=1000, help="of them, examples that the copies learn from")
    parser.add_argument("--held", type=int, default=400)
    parser.add_argument("--tested", type=int, default=30, help="held-out texts that Jain & Wallace's tests run on")
    parser.add_argument("--processes", type=int, default=1, help="debates at the same time")
    arguments = parser.parse_args()
    started = time.perf_counter()
    arguments.out.mkdir(parents=True, exist_ok=True)
    paths = {"SST": arguments.sst, "IMDb": arguments.imdb}
    jobs: list[Job] = [
        (f"{data} {encoder}", 0) for data, path in paths.items() if path for encoder in arguments.encoders
    ]
    sizes = {"train": arguments.train, "copies": arguments.copies, "held": arguments.held, "tested": arguments.tested}
    files = {}
    for job, file in done_jobs(jobs, arguments.processes, partial(debated, paths=paths, folder=arguments.out, **sizes)):
        files[job[0]] = file
        print(f"{job[0]}: {time.perf_counter() - started:.0f} s", flush=True)
    if not jobs:
        parser.error("give --sst, --imdb or both")
    report({name: AttentionDebate.load(files[name]) for name, _ in jobs})
    print(f"\n{sizes}, {EPOCHS} epochs, torch {torch.__version__}")


if __name__ == "__main__":
    main()
