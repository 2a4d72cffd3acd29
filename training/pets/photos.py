"""The photos: reading them, their labels, and bringing them to the model's scale."""

import csv
import io
import tarfile
from pathlib import Path

import torch
from PIL import Image
from torch.nn import functional as F

from training.machine import pick_device, say
from training.vit import scaled

SPECIES = ("cat", "dog")
BREEDS = 37


def read_photos(args):
    """{split: (bytes (n, 3, 128, 128), species, breed)} with a part of train held out as "dev"."""
    with tarfile.open(Path(args.data) / "pets128.tar") as tar:
        members = {member.name.removeprefix("./"): member for member in tar.getmembers()}
        table = io.TextIOWrapper(tar.extractfile(members["labels.csv"]), encoding="utf-8")
        rows = list(csv.DictReader(table))
        images = [pixels_of(tar.extractfile(members[f"images/{row['name']}.jpg"]).read()) for row in chosen(rows, args)]
    names = sorted({breed_of(row) for row in rows})
    rows = chosen(rows, args)
    images = torch.stack(images)
    species = torch.tensor([SPECIES.index(row["species"]) for row in rows])
    breed = torch.tensor([names.index(breed_of(row)) for row in rows])
    order = torch.rand(len(rows), generator=torch.Generator().manual_seed(0)).argsort().argsort()
    splits = [
        ("dev" if order[i] % 10 == 0 else "train") if r["split"] == "train" else "test" for i, r in enumerate(rows)
    ]
    parts = {}
    for name in ("train", "dev", "test"):
        here = torch.tensor([split == name for split in splits])
        parts[name] = tuple(tensor[here].to(pick_device()) for tensor in (images, species, breed))
        say(f"{name}: {int(here.sum())} photos, {float(species[here].float().mean()):.3f} of them dogs")
    return parts


def chosen(rows, args):
    return rows[:: max(1, len(rows) // args.limit)] if args.limit else rows


def breed_of(row):
    """From the photo's name, ``Maine_Coon_12``: the table lacks the breed of a few."""
    return row["name"].rpartition("_")[0]


def pixels_of(data):
    image = Image.open(io.BytesIO(data)).convert("RGB")
    return torch.frombuffer(bytearray(image.tobytes()), dtype=torch.uint8).view(*image.size[::-1], 3).permute(2, 0, 1)


def plain(images, size):
    pixels = scaled(images)
    if images.shape[-1] == size:
        return pixels
    return F.interpolate(pixels, size=(size, size), mode="bilinear", antialias=True)


def one_hot(index, classes):
    return F.one_hot(index, classes).float()


def dog_breeds(parts):
    """(breeds, species) 1 where a breed belongs to a species."""
    _, species, breed = parts["train"]
    belongs = torch.zeros(BREEDS, len(SPECIES), device=breed.device)
    belongs[breed, species] = 1
    return belongs
