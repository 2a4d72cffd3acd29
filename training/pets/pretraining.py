"""Step 2: the ViT fills in hidden patches (a masked autoencoder)."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from training.machine import pick_device, say
from training.pets.augmentation import augmented
from training.pets.photos import SPECIES
from training.vit import blocks, fit, new_vit, sinusoids, through_blocks


class Filler(nn.Module):
    """The autoencoder's second half: from the visible patches to the pixels of the hidden ones."""

    def __init__(self, args, width=128):
        super().__init__()
        grid = args.size // args.patch
        self.enter = nn.Linear(args.hidden, width)
        self.blank = nn.Parameter(torch.randn(width) * 0.02)
        self.register_buffer("positions", sinusoids(grid, width) * 5)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.leave = nn.Linear(width, 3 * args.patch**2)

    def forward(self, visible, shown):
        """``shown`` (n, visible patches): which patches those are."""
        visible = self.enter(visible)
        count, width = len(visible), visible.shape[-1]
        whole = self.blank.to(visible.dtype).expand(count, len(self.positions), width)
        whole = whole.scatter(1, shown[:, :, None].expand(-1, -1, width), visible[:, 1:])
        return self.leave(self.layers(whole + self.positions))


def patches_of(pixels, patch):
    """(n, patches, values), each patch brought to mean 0 and variance 1."""
    values = F.unfold(pixels, patch, stride=patch).transpose(1, 2)
    return (values - values.mean(-1, keepdim=True)) / (values.std(-1, keepdim=True) + 0.05)


def pretrain(args, parts):
    torch.manual_seed(args.seed)
    images = parts["train"][0]
    model, filler = new_vit(args, SPECIES).to(pick_device()), Filler(args).to(pick_device())
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters in {len(blocks(model))} blocks")
    count = (args.size // args.patch) ** 2
    visible = round(count * (1 - args.hide))

    def loss_of():
        rows = torch.randint(len(images), (args.batch,), device=images.device)
        pixels = augmented(images[rows], args.size)
        order = torch.rand(len(pixels), count, device=pixels.device).argsort(1)
        shown, hidden = order[:, :visible], order[:, visible:]
        tokens = model.vit.embeddings(pixels)
        kept = torch.cat([torch.zeros_like(shown[:, :1]), shown + 1], 1)
        tokens = tokens.gather(1, kept[:, :, None].expand(-1, -1, tokens.shape[-1]))
        encoded = model.vit.layernorm(through_blocks(model, tokens)[-1])
        guess = filler(encoded, shown)
        wrong = (guess.float() - patches_of(pixels, args.patch)).square().mean(-1)
        return wrong.gather(1, hidden).mean()

    fit("pretrain", [model, filler], loss_of, steps=args.pretrain_steps, lr=args.lr, average=0.998)
    torch.save(model.state_dict(), Path(args.work) / "pretrained.pt")
