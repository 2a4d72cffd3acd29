"""Step 1: small convolutional networks that tell the breeds."""

from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

from training.machine import pick_device
from training.pets.augmentation import augmented, mixed
from training.pets.photos import BREEDS, dog_breeds, one_hot, plain
from training.vit import fit, precision, soft_cross_entropy


class Block(nn.Module):
    def __init__(self, inner, outer, stride):
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(inner, outer, 3, stride, 1, bias=False), nn.BatchNorm2d(outer))
        self.second = nn.Sequential(nn.Conv2d(outer, outer, 3, 1, 1, bias=False), nn.BatchNorm2d(outer))
        change = stride != 1 or inner != outer
        self.skip = (
            nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
            if change
            else nn.Identity()
        )

    def forward(self, x):
        return F.relu(self.second(F.relu(self.first(x))) + self.skip(x))


def new_teacher(width):
    widths = [width, width, 2 * width, 4 * width, 8 * width]
    stem = [nn.Conv2d(3, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    body = [
        Block(widths[i] if j == 0 else widths[i + 1], widths[i + 1], 2 if j == 0 and i else 1)
        for i in range(4)
        for j in range(2)
    ]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Dropout(0.2), nn.Linear(widths[-1], BREEDS)]
    return channels_last(nn.Sequential(*stem, *body, *head).to(pick_device()))


def channels_last(thing):
    """The layout that convolutions on a GPU are fastest in; torch's CPU kernels are left as they are."""
    return thing.to(memory_format=torch.channels_last) if pick_device().type == "cuda" else thing


def teacher_file(args, seed):
    return Path(args.work) / f"teacher-{seed}.pt"


def train_teacher(args, parts, seed):
    torch.manual_seed(seed)
    model = new_teacher(args.teacher_width)
    images, _, breed = parts["train"]
    kinds = dog_breeds(parts)

    def loss_of():
        model.train()
        rows = torch.randint(len(images), (args.batch,), device=images.device)
        pixels, wanted = mixed(augmented(images[rows], args.size), one_hot(breed[rows], BREEDS))
        logits = model(channels_last(pixels)).float()
        species = (logits.softmax(1) @ kinds).clamp(min=1e-6).log()
        return soft_cross_entropy(logits, 0.9 * wanted + 0.1 / BREEDS) - (wanted @ kinds * species).sum(1).mean()

    def report():
        model.eval()
        return teachers_report(args, [model], parts)

    fit(f"teacher {seed}", [model], loss_of, steps=args.teacher_steps, lr=args.teacher_lr, average=0.998, report=report)
    torch.save(model.state_dict(), teacher_file(args, seed))


@torch.no_grad()
def opinion(models, pixels, temperature=1.0):
    """Mean of the teachers' breed probabilities."""
    pixels = channels_last(pixels)
    return torch.stack([(model(pixels).float() / temperature).softmax(1) for model in models]).mean(0)


def teachers_report(args, models, parts):
    images, species, breed = parts["dev"]
    with precision():
        chances = opinion(models, plain(images, args.size))
    kind = (chances @ dog_breeds(parts)).argmax(1)
    right = [(kind == species).float().mean(), (chances.argmax(1) == breed).float().mean()]
    return f"dev species {right[0]:.4f} breed {right[1]:.4f}"


def load_teachers(args):
    models = []
    for seed in args.teacher_seeds:
        model = new_teacher(args.teacher_width)
        model.load_state_dict(torch.load(teacher_file(args, seed), map_location=pick_device(), weights_only=True))
        models.append(model.eval())
    return models
