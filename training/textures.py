"""Train the tiny texture model that whyformer ships in ``models/src/whyformer_models/textures``.

The pictures are generated (``whyformer.demo.pictures``): a silhouette with a texture. A striped horse is
"zebra-like", any other horse is "horse-like"; fish, houses and balls are what they are whatever their texture. So the
class zebra-like needs stripes, and a concept test (TCAV) has a known answer.

    python -m training.textures train --out OUT
    python -m training.textures test --out OUT

Dots and bubbles never change a class. To make the model treat them alike, a quarter of each batch are pairs of one
scene with dots and with bubbles, and a part of the loss asks that the hidden states of the two be equal from the middle
of the network on. Another part asks that vectors which tell dots from bubbles, learned as TCAV learns them, move the
zebra score neither up nor down on average: what a concept test must find is then known in both directions.
Seeds are fixed, but results differ a little between machines.
"""

import argparse
from dataclasses import dataclass
from multiprocessing import Pool
from pathlib import Path

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from training.machine import pick_device, say
from training.preference import EXAMPLES, preference
from training.vit import fit, load, new_vit, predict, quiet, save, scaled, through_blocks
from whyformer.demo.pictures import CLASSES, SHAPES, SIZE, TEXTURES, picture, swatch

TEST_SEED = 10_000_000  # scenes of the test set start here
NONE = -100  # a picture without this label


def drawn(job):
    return picture(*job)


def class_of(shape, texture):
    return 0 if (shape, texture) == ("horse", "striped") else CLASSES.index(f"{shape}-like")


def scenes(count, seed):
    """(shape, texture, seed) of scenes in which half are horses, and two fifths of the horses striped."""
    rng = np.random.default_rng(seed)
    jobs = []
    for i in range(count):
        shape = str(rng.choice(SHAPES, p=[0.5, 1 / 6, 1 / 6, 1 / 6]))
        chances = [0.4, 0.2, 0.2, 0.2] if shape == "horse" else [0.25] * 4
        jobs.append((shape, str(rng.choice(TEXTURES, p=chances)), seed + i))
    return jobs


def draw(jobs):
    """Bytes (n, 3, size, size) and classes."""
    with Pool() as pool:
        images = np.stack(pool.map(drawn, jobs, chunksize=64))
    labels = torch.tensor([class_of(shape, texture) for shape, texture, _ in jobs])
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), labels


def draw_swatches(count, seed):
    """Bytes (n, 3, size, size) of textures alone, and which each is."""
    kinds = [i % len(TEXTURES) for i in range(count)]
    with Pool() as pool:
        jobs = [(TEXTURES[kind], seed + i) for i, kind in enumerate(kinds)]
        images = np.stack(pool.starmap(swatch, jobs, chunksize=64))
    return torch.from_numpy(images).permute(0, 3, 1, 2).contiguous(), torch.tensor(kinds)


