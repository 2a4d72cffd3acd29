"""What the image scripts share: a small ViT of transformers' standard kind, its training loop, saving and loading."""

import contextlib
import copy
import math
import time

import torch
from torch import nn
from torch.nn import functional as F
from transformers import AutoImageProcessor, AutoModelForImageClassification, ViTConfig, ViTForImageClassification
from transformers.utils import logging as transformers_logging

from training.machine import pick_device, say


def quiet():
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.backends.cudnn.allow_tf32 = True
    torch.backends.cudnn.benchmark = True
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()


def precision():
    """bfloat16 arithmetic on a GPU, float32 elsewhere."""
    if pick_device().type == "cuda":
        return torch.autocast("cuda", dtype=torch.bfloat16)
    return contextlib.nullcontext()


# --------------------------------------------------------------------------------------------- model


def new_vit(args, labels):
    """A ViT classifier whose matrices start as in the ViT paper; the positions start as sines and cosines."""
    config = ViTConfig(
        image_size=args.size,
        patch_size=args.patch,
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=4 * args.hidden,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        layer_norm_eps=1e-6,
        id2label=dict(enumerate(labels)),
        label2id={name: index for index, name in enumerate(labels)},
    )
    model = ViTForImageClassification(config)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
    grid = args.size // args.patch
    model.vit.embeddings.position_embeddings.data[0, 1:] = sinusoids(grid, args.hidden)
    return model


def sinusoids(grid, width):
    """(grid², width) positions in two dimensions, rows in one half, columns in the other."""
    at = torch.arange(grid, dtype=torch.float32)
    speed = 1 / 100 ** (torch.arange(width // 4) / (width // 4))
    line = torch.cat([(at[:, None] * speed).sin(), (at[:, None] * speed).cos()], 1)
    rows, columns = line[:, None].expand(grid, grid, -1), line[None].expand(grid, grid, -1)
    return 0.2 * torch.cat([rows, columns], -1).flatten(0, 1)


def blocks(model):
    return [module for module in model.modules() if type(module).__name__ == "ViTLayer"]


def through_blocks(model, hidden, drop=0.0, start=0):
    """The hidden states after each block. Stochastic depth: some images skip a block, deeper blocks more often."""
    states, layers = [], blocks(model)
    for index, layer in enumerate(layers[start:], start):
        after = layer(hidden)
        after = after[0] if isinstance(after, tuple) else after
        if drop:
            keep = 1 - drop * index / max(len(layers) - 1, 1)
            goes = torch.rand(len(hidden), 1, 1, device=hidden.device) < keep
            after = hidden + (after - hidden) * goes / keep
        hidden = after
        states.append(hidden)
    return states


# ------------------------------------------------------------------------------------------ training


class Average:
    """A running mean of the weights, which is what is measured and kept."""

    def __init__(self, modules, decay):
        self.live = [tensor for module in modules for tensor in module.state_dict().values()]
        self.live = [tensor for tensor in self.live if tensor.is_floating_point()]
        self.mean = [tensor.clone() for tensor in self.live]
        self.decay, self.steps = decay, 0

    @torch.no_grad()
    def update(self):
        self.steps += 1
        decay = min(self.decay, self.steps / (self.steps + 10))
        torch._foreach_lerp_(self.mean, self.live, 1 - decay)

    @torch.no_grad()
    @contextlib.contextmanager
    def shown(self):
        before = [tensor.clone() for tensor in self.live]
        torch._foreach_copy_(self.live, self.mean)
        yield
        torch._foreach_copy_(self.live, before)

    @torch.no_grad()
    def keep(self):
        torch._foreach_copy_(self.live, self.mean)


def fit(name, modules, loss_of, *, steps, lr, decay=0.05, average=0.999, report=None):
    """AdamW with warm-up and cosine decay; afterwards the modules hold the running mean of their weights."""
    weights = [w for module in modules for w in module.parameters() if w.requires_grad]
    groups = [
        {"params": [w for w in weights if w.ndim > 1], "weight_decay": decay},
        {"params": [w for w in weights if w.ndim <= 1], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, lr=lr, betas=(0.9, 0.95), fused=pick_device().type == "cuda")
    mean = Average(modules, average)
    warm, started, total = max(1, steps // 20), time.time(), 0.0
    for step in range(steps):
        rate = lr * min((step + 1) / warm, 0.5 * (1 + math.cos(math.pi * step / steps)) + 1e-3)
        for group in optimizer.param_groups:
            group["lr"] = rate
        with precision():
            loss = loss_of()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        mean.update()
        total = total + loss.detach()
        if (step + 1) % max(1, steps // 10) == 0:
            with mean.shown():
                found = report() if report is not None else ""
            spent = time.time() - started
            say(f"{name} step {step + 1}/{steps} loss {float(total) / max(1, steps // 10):.4f} {found} {spent:.0f} s")
            total = 0.0
    mean.keep()


# ------------------------------------------------------------------------------------------- folders


def save(model, folder, size):
    """Half-precision weights; the config asks for float32, so that they load as float32."""
    from transformers import ViTImageProcessor

    model = copy.deepcopy(model).cpu()
    model.half().save_pretrained(folder)
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    processor = ViTImageProcessor(size={"height": size, "width": size}, image_mean=[0.5] * 3, image_std=[0.5] * 3)
    processor.save_pretrained(folder)
    (folder / "model.safetensors").chmod(0o644)
    say(f"saved to {folder}: {sum(path.stat().st_size for path in folder.iterdir()) / 1e6:.2f} MB")


def load(folder):
    model = AutoModelForImageClassification.from_pretrained(folder, dtype=torch.float32)
    return model.to(pick_device()).eval(), AutoImageProcessor.from_pretrained(folder)


@torch.no_grad()
def predict(model, pixels, batch=256):
    """(n, classes) logits of float pixels that the model's own input scale was applied to."""
    parts = []
    for start in range(0, len(pixels), batch):
        with precision():
            parts.append(model(pixels[start : start + batch].to(pick_device())).logits.float().cpu())
    return torch.cat(parts)


def scaled(images):
    """Bytes (n, 3, h, w) → the model's input, [-1, 1]."""
    return images.float() / 127.5 - 1


def soft_cross_entropy(logits, targets):
    return -(targets * F.log_softmax(logits.float(), 1)).sum(1).mean()
