"""Sources of random torch modules as people write them, for bench/fuzz_modules.py: one per seed, with its inputs."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

WIDTH, HEADS, CLASSES, WORDS = 8, 2, 3, 20
ROWS = 3
TOKEN = 3  # stands for a masked token id; floats become zero


@dataclass
class Argument:
    """An argument of the module that the output depends on. owner: the unit of each entry of one input."""

    name: str
    owner: Tensor
    kind: str  # ids, codes (of a table), floats
    embedding: str | None = None  # the module that looks ids up
    real: Tensor | None = None  # (B, U) where some units are padding
    whole: bool = False  # its numbers become one token, and may be one unit
    form: str = ""  # another way to cut the same numbers into units

    @property
    def count(self) -> int:
        return int(self.owner.max()) + 1

    def forms(self, grid: tuple[int, int] | None) -> list[Argument]:
        """The argument, and other ways to cut its numbers into units: steps or channels, smaller patches."""
        forms, shape = [self], self.owner.shape
        if self.kind == "floats" and len(shape) == 2:
            forms.append(replace(self, form="first axis", owner=torch.arange(shape[0])[:, None].expand(shape)))
            forms.append(replace(self, form="second axis", owner=torch.arange(shape[1]).expand(shape)))
        if len(shape) == 3 and grid is not None:
            down, across = (torch.arange(size) * count // size for size, count in zip(shape[1:], grid, strict=True))
            cells = (down[:, None] * grid[1] + across).expand(shape)
            forms.append(replace(self, form=f"grid {grid}", owner=cells))
        if self.whole:
            forms.append(replace(self, form="whole", owner=torch.zeros_like(self.owner)))
        return forms

    def replaced(self, tensor: Tensor, absent: Sequence[int], fill: Any) -> Tensor | None:
        """One input with units replaced; None where this replacement is not computed here."""
        gone = torch.isin(self.owner, torch.tensor(list(absent), dtype=torch.long))
        if fill == "delete":
            return tensor[:, ~gone] if self.kind == "ids" and self.owner.ndim == 1 else None
        if fill == "mean":
            picture = self.owner.ndim == 3
            steps = self.owner.ndim == 2 and not bool((self.owner != self.owner[:, :1]).any())
            if self.kind != "floats" or not (picture or steps):
                return None
            fill = tensor.mean((2, 3) if picture else 1, keepdim=True).expand_as(tensor)
        elif not isinstance(fill, int) and fill not in ("zero", "mean_vector", None):
            return None
        elif not isinstance(fill, int) or self.kind != "ids":
            fill = 0
        return torch.where(gone, torch.as_tensor(fill, dtype=tensor.dtype), tensor)


@dataclass
class Written:
    """The source of a module, and inputs for it."""

    seed: int
    entrance: str = ""
    head: str = ""
    by_hand: bool = False  # all positions meet in softmaxes that the source spells out
    has_ids: bool = False
    inputs: dict[str, Tensor] = field(default_factory=dict)
    arguments: list[Argument] = field(default_factory=list)
    masks: list[str] = field(default_factory=list)
    cause: tuple[str, int] | None = None
    source: str = ""

    def some(self, names: Sequence[str], count: int = 2) -> list[str]:
        return random.Random(self.seed).sample(list(names), count)

    def build(self) -> nn.Module:
        space: dict[str, Any] = {"__name__": "written"}
        exec(compile(self.source, f"<seed {self.seed}>", "exec"), space)
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            model: nn.Module = space["Model"]()
        scale = random.Random(self.seed).choice((1.0, 1.5, 2.5))
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.ndim > 1:
                    parameter.mul_(scale)
        return model.eval()

    @staticmethod
    def logits_of(out: Any) -> Tensor:
        if isinstance(out, Tensor):
            return out
        logits: Tensor = out["logits"] if isinstance(out, dict) else out[0] if isinstance(out, tuple) else out.logits
        return logits


class Writer:
    """Writes __init__ and forward line by line."""

    def __init__(self, seed: int) -> None:
        self.draw, self.case = random.Random(seed), Written(seed)
        self.generator = torch.Generator().manual_seed(seed)
        self.init: list[str] = []
        self.lines: list[str] = []
        self.tokens: list[str] = []  # names of (B, N, 8) tensors that the body reads, one after the other
        self.beside: list[str] = []  # names of (B, 8) tensors that the head reads beside the pooled one
        self.length = 0  # of all tokens together

    # Arguments

    def add(self, name: str, tensor: Tensor, owner: Tensor, kind: str, embedding: str | None = None) -> Argument:
        self.case.inputs[name] = tensor
        argument = Argument(name, owner, kind, embedding)
        self.case.arguments.append(argument)
        self.case.has_ids |= kind == "ids"
        return argument

    def floats(self, *shape: int) -> Tensor:
        return torch.randn(ROWS, *shape, generator=self.generator)

    def ids(self, *shape: int, words: int = WORDS) -> Tensor:
        return torch.randint(4 if words == WORDS else 1, words, (ROWS, *shape), generator=self.generator)

    def read(self, name: str, value: str, count: int) -> None:
        self.lines.append(f"e_{name} = {value}")
        self.tokens.append(f"e_{name}")
        self.length += count

    def text(self, name: str = "ids", count: int | None = None) -> Argument:
        count = count or self.draw.randint(4, 7)
        self.init.append(f"self.emb_{name} = nn.Embedding({WORDS}, {WIDTH})")
        self.read(name, f"self.emb_{name}({name})", count)
        return self.add(name, self.ids(count), torch.arange(count), "ids", f"emb_{name}")

    def steps(self, name: str = "x", count: int | None = None) -> None:
        count, width = count or self.draw.randint(4, 7), self.draw.choice((1, 5))
        self.init.append(f"self.in_{name} = nn.Linear({width}, {WIDTH})")
        self.read(name, f"self.in_{name}({name})", count)
        self.add(name, self.floats(count, width), torch.arange(count)[:, None].expand(count, width), "floats")

    def columns(self, name: str) -> None:
        """Floats of one row, beside a sequence: one token, or read by the head."""
        count = self.draw.randint(1, 3)
        self.init.append(f"self.in_{name} = nn.Linear({count}, {WIDTH})")
        self.add(name, self.floats(count), torch.arange(count), "floats").whole = True
        if self.draw.random() < 0.5:
            self.read(name, f"self.in_{name}({name})[:, None]", 1)
        else:
            self.lines.append(f"b_{name} = self.in_{name}({name})")
            self.beside.append(f"b_{name}")

    def signal(self) -> None:
        channels, patch, count = self.draw.choice((1, 2)), self.draw.choice((2, 4)), self.draw.randint(4, 8)
        self.init.append(f"self.conv = nn.Conv1d({channels}, {WIDTH}, {patch}, {patch})")
        self.read("x", "self.conv(x).transpose(1, 2)", count)
        owner = torch.arange(count).repeat_interleave(patch).expand(channels, -1)
        self.add("x", self.floats(channels, count * patch), owner, "floats")

    def image(self) -> None:
        rows, columns, patch = self.draw.choice((2, 3)), self.draw.choice((2, 3)), 4
        name = self.draw.choice(("pixel_values", "img"))
        self.init.append(f"self.patches = nn.Conv2d(3, {WIDTH}, {patch}, {patch})")
        self.read(name, f"self.patches({name}).flatten(2).transpose(1, 2)", rows * columns)
        grid = torch.arange(rows * columns).reshape(rows, columns)
        owner = grid.repeat_interleave(patch, 0).repeat_interleave(patch, 1).expand(3, -1, -1)
        self.add(name, self.floats(3, rows * patch, columns * patch), owner, "floats")

    def table(self) -> None:
        numbers, codes = self.draw.randint(2, 4), self.draw.randint(1, 3)
        self.init += [f"self.scale = nn.Parameter(torch.randn({numbers}, {WIDTH}))"]
        self.read("x_num", "x_num[..., None] * self.scale", numbers)
        self.add("x_num", self.floats(numbers), torch.arange(numbers), "floats")
        if self.draw.random() < 0.7:
            self.init.append(f"self.cats = nn.Embedding({codes * 4}, {WIDTH})")
            self.read("x_cat", f"self.cats(x_cat + 4 * torch.arange({codes}))", codes)
            self.add("x_cat", self.ids(codes, words=4), torch.arange(codes), "codes", "cats")

    def variables(self) -> None:
        steps, count = self.draw.randint(4, 8), self.draw.randint(3, 6)
        self.init.append(f"self.series = nn.Linear({steps}, {WIDTH})")
        self.read("x", "self.series(x.transpose(1, 2))", count)
        self.add("x", self.floats(steps, count), torch.arange(count).expand(steps, -1), "floats")

    def row_kind(self) -> None:
        """A whole number per input, added to all tokens."""
        self.init.append(f"self.kinds = nn.Embedding(5, {WIDTH})")
        self.lines.append("e_ids = e_ids + self.kinds(kind)[:, None]")
        self.case.inputs["kind"] = self.ids(words=5)
        self.add("kind", self.case.inputs["kind"], torch.zeros((), dtype=torch.long), "codes", "kinds")

    def flags(self) -> None:
        """Truth values of one row, read by the head."""
        self.init.append(f"self.in_flags = nn.Linear(3, {WIDTH})")
        self.lines.append("b_flags = self.in_flags(flags.float())")
        self.beside.append("b_flags")
        self.add("flags", self.floats(3) > 0, torch.arange(3), "codes")

    def padded(self) -> None:
        argument = self.text()
        count = argument.count
        real = torch.ones(ROWS, count, dtype=torch.bool)
        if self.draw.random() < 0.6:
            real[self.draw.randint(0, 2), count - 2 :] = False
        self.case.inputs["ids"][~real] = 0
        argument.real = real
        name = self.draw.choice(("pad_mask", "attention_mask", "mask"))
        self.case.inputs[name] = ~real if name == "pad_mask" else real.long()
        self.case.masks.append(name)
        self.lines.append("padding = pad_mask" if name == "pad_mask" else f"padding = {name} == 0")

    def several_words(self) -> None:
        count = self.draw.randint(3, 5)
        self.init.append(f"self.emb_ids = nn.Embedding({WORDS}, {WIDTH})")
        value = "self.emb_ids(ids).sum(2)"
        if self.draw.random() < 0.5:  # sentences, encoded one by one
            self.init.append(
                f"self.words = nn.TransformerEncoderLayer({WIDTH}, {HEADS}, {WIDTH}, 0.0, batch_first=True)"
            )
            value = "self.words(self.emb_ids(ids).flatten(0, 1)).mean(1).unflatten(0, ids.shape[:2])"
        self.read("ids", value, count)
        self.add("ids", self.ids(count, 2), torch.arange(count)[:, None].expand(count, 2), "ids", "emb_ids")

    # Body

    def body(self, cause: bool) -> None:
        padding = bool(self.case.masks)
        candidates = [
            a for a in self.case.arguments if f"e_{a.name}" in self.tokens and a.name not in ("feats", "weather")
        ]
        if cause:
            argument = self.draw.choice(candidates)
            unit = self.draw.randrange(argument.count)
            self.case.cause = argument.name, unit
            self.init.append(f"self.cause = nn.Linear({WIDTH}, {CLASSES})")
            self.lines.append(f"cause = self.cause(e_{argument.name}[:, {unit}])")
        self.lines.append(
            f"h = torch.cat([{', '.join(self.tokens)}], 1)" if len(self.tokens) > 1 else f"h = {self.tokens[0]}"
        )
        place = self.draw.choice(("none", "parameter", "embedding"))
        if place == "parameter":
            self.init.append(f"self.pos = nn.Parameter(torch.randn({self.length}, {WIDTH}) * 0.3)")
            self.lines.append("h = h + self.pos[: h.shape[1]]")
        elif place == "embedding":
            self.init.append(f"self.pos = nn.Embedding({self.length}, {WIDTH})")
            self.lines.append("h = h + self.pos(torch.arange(h.shape[1]))")
        self.case.head = self.draw.choice(HEADS_OF)
        if self.case.head == "cls":
            self.init.append(f"self.cls = nn.Parameter(torch.randn(1, 1, {WIDTH}))")
            self.lines.append("h = torch.cat([self.cls.expand(len(h), -1, -1), h], 1)")
            self.length += 1
            if padding:
                self.lines.append("padding = F.pad(padding, (1, 0), value=False)")
        kinds = [self.draw.choice(BLOCKS) for _ in range(self.draw.randint(1, 2))]
        if padding:
            kinds = [kind if kind in ("mha", "encoder", "hand") else "encoder" for kind in kinds]
        self.case.by_hand = all(kind in ("hand", "einsum") for kind in kinds)
        quirk = self.draw.choice(("",) * 12 + ("sort", "exit", "mix", "gate", "stride"))
        if quirk == "sort":
            self.case.by_hand = False
            self.lines.append("h = h.gather(1, h[:, :, 0].argsort(1)[:, :, None].expand_as(h))")  # sums may be 0
        if quirk == "stride" and not padding:
            self.case.by_hand, self.length = False, (self.length + 1) // 2
            self.init.append(f"self.stem = nn.Conv1d({WIDTH}, {WIDTH}, 3, 2, 1)")
            self.lines.append("h = self.stem(h.transpose(1, 2)).transpose(1, 2)")
        if quirk == "mix":
            self.lines.append("h = h - h.mean(0)")
        for number, kind in enumerate(kinds):
            before = len(self.lines)
            self.block(number, kind, padding)
            if quirk == "exit" and number:
                self.case.by_hand = False
                self.lines[before:] = ["if h.abs().mean() > 0.8:", *(f"    {line}" for line in self.lines[before:])]
        if quirk == "gate":
            self.lines.append("h = h + torch.relu(h[:, :1, :1]) * h[:, :1]")
            self.case.by_hand = False

    def block(self, n: int, kind: str, padding: bool) -> None:
        w = WIDTH
        if kind in ("hand", "einsum", "sdpa"):
            self.init += [
                f"self.qkv{n} = nn.Linear({w}, {3 * w})",
                f"self.proj{n} = nn.Linear({w}, {w})",
                f"self.norm{n} = nn.LayerNorm({w})",
            ]
            self.lines.append(
                f"q, k, v = self.qkv{n}(h).reshape(len(h), -1, 3, {HEADS}, {w // HEADS}).permute(2, 0, 3, 1, 4)"
            )
            if kind == "sdpa":
                self.lines.append("a = F.scaled_dot_product_attention(q, k, v)")
            else:
                product = "q @ k.transpose(-2, -1)" if kind == "hand" else 'torch.einsum("bhqd,bhkd->bhqk", q, k)'
                masked = ".masked_fill(padding[:, None, None], -1e9)" if padding else ""
                self.lines.append(f"p = ({product} / {w // HEADS} ** 0.5){masked}.softmax(-1)")
                self.lines.append("a = p @ v" if kind == "hand" else 'a = torch.einsum("bhqk,bhkd->bhqd", p, v)')
            self.lines.append(f"h = self.norm{n}(h + self.proj{n}(a.transpose(1, 2).flatten(2)))")
        elif kind == "mha":
            self.init += [
                f"self.att{n} = nn.MultiheadAttention({w}, {HEADS}, batch_first=True)",
                f"self.norm{n} = nn.LayerNorm({w})",
            ]
            mask = ", key_padding_mask=padding" if padding else ""
            weights = self.draw.choice(("", ", need_weights=False"))
            self.lines.append(f"h = self.norm{n}(h + self.att{n}(h, h, h{mask}{weights})[0])")
        elif kind == "encoder":
            first = self.draw.choice((True, False))
            self.init.append(
                f"self.block{n} = nn.TransformerEncoderLayer({w}, {HEADS}, {2 * w}, 0.0, batch_first=True, norm_first="
                f"{first})"
            )
            self.lines.append(f"h = self.block{n}(h{', src_key_padding_mask=padding' if padding else ''})")
        elif kind == "lstm":
            self.init.append(f"self.lstm{n} = nn.LSTM({w}, {w // 2}, batch_first=True, bidirectional=True)")
            self.lines.append(f"h = self.lstm{n}(h)[0]")
        else:
            self.init.append(f"self.mix{n} = nn.Conv1d({w}, {w}, 3, padding=1)")
            self.lines.append(f"h = h + torch.relu(self.mix{n}(h.transpose(1, 2))).transpose(1, 2)")

    # Head

    def pooled(self) -> None:
        head, padding = self.case.head, bool(self.case.masks)
        hidden = ".masked_fill(padding, -1e9)" if padding else ""
        plain = {
            "cls": "h[:, 0]", "first": "h[:, 0]", "last": "h[:, -1]", "mean": "h.mean(1)", "max": "h.amax(1)",
            "std": "torch.cat([h.mean(1), h.std(1)], 1)", "logsumexp": "h.logsumexp(1)", "flatten": "h.flatten(1)",
        }  # fmt: skip
        if padding and head == "mean":
            self.lines.append("z = (h * ~padding[..., None]).sum(1) / (~padding).sum(1, keepdim=True)")
        elif head in plain:
            self.lines.append(f"z = {plain[head]}")
        elif head == "positions":
            self.init.append(f"self.share = nn.Parameter(torch.randn({self.length}))")
            self.lines.append("z = (h * self.share[: h.shape[1], None].softmax(0)).sum(1)")
        elif head == "latents":
            self.init.append(f"self.latents = nn.Parameter(torch.randn(1, 3, {WIDTH}))")
            self.init.append(f"self.ask = nn.MultiheadAttention({WIDTH}, {HEADS}, batch_first=True)")
            self.lines.append("q = self.latents.expand(len(h), -1, -1)")
            self.lines.append(
                f"z = (q + self.ask(q, h, h{', key_padding_mask=padding' if padding else ''})[0]).mean(1)"
            )
        elif head == "query":
            self.init.append(f"self.query = nn.Parameter(torch.randn(1, 1, {WIDTH}))")
            if self.draw.random() < 0.5:
                self.init.append(f"self.pool = nn.MultiheadAttention({WIDTH}, {HEADS}, batch_first=True)")
                mask = ", key_padding_mask=padding" if padding else ""
                self.lines.append(f"z = self.pool(self.query.expand(len(h), -1, -1), h, h{mask})[0][:, 0]")
            else:
                masked = ".masked_fill(padding[:, None], -1e9)" if padding else ""
                self.lines.append(f"z = ((self.query @ h.transpose(1, 2)){masked}.softmax(-1) @ h)[:, 0]")
        else:
            row = ".masked_fill(padding[:, None], -1e9)" if padding else ""
            self.init.append(f"self.score = nn.Linear({WIDTH}, 1)")
            self.lines.append(f"w = self.score(h)[..., 0]{hidden}.softmax(1)")
            self.lines.append(self.draw.choice((
                "z = (w[:, None] @ h)[:, 0]", "z = torch.bmm(w[:, None], h)[:, 0]", "z = (w[..., None] * h).sum(1)",
                'z = torch.einsum("bn,bnd->bd", w, h)', "z = torch.bmm(h.transpose(1, 2), w[..., None])[..., 0]",
                f"z = (self.score(h).transpose(1, 2){row}.softmax(-1) @ h)[:, 0]",
            )))  # fmt: skip
        for name in self.beside:
            self.lines.append(f"z = torch.cat([z, {name}], 1)")
        width = WIDTH * {"std": 2, "flatten": self.length}.get(head, 1) + WIDTH * len(self.beside)
        self.init.append(f"self.out = nn.Linear({width}, {CLASSES})")

    def finished(self) -> Written:
        cause = self.case.cause is not None
        self.lines.append("logits = 0.02 * self.out(z) + 3 * cause" if cause else "logits = self.out(z)")
        out = self.draw.choice(
            ("logits",) * 5 + ("(logits, h)", '{"logits": logits, "states": h}', "Output(logits, h)")
        )
        inside = "\n".join(f"        {line}" for line in self.init)
        lines = (*self.lines, f"return {out}")
        self.case.source = (
            HEADER + f"\n\nclass Model(nn.Module):\n    def __init__(self):\n        super().__init__()\n{inside}\n\n"
        )
        self.case.source += f"    def forward(self, {', '.join(self.case.inputs)}):\n" + "\n".join(
            f"        {line}" for line in lines
        )
        return self.case


HEADER = """import dataclasses

