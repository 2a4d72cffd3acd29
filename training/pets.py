"""Train the small cat-or-dog model that whyformer ships in ``src/whyformer/demo/pets``.

Six thousand photos are few for a vision transformer, so it gets help from the same photos:

1. ``teacher``   train small convolutional networks (of the ResNet kind) from scratch to tell the 37 breeds.
2. ``pretrain``  let the ViT fill in hidden patches of the training photos (a masked autoencoder).
3. ``student``   train the ViT on labels (species, and breed through a second head that is thrown away) and on the
   teachers' opinion of the very same augmented pictures.
4. ``test``      measure a trained model on the test split. Do this once, for the model chosen on the held-out part.

Run 1 to 3 with ``train``:

    python training/pets.py train --data DATA --work WORK --out OUT
    python training/pets.py test --data DATA --out OUT

DATA holds ``pets128.tar``: ``images/NAME.jpg`` (128 × 128) and ``labels.csv`` (name, split, species).
A tenth of the training photos is held out to choose settings by. WORK keeps the teachers and the pretrained ViT. The
script uses a GPU if there is one; seeds are fixed, but results differ a little between machines.
"""

import argparse
import csv
import io
import tarfile
from pathlib import Path

import torch
from PIL import Image
from torch import nn
from torch.nn import functional as F
from vit import (
    blocks,
    fit,
    load,
    new_vit,
    pick_device,
    precision,
    predict,
    quiet,
    save,
    say,
    scaled,
    sinusoids,
    soft_cross_entropy,
    through_blocks,
)

SPECIES = ("cat", "dog")
BREEDS = 37


# ---------------------------------------------------------------------------------------------- data


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


def uniform(count, low, high, device):
    return low + (high - low) * torch.rand(count, device=device)


def augmented(images, size, smallest=0.3):
    """Random crop, turn, mirror, colour and a blank rectangle, each picture its own; bytes → the model's scale."""
    count, device = len(images), images.device
    area = torch.exp(uniform(count, torch.tensor(smallest).log().item(), 0.0, device))
    aspect = torch.exp(uniform(count, -0.29, 0.29, device))
    width, height = (area * aspect).sqrt().clamp(max=1), (area / aspect).sqrt().clamp(max=1)
    angle = uniform(count, -0.3, 0.3, device) * (torch.rand(count, device=device) < 0.5)
    mirror = torch.where(torch.rand(count, device=device) < 0.5, 1.0, -1.0)
    cos, sin = angle.cos(), angle.sin()
    shift_x, shift_y = uniform(count, -1, 1, device) * (1 - width), uniform(count, -1, 1, device) * (1 - height)
    rows = torch.stack([mirror * width * cos, -height * sin, shift_x, mirror * width * sin, height * cos, shift_y], 1)
    grid = F.affine_grid(rows.view(count, 2, 3), (count, 3, size, size), align_corners=False)
    pixels = F.grid_sample(scaled(images), grid, padding_mode="reflection", align_corners=False)
    return blanked(coloured(pixels))


def coloured(pixels):
    """Brightness, contrast, saturation, a tint; one picture in ten grey."""
    count, device = len(pixels), pixels.device

    def each(low, high):
        return uniform(count, low, high, device)[:, None, None, None]

    grey = pixels.mean(1, keepdim=True)
    saturation = torch.where(torch.rand(count, 1, 1, 1, device=device) < 0.1, 0.0, each(0.6, 1.4))
    pixels = grey + (pixels - grey) * saturation
    centre = pixels.mean((1, 2, 3), keepdim=True)
    pixels = centre + (pixels - centre) * each(0.6, 1.4) + each(-0.3, 0.3)
    tint = 1 + 0.1 * torch.randn(count, 3, 1, 1, device=device)
    return (pixels * tint).clamp(-1, 1)


def blanked(pixels, chance=0.25):
    """Noise in place of a random rectangle, in some pictures."""
    count, _, height, width = pixels.shape
    inside = box(count, height, width, uniform(count, 0.15, 0.5, pixels.device), pixels.device)
    hit = (torch.rand(count, device=pixels.device) < chance)[:, None, None] & inside
    return torch.where(hit[:, None], torch.randn_like(pixels) * 0.5, pixels)


