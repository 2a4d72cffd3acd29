"""A small model that learns in context, as TabPFN v2 is built, and the made-up tasks that it is trained on."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

COLUMNS, CLASSES = 6, 2
FEWEST, MOST = 4, 48  # training rows of a task


class Attention(nn.Module):
    """Pre-norm attention of the second-last axis, with its residual; rows that are asked about are no keys."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(width)
        self.queries, self.keys_values = nn.Linear(width, width), nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor, keys: int | None = None) -> Tensor:
        """x: (batch, tokens, width); keys: how many of the tokens are looked at."""
        y = self.norm(x)
        q = self.queries(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.keys_values(y[:, :keys]).chunk(2, -1))
        return x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """The columns of each row look at each other, then the rows of each column at the training rows."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.columns, self.rows = Attention(width, heads), Attention(width, heads)
        self.feed_forward = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width)
        )

    def forward(self, x: Tensor, known: int) -> Tensor:
        tables, rows, tokens, _ = x.shape
        x = self.columns(x.flatten(0, 1)).unflatten(0, (tables, rows))
        by_column = self.rows(x.transpose(1, 2).flatten(0, 1), known)
        x = by_column.unflatten(0, (tables, tokens)).transpose(1, 2)
        return x + self.feed_forward(x)


class InContext(nn.Module):
    """Cells as tokens and the answer as one more, which is read at the rows asked about."""

    def __init__(self, width: int = 64, layers: int = 4, heads: int = 4, classes: int = CLASSES) -> None:
        super().__init__()
        self.cell = nn.Linear(1, width)
        self.answer, self.unknown = nn.Embedding(classes, width), nn.Parameter(torch.zeros(width))
        self.layers = nn.ModuleList(Layer(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, classes)

    def forward(self, x_train: Tensor, y_train: Tensor, x_test: Tensor) -> Tensor:
        """(tables, R, U), (tables, R) and (tables, Q, U) → (tables, Q, classes)."""
        known = x_train.shape[1]
        cells = self.cell(torch.cat([x_train, x_test], 1)[..., None])
        asked = self.unknown.expand(*x_test.shape[:2], -1)
        tokens = torch.cat([cells, torch.cat([self.answer(y_train), asked], 1)[:, :, None]], 2)
        for layer in self.layers:
            tokens = layer(tokens, known)
        return self.head(self.norm(tokens[:, known:, -1]))


def tasks(count: int, rows: int, generator: torch.Generator, device: str) -> tuple[Tensor, Tensor]:
    """(tasks, rows, columns) numbers and (tasks, rows) classes: half the tasks linear, half trees of depth three.

    Columns are correlated; about half of them do not matter. A class is what lies above the task's median, and one
    answer in twenty is wrong.
    """

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, device=device)

    mixing = torch.eye(COLUMNS, device=device) + 0.3 * normal(count, COLUMNS, COLUMNS)
    x = normal(count, rows, COLUMNS) @ mixing
    x = (x - x.mean(1, keepdim=True)) / x.std(1, keepdim=True)
    matters = torch.rand(count, COLUMNS, generator=generator, device=device) < 0.5
    matters[torch.arange(count), torch.randint(COLUMNS, (count,), generator=generator, device=device)] = True
    linear = (x * (normal(count, COLUMNS) * matters)[:, None]).sum(-1)
    tree = _trees(x, matters, generator)
    is_tree = torch.arange(count, device=device) % 2 == 1
    value = torch.where(is_tree[:, None], tree, linear)
    value = value + 0.01 * normal(count, rows)
    y = (value > value.median(1, keepdim=True).values).long()
    wrong = torch.rand(count, rows, generator=generator, device=device) < 0.05
    return x, torch.where(wrong, 1 - y, y)


def _trees(x: Tensor, matters: Tensor, generator: torch.Generator) -> Tensor:
    """(tasks, rows) the leaves' values of complete trees with three levels."""
    count, rows, _ = x.shape
    device = x.device
    nodes, leaves = 7, 8
    columns = torch.multinomial(matters.float(), nodes, replacement=True, generator=generator)
    cuts = 0.7 * torch.randn(count, nodes, generator=generator, device=device)
    values = torch.randn(count, leaves, generator=generator, device=device)
    node = torch.zeros(count, rows, dtype=torch.long, device=device)
    for _ in range(3):
        column, cut = columns.gather(1, node), cuts.gather(1, node)
        node = 2 * node + 1 + (x.gather(2, column[..., None])[..., 0] > cut).long()
    return values.gather(1, node - nodes)


def trained(steps: int, seed: int, device: str, batch: int = 64, log: int = 1000) -> InContext:
    """Cross-entropy of sixteen rows per task, beside as many training rows as a draw says."""
    torch.manual_seed(seed)
    model = InContext().to(device)
    generator = torch.Generator(device).manual_seed(seed)
    sizes = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 1e-3, total_steps=steps, pct_start=0.1)
    for step in range(steps):
        known = int(torch.randint(FEWEST, MOST + 1, (1,), generator=sizes))
        x, y = tasks(batch, known + 16, generator, device)
        logits = model(x[:, :known], y[:, :known], x[:, known:])
        loss = F.cross_entropy(logits.flatten(0, 1), y[:, known:].flatten())
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if log and (step + 1) % log == 0:
            print(f"step {step + 1}: loss {float(loss.detach()):.3f}", flush=True)
    return model.eval()
