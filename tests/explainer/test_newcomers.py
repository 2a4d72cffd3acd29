"""Twelve models of the kind that a new user brings, in each form in which such a model and its inputs come.

How they were made: nothing is trained. Each model has small random weights (seeded), and one direction of its vectors
that the head reads. One unit of the input is written into that direction by hand: a word or a category by its
embedding, a number, a step or a patch by its value. Where the head reads another position than that of the unit, values
and output projection of the attention are the identity, so that the unit reaches it. The default has to rank this unit
first: as text, as tensors, as pipeline and from a folder, where those forms exist, with one and the same answer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from torch import Tensor, nn
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    PreTrainedTokenizerFast,
    ViTConfig,
    ViTForImageClassification,
    ViTImageProcessor,
    pipeline,
)

import whyformer as wf

WIDTH, SIGN = 16, 6.0  # SIGN: the size of what decides
WORDS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "film", "was", "a", "wonderful", "long", "story"]
TEXT, WORD = "the film was wonderful a long story", "wonderful"


@cache
def tokenizer() -> Any:
    words = Tokenizer(models.WordLevel({word: i for i, word in enumerate(WORDS)}, "[UNK]"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    ends = [("[CLS]", WORDS.index("[CLS]")), ("[SEP]", WORDS.index("[SEP]"))]
    words.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=ends)
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    return PreTrainedTokenizerFast(tokenizer_object=words, **names)


def marked(vectors: Tensor, *places: int) -> None:
    """Write the direction that the head reads into some rows of a table, and take it away from all others."""
    with torch.no_grad():
        vectors[..., 0] = 0
        for place in places:
            vectors[place, 0] = SIGN


class Own(nn.Module):
    """What the hand-made models share: one block of attention, and a head that reads the first direction."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.TransformerEncoderLayer(WIDTH, 2, WIDTH, 0.0, batch_first=True)
        self.head = nn.Linear(WIDTH, 2)
        with torch.no_grad():
            self.head.weight.mul_(0.05)[1, 0] = self.head.bias[1] = 3
            attention = self.block.self_attn
            attention.in_proj_weight[2 * WIDTH :] = torch.eye(WIDTH)
            attention.out_proj.weight.copy_(torch.eye(WIDTH))


class Words(Own):
    """Ids; the head reads the mean, the first position, the strongest one, or a learned query's."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.reads, self.emb, self.pos = reads, nn.Embedding(len(WORDS), WIDTH), nn.Embedding(16, WIDTH)
        marked(self.emb.weight, WORDS.index(WORD))
        marked(self.pos.weight)
        self.query, self.pool = (
            nn.Parameter(torch.randn(1, 1, WIDTH)),
            nn.MultiheadAttention(WIDTH, 1, batch_first=True),
        )
        with torch.no_grad():
            self.pool.in_proj_weight[2 * WIDTH :] = self.pool.out_proj.weight[:] = torch.eye(WIDTH)

    def forward(self, ids: Tensor) -> Tensor:
        x = self.block(self.emb(ids) + self.pos.weight[: ids.shape[1]])
        if self.reads == "query":
            return self.head(self.pool(self.query.expand(len(x), 1, WIDTH), x, x)[0][:, 0])
        return self.head({"mean": x.mean(1), "first": x[:, 0], "max": x.amax(1)}[self.reads])


class OneHot(Own):
    """Ids of a fixed number of items, without a table."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, WIDTH, bias=False)
        marked(self.inner.weight.T, 5)

    def forward(self, items: Tensor) -> Tensor:
        return self.head(self.block(self.inner(nn.functional.one_hot(items, 8).float())).mean(1))


class Columns(Own):
    """Numbers and categories, each a token, and a token of the model's own that the head reads."""

    def __init__(self, decides: str) -> None:
        super().__init__()
        self.weight, self.token = nn.Parameter(torch.randn(3, WIDTH)), nn.Parameter(torch.randn(1, 1, WIDTH))
        self.tables = nn.ModuleList(nn.Embedding(n, WIDTH) for n in (3, 2))
        marked(self.weight, *[1] * (decides == "number"))
        for table in self.tables:
            marked(table.weight, *[0] * (decides == "category" and table.num_embeddings == 3))

    def forward(self, x_num: Tensor, x_cat: Tensor) -> Tensor:
        codes = torch.stack([table(x_cat[:, i]) for i, table in enumerate(self.tables)], 1)
        tokens = [self.token.expand(len(x_num), 1, WIDTH), x_num[:, :, None] * self.weight, codes]
        return self.head(self.block(torch.cat(tokens, 1))[:, 0])