def box(count, height, width, side, device):
    """(n, height, width) pixels of a rectangle with edges of ``side`` times those of the picture."""
    y = torch.arange(height, device=device)[:, None] / height
    x = torch.arange(width, device=device)[None] / width
    top, left = (uniform(count, 0, 1, device) * (1 - side) for _ in range(2))
    top, left, side = (value[:, None, None] for value in (top, left, side))
    return (y >= top) & (y < top + side) & (x >= left) & (x < left + side)


def mixed(pixels, *targets):
    """Half of the batches: pictures blended in pairs (mixup); the other half: one pasted into the other (cutmix)."""
    other = torch.randperm(len(pixels), device=pixels.device)
    share = torch.distributions.Beta(0.8, 0.8).sample((len(pixels),)).to(pixels.device)
    if torch.rand(()) < 0.5:
        weight = share[:, None, None, None]
        pixels = pixels * weight + pixels[other] * (1 - weight)
    else:
        inside = box(len(pixels), *pixels.shape[2:], (1 - share).sqrt(), pixels.device)
        pixels = torch.where(inside[:, None], pixels[other], pixels)
        share = 1 - inside.float().mean((1, 2))
    return pixels, *(t * share[:, None] + t[other] * (1 - share[:, None]) for t in targets)


def plain(images, size):
    pixels = scaled(images)
    if images.shape[-1] == size:
        return pixels
    return F.interpolate(pixels, size=(size, size), mode="bilinear", antialias=True)


def one_hot(index, classes):
    return F.one_hot(index, classes).float()


# ------------------------------------------------------------------------------------------- teacher


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


def dog_breeds(parts):
    """(breeds, species) 1 where a breed belongs to a species."""
    _, species, breed = parts["train"]
    belongs = torch.zeros(BREEDS, len(SPECIES), device=breed.device)
    belongs[breed, species] = 1
    return belongs


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


# ------------------------------------------------------------------------------------------ pretrain


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


# ------------------------------------------------------------------------------------------- student


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


# ------------------------------------------------------------------------------------------- command


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["train", "teacher", "pretrain", "student", "dev", "test"])
    parser.add_argument("--data", required=True, help="folder of pets128.tar")
    parser.add_argument("--work", default="pets-work", help="folder for teachers and the pretrained model")
    parser.add_argument("--out", default="pets-model", help="folder of the finished model")
    parser.add_argument("--limit", type=int, default=0, help="about so many photos, to try the script")
    parser.add_argument("--batch", type=int, default=512)
    teacher = parser.add_argument_group("teacher")
    teacher.add_argument("--teacher-seeds", type=int, nargs="+", default=[1])
    teacher.add_argument("--teacher-width", type=int, default=64)
    teacher.add_argument("--teacher-steps", type=int, default=1200)
    teacher.add_argument("--teacher-lr", type=float, default=2e-3)
    student = parser.add_argument_group("model")
    student.add_argument("--seed", type=int, default=1)
    student.add_argument("--size", type=int, default=128)
    student.add_argument("--patch", type=int, default=8)
    student.add_argument("--hidden", type=int, default=192)
    student.add_argument("--layers", type=int, default=8)
    student.add_argument("--heads", type=int, default=6)
    student.add_argument("--lr", type=float, default=1e-3)
    student.add_argument("--pretrain-steps", type=int, default=1500, help="0: start from random weights")
    student.add_argument("--hide", type=float, default=0.7, help="share of the patches hidden in pretraining")
    student.add_argument("--steps", type=int, default=2000)
    student.add_argument("--listen", type=float, default=0.7, help="weight of the teachers against the labels")
    student.add_argument("--breed", type=float, default=1.0, help="weight of the breeds")
    student.add_argument("--drop", type=float, default=0.1, help="chance that an image skips the last block")
    student.add_argument("--average", type=float, default=0.998, help="decay of the running mean of the weights")
    return parser.parse_args()


def main():
    args = parse()
    quiet()
    parts = read_photos(args)
    if args.step in ("dev", "test"):
        measure(args, parts, args.step)
        return
    Path(args.work).mkdir(parents=True, exist_ok=True)
    if args.step in ("train", "teacher") and args.listen:
        for seed in args.teacher_seeds:
            train_teacher(args, parts, seed)
        say("teachers together:", teachers_report(args, load_teachers(args), parts))
    if args.step in ("train", "pretrain") and args.pretrain_steps:
        pretrain(args, parts)
    if args.step in ("train", "student"):
        train_student(args, parts)


if __name__ == "__main__":
    main()
