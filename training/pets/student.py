"""Steps 3 and 4: the ViT learns from labels and teachers, and is measured."""

from pathlib import Path

import torch
from torch import nn

from training.machine import pick_device, say
from training.pets.augmentation import augmented, mixed
from training.pets.photos import BREEDS, SPECIES, dog_breeds, one_hot, plain
from training.pets.teacher import load_teachers, opinion
from training.vit import fit, load, new_vit, predict, save, soft_cross_entropy, through_blocks


def train_student(args, parts):
    torch.manual_seed(args.seed + 1)
    device = pick_device()
    model = new_vit(args, SPECIES).to(device)
    if args.pretrain_steps:
        model.load_state_dict(torch.load(Path(args.work) / "pretrained.pt", map_location=device, weights_only=True))
    breeds = nn.Linear(args.hidden, BREEDS).to(device)
    teachers, kinds = load_teachers(args) if args.listen else [], dog_breeds(parts)
    images, _, breed = parts["train"]

    def loss_of():
        rows = torch.randint(len(images), (args.batch,), device=device)
        pixels, wanted = mixed(augmented(images[rows], args.size), one_hot(breed[rows], BREEDS))
        if teachers:
            wanted = (1 - args.listen) * wanted + args.listen * opinion(teachers, pixels)
        first = model.vit.layernorm(through_blocks(model, model.vit.embeddings(pixels), args.drop)[-1])[:, 0]
        return soft_cross_entropy(model.classifier(first), wanted @ kinds) + args.breed * soft_cross_entropy(
            breeds(first), wanted
        )

    def report():
        found = predict(model, plain(parts["dev"][0], args.size)).argmax(1)
        save(model, Path(args.out), args.size)  # so that a run cut short leaves something
        return f"dev {(found == parts['dev'][1].cpu()).float().mean():.4f}"

    fit("student", [model, breeds], loss_of, steps=args.steps, lr=args.lr, average=args.average, report=report)
    save(model, Path(args.out), args.size)


def measure(args, parts, split):
    model, _ = load(args.out)
    images, species, _ = parts[split]
    found = predict(model, plain(images, args.size)).argmax(1)
    right = (found == species.cpu()).float()
    each = [float(right[species.cpu() == kind].mean()) for kind in range(len(SPECIES))]
    say(f"{split}: {float(right.mean()):.4f} of {len(right)} photos (cats {each[0]:.4f}, dogs {each[1]:.4f})")