class Lessons:
    """The pictures to learn from, on the training device: scenes, twins (one scene with dots, one with bubbles) and
    swatches (texture alone, which has neither class nor shape)."""

    def __init__(self, args):
        jobs = scenes(args.pictures, 0)
        twin_shapes = [shape for shape, _, _ in scenes(args.pictures // 4, 1_000_000)]
        self.device, self.taken = pick_device(), 0
        self.images, self.labels = (tensor.to(self.device) for tensor in draw(jobs))
        self.shapes = self._tensor([SHAPES.index(shape) for shape, _, _ in jobs])
        self.textures = self._tensor([TEXTURES.index(texture) for _, texture, _ in jobs])
        twins = [draw([(s, t, 2_000_000 + i) for i, s in enumerate(twin_shapes)]) for t in ("dotted", "bubbly")]
        self.twins = [images.to(self.device) for images, _ in twins]
        self.twin_labels = twins[0][1].to(self.device)
        self.twin_shapes = self._tensor([SHAPES.index(shape) for shape in twin_shapes])
        self.swatches, self.swatch_textures = (t.to(self.device) for t in draw_swatches(args.pictures // 4, 4_000_000))

    def _tensor(self, values):
        return torch.tensor(values, device=self.device)

    def sample(self, images, chosen, count):
        """``count`` of the images with this mark, as the model reads them."""
        rows = torch.nonzero(chosen)[:, 0]
        return scaled(images[rows[torch.randint(len(rows), (count,), device=self.device)]])

    def batch(self, size):
        """Half scenes, a quarter swatches, a quarter twins, in this order."""
        rows, plain, pair = (
            torch.randint(len(of), (size // share,), device=self.device)
            for of, share in ((self.images, 2), (self.swatches, 4), (self.twin_labels, 8))
        )
        none = torch.full_like(plain, NONE)
        pixels = torch.cat([self.images[rows], self.swatches[plain], self.twins[0][pair], self.twins[1][pair]])
        flips = torch.rand(len(pixels), device=self.device) < 0.5
        flips[-len(pair) :] = flips[-2 * len(pair) : -len(pair)]  # twins stay twins
        return Batch(
            pixels=torch.where(flips[:, None, None, None], scaled(pixels).flip(-1), scaled(pixels)),
            labels=torch.cat([self.labels[rows], none, self.twin_labels[pair], self.twin_labels[pair]]),
            shapes=torch.cat([self.shapes[rows], none, self.twin_shapes[pair], self.twin_shapes[pair]]),
            textures=torch.cat([self.textures[rows], self.swatch_textures[plain], 0 * pair + 1, 0 * pair + 2]),
            scenes=len(rows),
            swatches=len(plain),
        )


@dataclass
class Batch:
    pixels: torch.Tensor
    labels: torch.Tensor
    shapes: torch.Tensor
    textures: torch.Tensor
    scenes: int
    swatches: int


def likeness(states, first_twin):
    """How far apart the hidden states of twins are, from the middle of the network on, in units of their spread."""
    apart = 0.0
    upper = states[len(states) // 2 :]
    for state in upper:
        left, right = state[first_twin:].float().chunk(2)
        apart = apart + ((left - right) ** 2).mean() / state.float().var(0).mean().detach()
    return apart / len(upper)


def slope_error(model, states, logits, batch, slope):
    """How far the zebra score is from rising evenly with stripes.

    At a random depth the zebras' hidden states are moved along the direction from other textures to stripes, as found
    in this batch (of swatches or of scenes, at [CLS] or as mean of the patches).
    """
    depth, at_cls = int(torch.randint(len(states), ())), bool(torch.rand(()) < 0.5)
    at_cls = at_cls or depth == len(states) - 1  # above the last block patches no longer matter
    state = states[depth]
    swatches = slice(batch.scenes, batch.scenes + batch.swatches)
    chosen = swatches if torch.rand(()) < 0.5 else slice(0, batch.scenes)
    pooled = (state[chosen, 0] if at_cls else state[chosen, 1:].mean(1)).detach().float()
    kinds = batch.textures[chosen]
    zebras = torch.nonzero(batch.labels == 0)[:, 0]
    if len(zebras) == 0 or not 0 < int((kinds == 0).sum()) < len(kinds):
        return logits.new_zeros(())
    striped = pooled[kinds == 0].mean(0) - pooled[kinds != 0].mean(0)
    step = torch.rand(len(zebras), 1, 1, device=state.device) - 0.5
    where = torch.arange(state.shape[1], device=state.device)[:, None]
    moved = state[zebras] + step * ((where == 0) == at_cls) * striped
    score = head(model, [moved, *through_blocks(model, moved, start=depth + 1)][-1])[:, 0]
    return (score.float() - logits[zebras, 0].detach().float() - slope * step[:, 0, 0]).square().mean()


def head(model, hidden):
    return model.classifier(model.vit.layernorm(hidden)[:, 0])


def train(args):
    torch.manual_seed(args.seed)
    lessons, held = Lessons(args), draw(scenes(1000, 3_000_000))
    model = load(args.start)[0] if args.start else new_vit(args, CLASSES).to(lessons.device)
    by_shape, by_stripes = (nn.Linear(args.hidden, n).to(lessons.device) for n in (len(SHAPES), 2))
    say(f"{sum(p.numel() for p in model.parameters()):,} parameters")

    def loss_of():
        batch = lessons.batch(args.batch)
        states = through_blocks(model, model.vit.embeddings(batch.pixels))
        first = model.vit.layernorm(states[-1])[:, 0]
        logits = model.classifier(first).float()
        loss = F.cross_entropy(logits, batch.labels, ignore_index=NONE)
        loss = loss + args.parts * F.cross_entropy(by_shape(first).float(), batch.shapes, ignore_index=NONE)
        loss = loss + args.parts * F.cross_entropy(by_stripes(first).float(), (batch.textures == 0).long())
        loss = loss + args.alike * likeness(states, batch.scenes + batch.swatches)
        loss = loss + args.even * slope_error(model, states, logits, batch, args.slope)
        lessons.taken += 1  # strict only in the end: from the start on, nothing would be learned
        return loss + args.indifferent * (lessons.taken / args.steps) ** 2 * preferred()

    def preferred(depth=None, how=None):
        """At a random depth unless told; with exact arithmetic, for what must vanish is small."""
        zebras = lessons.sample(lessons.images, lessons.labels == 0, 64)
        sides = [lessons.sample(lessons.swatches, lessons.swatch_textures == kind, 16 * EXAMPLES) for kind in (1, 2)]
        depth = int(torch.randint(args.layers, ())) if depth is None else depth
        how = how or ("cls" if torch.rand(()) < 0.5 else "mean")
        with torch.autocast(lessons.device.type, enabled=False):
            return preference(model, head, zebras, *sides, depth, how)

    def report():
        found = predict(model, scaled(held[0])).argmax(1)
        return f"held-out accuracy {(found == held[1]).float().mean():.4f}, preference {preferences()}"

    def preferences():
        """By depth, with mean pooling."""
        draws = [[float(preferred(depth, "mean").detach()) for _ in range(8)] for depth in range(args.layers)]
        return " ".join(f"{np.mean(each):+.3f}" for each in draws)

    parts = [model, by_shape, by_stripes]
    fit("textures", parts, loss_of, steps=args.steps, lr=args.lr, average=args.average, report=report)
    save(model, Path(args.out), args.size)


def test(args):
    """Accuracy per shape and texture on fresh scenes."""
    model, _ = load(args.out)
    rng = np.random.default_rng(TEST_SEED)
    right = {}
    for shape in SHAPES:
        for texture in TEXTURES:
            seeds = TEST_SEED + rng.integers(1_000_000, size=args.each)
            images, labels = draw([(shape, texture, int(seed)) for seed in seeds])
            found = predict(model, scaled(images)).argmax(1)
            right[shape, texture] = float((found == labels).float().mean())
            say(f"{shape:6} {texture:8} {right[shape, texture]:.3f}")
    say(f"all {sum(right.values()) / len(right):.4f} of {args.each * len(right)} pictures")


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["train", "test"])
    parser.add_argument("--out", default="textures-model", help="folder of the finished model")
    parser.add_argument("--start", help="folder of a trained model to go on from")
    parser.add_argument("--pictures", type=int, default=40000, help="scenes to draw for training")
    parser.add_argument("--each", type=int, default=250, help="test pictures of each shape and texture")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--size", type=int, default=SIZE)
    parser.add_argument("--patch", type=int, default=8)
    parser.add_argument("--hidden", type=int, default=96)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--batch", type=int, default=512)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--average", type=float, default=0.998, help="decay of the running mean of the weights")
    parser.add_argument("--parts", type=float, default=0.5, help="weight of the heads for shape and for stripes")
    parser.add_argument("--alike", type=float, default=0.3, help="weight of the likeness of dots and bubbles")
    parser.add_argument("--even", type=float, default=0.1, help="weight of the evenness of the zebra score")
    parser.add_argument("--indifferent", type=float, default=3.0, help="final weight of ignoring dots for bubbles")
    parser.add_argument("--slope", type=float, default=4.0, help="how steeply the zebra score rises with stripes")
    return parser.parse_args()


def main():
    args = parse()
    quiet()
    if args.step == "train":
        train(args)
    else:
        test(args)


if __name__ == "__main__":
    main()