import torch
import torch.nn.functional as F
from torch import nn


@dataclasses.dataclass
class Output:
    logits: torch.Tensor
    states: torch.Tensor
"""
BLOCKS = ("hand", "einsum", "sdpa", "mha", "encoder", "encoder", "lstm", "mix")
HEADS_OF = "cls first last mean mean max std logsumexp flatten positions query query latents weighted weighted".split()
ENTRANCES: dict[str, Any] = {
    "ids": lambda w: w.text(),
    "ids with a mask": lambda w: w.padded(),
    "floats": lambda w: w.steps(),
    "channels first": lambda w: w.signal(),
    "image": lambda w: w.image(),
    "table": lambda w: w.table(),
    "variables": lambda w: w.variables(),
    "ids and floats": lambda w: (w.text(), w.columns("feats")),
    "floats and ids": lambda w: (w.columns("weather"), w.text("codes")),
    "ids and flags": lambda w: (w.text(), w.flags()),
    "ids and a number": lambda w: (w.text(), w.row_kind()),
    "two texts": lambda w: (w.text("a", 3), w.text("b", 4)),
    "two sequences": lambda w: (w.steps("a", 3), w.steps("b", 4)),
    "sequence and columns": lambda w: (w.steps(), w.columns("feats")),
    "ids of three axes": lambda w: w.several_words(),
    "image and columns": lambda w: (w.image(), w.columns("feats")),
}


def written(seed: int) -> Written:
    """Return the source of the module of this seed, and its inputs."""
    writer = Writer(seed)
    writer.case.entrance = list(ENTRANCES)[seed % len(ENTRANCES)]
    ENTRANCES[writer.case.entrance](writer)
    writer.body(cause=writer.draw.random() < 0.3)
    writer.pooled()
    return writer.finished()