class Numbers(Own):
    """Columns of one tensor, as tokens; the head reads their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(5, WIDTH))
        marked(self.weight, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(x[:, :, None] * self.weight).mean(1))


class Series(Own):
    """Steps of three variables; the head reads the mean, or the last step."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.reads, self.enter = reads, nn.Linear(3, WIDTH)
        marked(self.enter.weight.T, 0)

    def forward(self, x: Tensor) -> Tensor:
        x = self.block(self.enter(x))
        return self.head(x.mean(1) if self.reads == "mean" else x[:, -1])


class Picture(Own):
    """Patches by a convolution; the head reads their mean."""

    def __init__(self) -> None:
        super().__init__()
        self.patch = nn.Conv2d(1, WIDTH, 4, 4)
        with torch.no_grad():
            self.patch.weight.mul_(0.1)[0] = 1 / 16
            self.patch.bias.copy_(torch.randn(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.block(self.patch(x).flatten(2).transpose(1, 2)).mean(1))


def made(build: Callable[..., nn.Module], *args: Any) -> nn.Module:
    torch.manual_seed(0)
    return build(*args).eval()


HANDING_ON = ("value.weight", "attention.output.dense.weight", "pooler.dense.weight", "v_proj.weight", "o_proj.weight",
              "attn.c_proj.weight", "attention.attention.value.weight")  # fmt: skip


def encoder(kind: str) -> Any:
    """A model of transformers: its attention hands on what it reads, and its head reads the first direction."""
    torch.manual_seed(0)
    sizes: dict[str, Any] = {"hidden_size": WIDTH, "num_hidden_layers": 1, "num_attention_heads": 2}
    sizes["intermediate_size"] = WIDTH
    model: Any
    if kind == "bert":
        model = BertForSequenceClassification(BertConfig(vocab_size=len(WORDS), **sizes))
    elif kind == "gpt2":
        ids = {"pad_token_id": 0, "bos_token_id": 2, "eos_token_id": 3}
        model = GPT2ForSequenceClassification(
            GPT2Config(vocab_size=len(WORDS), n_embd=WIDTH, n_layer=1, n_head=2, **ids)
        )
    else:
        model = ViTForImageClassification(ViTConfig(image_size=16, patch_size=4, **sizes))
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if name.endswith(HANDING_ON):
                weight.copy_(torch.eye(WIDTH))
            elif name.endswith("c_attn.weight"):
                weight[:, 2 * WIDTH :] = torch.eye(WIDTH)
            elif name.endswith("projection.weight"):
                weight[0] = 1 / 16
            elif name.endswith("projection.bias"):  # a patch of the background is not zero
                weight[1:] = torch.randn(WIDTH - 1)
            elif name.endswith("classifier.bias"):
                weight[:] = torch.tensor([-3.0, 3.0])
        head = model.score if kind == "gpt2" else model.classifier
        head.weight[:] = torch.tensor([[-4.0], [4.0]]) * torch.eye(WIDTH)[0]
    if kind != "vit":
        marked(model.get_input_embeddings().weight, WORDS.index(WORD))
    return model.eval()


Forms = dict[str, Callable[[], Any]]


def texts(model: nn.Module) -> Forms:
    ids = tokenizer()(TEXT, return_tensors="pt")["input_ids"]
    return {
        "text": lambda: wf.explain(model, TEXT, tokenizer()),
        "tensors": lambda: wf.explain(model, ids)[0],
        "tensors with a tokenizer": lambda: wf.explain(model, ids, tokenizer())[0],
    }


def checkpoints(kind: str, folder: Path) -> Forms:
    encoder(kind).save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    model = type(encoder(kind)).from_pretrained(folder).eval()
    return {
        "text": lambda: wf.explain(model, TEXT, tokenizer()),
        "tensors": lambda: wf.explain(model, dict(tokenizer()(TEXT, return_tensors="pt")))[0],
        "pipeline": lambda: wf.explain(pipeline("text-classification", model=model, tokenizer=tokenizer()), TEXT),
        "folder": lambda: wf.explain(folder, TEXT),
    }


def picture() -> np.ndarray:
    pixels = np.full((16, 16, 3), 100, np.uint8)
    pixels[8:12, 4:8] = 255
    return pixels


def images(folder: Path) -> Forms:
    processor = ViTImageProcessor(size={"height": 16, "width": 16}, image_mean=[0.39] * 3, image_std=[0.5] * 3)
    encoder("vit").save_pretrained(folder)
    processor.save_pretrained(folder)
    model = encoder("vit")
    return {
        "picture": lambda: wf.explain(model, picture(), processor),
        "tensors": lambda: wf.explain(model, dict(processor(picture(), return_tensors="pt")))[0],
        "pipeline": lambda: wf.explain(
            pipeline("image-classification", model=model, image_processor=processor), picture()
        ),
        "folder": lambda: wf.explain(folder, picture()),
    }


def rows(model: nn.Module, number: float) -> Forms:
    described = wf.Table(numerical=["a", "b", "c"], categorical={"colour": ["red", "green", "blue"], "sex": ["f", "m"]})
    row = {"a": 0.4, "b": number, "c": -0.7, "colour": "red", "sex": "m"}
    tensors = {"x_num": torch.tensor([[0.4, number, -0.7]]), "x_cat": torch.tensor([[0, 1]])}
    return {
        "row": lambda: wf.explain(model, row, described),
        "tensors": lambda: wf.explain(model, tensors)[0],
    }


def alone(model: nn.Module, tensor: Tensor) -> Forms:
    return {"tensors": lambda: wf.explain(model, tensor)[0]}


def step(at: int) -> Tensor:
    series = torch.randn(1, 9, 3, generator=torch.Generator().manual_seed(1)) * 0.3
    series[0, :, 0] = 0
    series[0, at, 0] = SIGN
    return series


def patch() -> Tensor:
    pixels = torch.zeros(1, 1, 16, 16)
    pixels[..., 4:8, 12:] = SIGN
    return pixels


NEWCOMERS: dict[str, tuple[Callable[[Path], Forms], int]] = {
    "words, mean": (lambda path: texts(made(Words, "mean")), 4),
    "words, first position": (lambda path: texts(made(Words, "first")), 4),
    "words, maximum": (lambda path: texts(made(Words, "max")), 4),
    "words, learned query": (lambda path: texts(made(Words, "query")), 4),
    "BERT": (lambda path: checkpoints("bert", path), 4),
    "GPT-2, last position": (lambda path: checkpoints("gpt2", path), 4),
    "items, one-hot": (lambda path: alone(made(OneHot), torch.tensor([[3, 0, 5, 7, 1]])), 2),
    "table, a number": (lambda path: rows(made(Columns, "number"), 1.0), 2),
    "table, the first category": (lambda path: rows(made(Columns, "category"), 0.1), 4),
    "series, last step": (lambda path: alone(made(Series, "last"), step(2)), 2),
    "picture, own": (lambda path: alone(made(Picture), patch()), 7),
    "picture, ViT": (images, 10),
}


@pytest.mark.parametrize("name", NEWCOMERS)
def test_the_default_ranks_the_deciding_unit_first_in_every_form(name: str, tmp_path: Path) -> None:
    build, deciding = NEWCOMERS[name]
    made = {form: explain() for form, explain in build(tmp_path).items()}
    assert {form: int(e.scores.argmax()) for form, e in made.items()} == dict.fromkeys(made, deciding)
    assert {e.method for e in made.values()} == {"two_ended"}
    if "folder" in made:  # where nothing is lost on the way, nothing differs
        for e in made.values():
            np.testing.assert_allclose(e.scores, made["folder"].scores, atol=1e-6)
