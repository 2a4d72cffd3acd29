"""Train the small cat-or-dog model that whyformer ships in ``models/src/whyformer_models/pets``.

Six thousand photos are few for a vision transformer, so it gets help from the same photos:

1. ``teacher``   train small convolutional networks (of the ResNet kind) from scratch to tell the 37 breeds.
2. ``pretrain``  let the ViT fill in hidden patches of the training photos (a masked autoencoder).
3. ``student``   train the ViT on labels (species, and breed through a second head that is thrown away) and on the
   teachers' opinion of the very same augmented pictures.
4. ``test``      measure a trained model on the test split. Do this once, for the model chosen on the held-out part.

Run 1 to 3 with ``train``:

    python -m training.pets train --data DATA --work WORK --out OUT
    python -m training.pets test --data DATA --out OUT

DATA holds ``pets128.tar``: ``images/NAME.jpg`` (128 × 128) and ``labels.csv`` (name, split, species).
A tenth of the training photos is held out to choose settings by. WORK keeps the teachers and the pretrained ViT. The
script uses a GPU if there is one; seeds are fixed, but results differ a little between machines.
"""

import argparse
from pathlib import Path

from training.machine import say
from training.pets.photos import read_photos
from training.pets.pretraining import pretrain
from training.pets.student import measure, train_student
from training.pets.teacher import load_teachers, teachers_report, train_teacher
from training.vit import quiet


def parse():
    parser = argparse.ArgumentParser(
        prog="python -m training.pets", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
