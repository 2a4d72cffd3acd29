"""Train the small sentiment model that whyformer ships in ``models/src/whyformer_models/sentiment``.

The recipe is knowledge distillation:

1. ``teacher``  fine-tune all-MiniLM-L6-v2 on the Stanford Sentiment Treebank (sentences and
   phrases of the training trees), on the last words of IMDb reviews and on short everyday
   sentences made from templates; several seeds make an ensemble.
2. ``label``    build the transfer set (the texts above, copies of the treebank sentences with
   words replaced by near neighbours, sentences of IMDb reviews), give each text the mean logits
   of the teachers, and train a small WordPiece vocabulary on the texts.
3. ``student``  train a small BERT classifier on these logits, and on the labels where known.
4. ``test``     measure a trained model on the test split. Do this once, for the model chosen on dev.

Run all of 1 to 3 with ``train``:

    python -m training.sentiment train --data DATA --teacher MINILM --work WORK --out OUT
    python -m training.sentiment test --data DATA --out OUT

DATA holds ``sst/{train,dev,test}.tsv`` (text, tab, 0 or 1), ``sst/trees_{train,dev,test}.txt.gz``
and ``imdb50k.csv.xz`` (columns review, sentiment). MINILM is the folder of all-MiniLM-L6-v2 in the
format of transformers. WORK keeps the fine-tuned teachers and the labelled texts. The script uses a
GPU if there is one; seeds are fixed, but results differ a little between machines.
"""

import argparse
from pathlib import Path

import torch
from transformers.utils import logging as transformers_logging

from training.sentiment.student import test_student, train_student
from training.sentiment.teacher import train_teacher
from training.sentiment.transfer import label_texts


def parse():
    parser = argparse.ArgumentParser(
        prog="python -m training.sentiment", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("step", choices=["train", "teacher", "label", "student", "test"])
    parser.add_argument("--data", required=True, help="folder of the treebank and the reviews")
    parser.add_argument("--teacher", help="folder of all-MiniLM-L6-v2")
    parser.add_argument("--work", default="sentiment-work", help="folder for teachers and labelled texts")
    parser.add_argument("--out", default="sentiment-model", help="folder of the finished model")
    parser.add_argument("--limit", type=int, default=0, help="texts of each kind, to try the script")
    data = parser.add_argument_group("data")
    data.add_argument("--reviews", type=int, default=24000, help="read the first so many reviews")
    data.add_argument("--everyday", type=int, default=12000, help="sentences drawn from the templates")
    data.add_argument("--copies", type=int, default=20, help="altered copies of each treebank sentence")
    data.add_argument("--data-seed", type=int, default=0)
    teacher = parser.add_argument_group("teacher")
    teacher.add_argument("--teacher-seeds", type=int, nargs="+", default=[1, 2, 3])
    teacher.add_argument("--teacher-epochs", type=int, default=3)
    teacher.add_argument("--teacher-lr", type=float, default=1e-4)
    teacher.add_argument("--teacher-batch", type=int, default=128)
    student = parser.add_argument_group("student")
    student.add_argument("--seed", type=int, default=1)
    student.add_argument("--vocab", type=int, default=8000)
    student.add_argument("--hidden", type=int, default=192)
    student.add_argument("--layers", type=int, default=4)
    student.add_argument("--heads", type=int, default=4)
    student.add_argument("--inner", type=int, default=0, help="feed-forward width (default: 4 times hidden)")
    student.add_argument("--dropout", type=float, default=0.1)
    student.add_argument("--epochs", type=int, default=4)
    student.add_argument("--lr", type=float, default=1e-3)
    student.add_argument("--batch", type=int, default=512)
    student.add_argument("--temperature", type=float, default=2.0)
    student.add_argument("--hard", type=float, default=0.5, help="weight of the known labels")
    args = parser.parse_args()
    if args.step != "test" and not args.teacher:
        parser.error("--teacher is needed for this step")
    return args


def main():
    args = parse()
    torch.backends.cuda.matmul.allow_tf32 = True
    transformers_logging.disable_progress_bar()
    transformers_logging.set_verbosity_error()
    if args.step == "test":
        test_student(args)
        return
    Path(args.work).mkdir(parents=True, exist_ok=True)
    if args.step in ("train", "teacher"):
        for seed in args.teacher_seeds:
            train_teacher(args, seed)
    if args.step in ("train", "label"):
        label_texts(args)
    if args.step in ("train", "student"):
        train_student(args)


if __name__ == "__main__":
    main()
