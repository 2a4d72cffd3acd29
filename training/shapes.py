"""Train a small LLaVA on pictures of coloured shapes: "what colour is the circle", "what shape is red".

    python -m training.shapes [--out FOLDER] [--steps 600]

Three objects stand in cells of their own, each a patch of the vision encoder. The other objects say nothing about the
answer, so that the piece of the image that an explanation has to point at is known. About a minute on one CPU core.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

COLOURS = {"red": (220, 40, 40), "green": (40, 170, 60), "blue": (50, 80, 220), "yellow": (230, 200, 40)}
SHAPES = ("circle", "square", "triangle", "cross")
SIDE, CELL = 4, 8  # cells along the picture, pixels along a cell: a cell is a patch of the vision encoder
OBJECTS = 3
WORDS = [*"[PAD] [BOS] [EOS] [UNK] <image> what colour shape is the".split(), *COLOURS, *SHAPES]
IDS = {word: number for number, word in enumerate(WORDS)}


@dataclass(frozen=True)
class Question:
    """A picture, a question about one of its objects, the answer, and the cell of that object."""

    picture: Any  # (rows, columns, 3) bytes
    text: str
    answer: str
    cell: int


@cache
def _drawn(shape: str) -> Any:
    """(CELL, CELL) the pixels of a shape."""
    y, x = np.mgrid[:CELL, :CELL] - (CELL - 1) / 2
    return {
        "circle": x**2 + y**2 <= 11,
        "square": np.maximum(abs(x), abs(y)) <= 3,
        "triangle": (abs(x) <= (y + 3.5) / 2) & (y <= 3),
        "cross": (abs(x) <= 1) | (abs(y) <= 1),
    }[shape]


def question(generator: np.random.Generator, unique: bool = True) -> Question:
    """Three objects in cells of their own; unique: no other object has the answer, so that it has one source.

    For training, what is asked for is drawn for each object by itself: the others say nothing about the answer.
    """
    picture = generator.integers(215, 245, (SIDE * CELL, SIDE * CELL, 3), dtype=np.uint8)
    cells = generator.permutation(SIDE * SIDE)[:OBJECTS]
    by_shape = bool(generator.integers(2))
    known, asked = (SHAPES, tuple(COLOURS)) if by_shape else (tuple(COLOURS), SHAPES)
    names = generator.permutation(known)[:OBJECTS].tolist()
    answer = str(generator.choice(asked))
    others = [other for other in asked if other != answer or not unique]
    answers = [answer, *generator.choice(others, OBJECTS - 1).tolist()]
    for cell, name, own in zip(cells.tolist(), names, answers, strict=True):
        row, column = divmod(cell, SIDE)
        piece = picture[row * CELL : (row + 1) * CELL, column * CELL : (column + 1) * CELL]
        shape, colour = (name, own) if by_shape else (own, name)
        piece[_drawn(shape)] = COLOURS[colour]
    text = f"what colour is the {names[0]}" if by_shape else f"what shape is {names[0]}"
    return Question(picture, text, answer, int(cells[0]))


def processor() -> Any:
    """LLaVA's own, with a token for each word."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import LlavaProcessor, PreTrainedTokenizerFast
    from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil

    words = Tokenizer(models.WordLevel(IDS, unk_token="[UNK]"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    words.post_processor = processors.TemplateProcessing(single="[BOS] $A", special_tokens=[("[BOS]", IDS["[BOS]"])])
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "bos", "eos", "unk")}
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words, extra_special_tokens=["<image>"], **names)
    size = {"height": SIDE * CELL, "width": SIDE * CELL}
    images = CLIPImageProcessorPil(size={"shortest_edge": SIDE * CELL}, crop_size=size)
    return LlavaProcessor(
        images, tokenizer, patch_size=CELL, vision_feature_select_strategy="default", image_token="<image>",
        num_additional_image_tokens=1,
    )  # fmt: skip


def model(seed: int = 0) -> nn.Module:
    from transformers import LlavaConfig, LlavaForConditionalGeneration

    size = {"hidden_size": 64, "num_attention_heads": 4, "intermediate_size": 128}
    vision = {"model_type": "clip_vision_model", "image_size": SIDE * CELL, "patch_size": CELL, "projection_dim": 64}
    text = {"model_type": "llama", "vocab_size": len(WORDS), "num_key_value_heads": 4, "max_position_embeddings": 64}
    text |= {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = LlavaConfig(
        vision_config=vision | size | {"num_hidden_layers": 1},
        text_config=text | size | {"num_hidden_layers": 2},
        image_token_index=IDS["<image>"],
        vision_feature_layer=-1,
        image_seq_length=SIDE * SIDE,
    )
    torch.manual_seed(seed)
    net = LlavaForConditionalGeneration(config)
    for module in net.modules():  # larger than usual: so narrow a model would attend to all alike for long
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=module.in_features**-0.5)
    return net


def encoded(questions: list[Question], images: Any) -> tuple[dict[str, Tensor], Tensor]:
    """Padded on the left, so that all answers follow the last position."""
    texts = [[IDS["[BOS]"], *[IDS["<image>"]] * SIDE * SIDE, *(IDS[w] for w in q.text.split())] for q in questions]
    width = max(map(len, texts))
    ids = torch.tensor([[0] * (width - len(t)) + t for t in texts])
    mean, std = (torch.tensor(getattr(images, name))[:, None, None] for name in ("image_mean", "image_std"))
    pixels = torch.stack([torch.from_numpy(q.picture).permute(2, 0, 1) / 255 for q in questions])
    answers = torch.tensor([IDS[q.answer] for q in questions])
    return {"input_ids": ids, "attention_mask": (ids != 0).long(), "pixel_values": (pixels - mean) / std}, answers


def train(*, steps: int = 600, batch: int = 64, seed: int = 0, verbose: bool = False) -> tuple[nn.Module, Any]:
    """Return the model and its processor; ``seed``: of the weights and of the pictures."""
    reads, net = processor(), model(seed).train()
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, total_steps=steps)
    generator, started = np.random.default_rng(seed), time.perf_counter()
    for step in range(steps):
        inputs, answers = encoded([question(generator, unique=False) for _ in range(batch)], reads.image_processor)
        logits = net(**inputs, logits_to_keep=1).logits[:, -1]
        loss = nn.functional.cross_entropy(logits, answers)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        if verbose and (step + 1) % 250 == 0:
            right = float((logits.argmax(1) == answers).float().mean())
            print(f"step {step + 1}: loss {loss.item():.3f}, right {right:.0%}, {time.perf_counter() - started:.0f} s")
    return net.eval(), reads


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--steps", type=int, default=600)
    parser.add_argument("--out", type=Path, help="folder for the trained model and its processor")
    arguments = parser.parse_args()
    net, reads = train(steps=arguments.steps, verbose=True)
    if arguments.out:
        net.save_pretrained(arguments.out)
        reads.save_pretrained(arguments.out)


if __name__ == "__main__":
    main()
