"""Data, training and measures of the attention debate."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.attention_debate_models import Debated, Words

BATCH = 128
PADDING, UNKNOWN = 0, 1
TINY = 1e-8


@dataclass(frozen=True)
class Split:
    """Sentences as ids, padded to the longest; labels 0 or 1."""

    ids_NT: Tensor
    labels_N: Tensor
    lengths_N: Tensor  # on the CPU

    def words(self, rows: Tensor) -> Words:
        lengths = self.lengths_N[rows]
        width = int(lengths.max())
        ids = self.ids_NT[rows.to(self.ids_NT.device), :width]
        return Words(ids, ids != PADDING, lengths)

    def batches(self) -> Iterator[Tensor]:
        """Row numbers on the CPU, in order."""
        yield from torch.arange(len(self.labels_N)).split(512)


@dataclass(frozen=True)
class Said:
    """What a model says about a split: (N,) probability of class 1, and (N, T) attention, zero on padding."""

    probability_N: Tensor
    attention_NT: Tensor


def read(folder: Path, train: int | None, device: str) -> tuple[dict[str, Split], int]:
    """The three splits and the size of the vocabulary: lower-case words that the training part has twice."""
    rows = {name: _rows(folder / f"{name}.tsv") for name in ("train", "dev", "test")}
    if train is not None:  # a smoke test: everything smaller
        rows = {name: part[: train if name == "train" else max(40, train // 2)] for name, part in rows.items()}
    counts = Counter(word for words, _ in rows["train"] for word in words)
    known = {word: i + 2 for i, word in enumerate(w for w, n in counts.most_common() if n > 1)}
    return {name: _split(part, known, device) for name, part in rows.items()}, len(known) + 2


def _rows(path: Path) -> list[tuple[list[str], int]]:
    lines = [line.rsplit("\t", 1) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
    return [(text.lower().split(), int(label)) for text, label in lines]


def _split(rows: list[tuple[list[str], int]], known: dict[str, int], device: str) -> Split:
    lengths = torch.tensor([len(words) for words, _ in rows])
    ids = torch.full((len(rows), int(lengths.max())), PADDING)
    for i, (words, _) in enumerate(rows):
        ids[i, : len(words)] = torch.tensor([known.get(w, UNKNOWN) for w in words])
    return Split(ids.to(device), torch.tensor([label for _, label in rows], device=device), lengths)


def uniform(split: Split) -> Tensor:
    real = (split.ids_NT != PADDING).float()
    return real / real.sum(1, keepdim=True)


Loss = Callable[[Tensor, Tensor, Tensor], Tensor]  # logits, attention, row numbers → scalar


def train(
    make: Callable[[], Debated],
    data: dict[str, Split],
    seed: int,
    steps: int,
    *,
    imposed: dict[str, Tensor] | None = None,
    loss: Loss | None = None,
    lr: float = 1e-3,
) -> Debated:
    """Train from scratch; the best state on dev is kept, by accuracy (the last one under a loss of its own)."""
    torch.manual_seed(seed)
    part = data["train"]
    model = make().to(part.ids_NT.device)
    optimizer = torch.optim.Adam(model.parameters(), lr=lr, weight_decay=1e-5)
    order = np.random.default_rng(seed)
    best, kept = -1.0, None
    rows_left = torch.empty(0, dtype=torch.long)
    for step in range(steps):
        if len(rows_left) < BATCH:
            rows_left = torch.from_numpy(order.permutation(len(part.labels_N)))
        rows, rows_left = rows_left[:BATCH], rows_left[BATCH:]
        model.train()
        words = part.words(rows)
        on_device = rows.to(part.ids_NT.device)
        given = None if imposed is None else imposed["train"][on_device, : words.ids_BT.shape[1]]
        logits, attention = model(words, given)
        if loss is None:
            value = F.cross_entropy(logits, part.labels_N[on_device])
        else:
            value = loss(logits, attention, on_device)
        optimizer.zero_grad()
        value.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if loss is None and (step % 40 == 39 or step == steps - 1):
            accuracy = scored(said(model, data["dev"], imposed and imposed["dev"]), data["dev"])["accuracy"]
            if accuracy > best:
                best, kept = accuracy, {k: v.clone() for k, v in model.state_dict().items()}
    if kept is not None:
        model.load_state_dict(kept)
    return model.eval()


@torch.no_grad()
def said(model: Debated, split: Split, imposed_NT: Tensor | None = None) -> Said:
    model.eval()
    probabilities, maps = [], []
    width = split.ids_NT.shape[1]
    for rows in split.batches():
        words = split.words(rows)
        length = words.ids_BT.shape[1]
        given = None if imposed_NT is None else imposed_NT[rows.to(imposed_NT.device), :length]
        logits, attention = model(words, given)
        probabilities.append(logits.softmax(1)[:, 1])
        maps.append(F.pad(attention, (0, width - length)))
    return Said(torch.cat(probabilities), torch.cat(maps))


def scored(found: Said, split: Split) -> dict[str, float]:
    """Accuracy, and F1 of the positive class as the papers give it."""
    guess, truth = found.probability_N > 0.5, split.labels_N.bool()
    hits = float((guess & truth).sum())
    return {
        "accuracy": float((guess == truth).float().mean()),
        "f1": 2 * hits / max(1.0, float(guess.sum() + truth.sum())),
    }


def tvd(p_N: Tensor, q_N: Tensor) -> Tensor:
    """Total variation distance of two binary outputs, ½ Σ_c |p_c - q_c| = |p_1 - q_1|.

    NOTE[DIFF]: Wiegreffe & Pinter's code has half of it: ½|Δp| of a single sigmoid.
    """
    return (p_N - q_N).abs()


def kl(a_NT: Tensor, b_NT: Tensor) -> Tensor:
    """Kullback–Leibler divergence in nats; a weight of zero has a finite slope."""
    return (a_NT * (a_NT.clamp(min=TINY).log() - b_NT.clamp(min=TINY).log())).sum(-1)


def jsd(a_NT: Tensor, b_NT: Tensor) -> Tensor:
    """Jensen–Shannon divergence in nats, 0 to ln 2."""
    middle = (a_NT + b_NT) / 2
    return (kl(a_NT, middle) + kl(b_NT, middle)) / 2


def adversary_loss(base: Said, weight: float) -> Loss:
    """TVD(y_a, y_b) - λ KL(α_a ‖ α_b), the mean over the batch (Wiegreffe & Pinter 2019, eq. 1)."""

    def loss(logits: Tensor, attention_BT: Tensor, rows: Tensor) -> Tensor:
        outputs = tvd(logits.softmax(1)[:, 1], base.probability_N[rows])
        return (outputs - weight * kl(attention_BT, base.attention_NT[rows, : attention_BT.shape[1]])).mean()

    return loss


def per_instance(
    model: Debated, split: Split, seed: int, steps: int, candidates: int = 3, epsilon: float = 0.05
) -> tuple[float, float]:
    """Jain & Wallace's adversary: for each sentence alone, the most different weights under |Δp| ≤ ε.

    Means over the split of |Δp| and JSD; the model's own weights are among the candidates.
    """
    generator = torch.Generator().manual_seed(seed)
    found: list[tuple[Tensor, Tensor]] = []
    for rows in split.batches():
        words = split.words(rows)
        with torch.no_grad():
            states = model.encode(words)
            own = model.weigh(states, words.real_BT)
            before, shown = model.decide(states, own).softmax(1)[:, 1], own.mean(1)
        best_jsd, best_tvd = torch.zeros_like(before), torch.zeros_like(before)
        for _ in range(candidates):
            start = 3 * torch.randn(own.shape, generator=generator).to(own.device)
            theta = start.masked_fill(~words.real_BT[:, None], -1e4).requires_grad_()
            optimizer = torch.optim.Adam([theta], lr=0.1, amsgrad=True)
            for _ in range(steps):
                weights = theta.softmax(-1)
                change = tvd(model.decide(states, weights).softmax(1)[:, 1], before)
                apart = jsd(weights.mean(1), shown)
                better = (change <= epsilon) & (apart > best_jsd)
                best_jsd = torch.where(better, apart.detach(), best_jsd)
                best_tvd = torch.where(better, change.detach(), best_tvd)
                (grad,) = torch.autograd.grad((500 * (change - 0.01).clamp(min=0) - apart).sum(), theta)
                theta.grad = grad
                optimizer.step()
        found.append((best_tvd, best_jsd))
    changes, divergences = (torch.cat(parts) for parts in zip(*found, strict=True))
    return float(changes.mean()), float(divergences.mean())
