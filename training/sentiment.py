"""Train the small sentiment model that whyformer ships in ``src/whyformer/demo/sentiment``.

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

    python training/sentiment.py train --data DATA --teacher MINILM --work WORK --out OUT
    python training/sentiment.py test --data DATA --out OUT

DATA holds ``sst/{train,dev,test}.tsv`` (text, tab, 0 or 1), ``sst/trees_{train,dev,test}.txt.gz``
and ``imdb50k.csv.xz`` (columns review, sentiment). MINILM is the folder of all-MiniLM-L6-v2 in the
format of transformers. WORK keeps the fine-tuned teachers and the labelled texts. The script uses a
GPU if there is one; seeds are fixed, but results differ a little between machines.
"""

import argparse
import csv
import gzip
import html
import json
import lzma
import random
import re
import time
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from tokenizers import BertWordPieceTokenizer
from torch.nn import functional as F
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertConfig,
    BertForSequenceClassification,
    BertTokenizerFast,
)
from transformers.utils import logging as transformers_logging

LABELS = {0: "negative", 1: "positive"}
MAX_LENGTH = 128
UNKNOWN = -1  # the label of a text that only the teachers judge

# Sentences that the finished model must get right. Neither they nor any sentence that differs from
# one of them in a single word is used in training.
ACCEPTANCE = [
    ("I like the movie", 1),
    ("She hates the book", 0),
    ("This is so boring", 0),
    ("I cannot wait for next time", 1),
    ("You look extremely confused", 0),
]

# Sentences that no template makes, to see how well the model does outside film reviews.
EVERYDAY_CHECK = [
    ("The soup was cold and tasted of nothing", 0),
    ("What a lovely surprise", 1),
    ("My phone broke again", 0),
    ("Thank you so much for your help", 1),
    ("He yelled at the children", 0),
    ("They laughed all evening", 1),
    ("The train is late as usual", 0),
    ("Her smile brightens my day", 1),
    ("Nobody came to his birthday", 0),
    ("We won the match", 1),
    ("I lost my keys and missed the bus", 0),
    ("The garden is full of beautiful flowers", 1),
    ("This app keeps crashing", 0),
    ("Everything works perfectly", 1),
    ("The waiter was rude to us", 0),
    ("The staff could not have been nicer", 1),
    ("I would never buy this again", 0),
    ("I would buy this again in a heartbeat", 1),
    ("It is a waste of money", 0),
    ("It is worth every penny", 1),
    ("You ruined everything", 0),
    ("You did an amazing job", 1),
    ("My back hurts and I feel sick", 0),
    ("I feel so much better today", 1),
    ("The room smelled terrible", 0),
    ("The room was clean and cosy", 1),
    ("She cried for hours", 0),
    ("She is the kindest person I know", 1),
    ("That was not funny at all", 0),
    ("That was really not bad", 1),
    ("I am not happy with the result", 0),
    ("I am not disappointed at all", 1),
    ("They never answer the phone", 0),
    ("They fixed it within minutes", 1),
    ("He seems lost and worried", 0),
    ("He seems cheerful and relaxed", 1),
    ("The lecture put me to sleep", 0),
    ("The lecture was fascinating", 1),
    ("You should be ashamed of yourself", 0),
    ("You can be proud of yourself", 1),
]

SUBJECTS = [
    "i",
    "you",
    "we",
    "they",
    "he",
    "she",
    "my friend",
    "my brother",
    "my mother",
    "our neighbour",
    "the teacher",
    "everyone",
    "the kids",
    "my parents",
    "the boss",
    "people",
]
PLURAL = {"you", "we", "they", "the kids", "my parents", "people"}
THINGS = """movie film book song story show game food meal dinner coffee hotel room house city trip weather
    music concert party lesson job team car phone service idea plan place restaurant school class dress
    present dog website answer weekend holiday meeting""".split()
DEGREES = ["", "", "very ", "so ", "really ", "extremely ", "quite ", "too ", "absolutely ", "pretty "]
LOOKS = ["be", "be", "look", "seem", "feel", "sound"]
LIKING = {
    1: "like love enjoy adore admire appreciate recommend treasure praise".split(),
    0: "hate dislike despise detest loathe regret fear resent curse".split(),
}
FEELINGS = {
    1: """happy delighted glad excited proud relaxed cheerful thrilled grateful pleased calm confident amazed
        satisfied hopeful joyful comfortable inspired lucky impressed""".split(),
    0: """sad angry upset tired bored confused disappointed annoyed worried scared lonely miserable nervous
        ashamed frustrated embarrassed sick jealous lost puzzled exhausted unhappy""".split(),
}
QUALITIES = {
    1: """good great wonderful beautiful funny exciting interesting delicious lovely perfect fantastic nice
        brilliant amazing charming helpful clever fun pleasant excellent""".split(),
    0: """bad terrible awful boring ugly stupid dull horrible annoying disgusting useless tedious confusing
        disappointing poor broken dreadful unpleasant noisy slow""".split(),
}
IDIOMS = {  # {s}: a subject, {t}: a thing
    1: [
        "{s} cannot wait to see the {t}",
        "{s} cannot wait for the {t}",
        "{s} can't wait to come back",
        "{s} can hardly wait for the next {t}",
        "{s} cannot wait until tomorrow",
        "cannot wait for more",
        "can't wait to see you again",
        "{s} cannot get enough of the {t}",
        "looking forward to the next {t}",
        "the {t} could not be better",
        "{s} had a great time at the {t}",
        "the {t} made my day",
        "there is nothing better than this {t}",
        "{s} would love to do it again",
        "{s} never get tired of the {t}",
        "the {t} is not bad at all",
        "well done , what a {t}",
        "no problem with the {t} , it is just right",
        "{s} will come back next year",
        "hope to see the {t} again soon",
    ],
    0: [
        "{s} cannot stand the {t}",
        "{s} can't stand it any longer",
        "{s} cannot bear the {t}",
        "{s} cannot recommend the {t}",
        "{s} don't want to see the {t} again",
        "{s} had to wait for hours",
        "{s} cannot understand the {t}",
        "{s} don't get the {t} at all",
        "the {t} could not be worse",
        "{s} had a terrible time at the {t}",
        "the {t} ruined my day",
        "so fed up with the {t}",
        "there is nothing good about this {t}",
        "{s} would never do it again",
        "so sick of the {t}",
        "the {t} is not good at all",
        "too many problems with the {t}",
        "what a waste of time",
        "{s} will never come back",
        "{s} cannot use the {t} , it does not work",
    ],
}


def say(*words):
    print(time.strftime("%H:%M:%S"), *words, flush=True)


def pick_device():
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


# ---------------------------------------------------------------------------------------------- data


def words_of(text):
    """The plain lower-case words of a text, to compare texts whatever their punctuation."""
    return re.findall(r"[a-z0-9']+", text.lower().replace("-lrb-", "lrb").replace("-rrb-", "rrb"))


def key_of(text):
    return " ".join(words_of(text))


def read_tsv(path):
    rows = (line.rsplit("\t", 1) for line in path.read_text(encoding="utf-8").splitlines() if line)
    return [(text, int(label)) for text, label in rows]


def read_trees(path):
    with gzip.open(path, "rt", encoding="utf-8") as file:
        return [line.strip() for line in file if line.strip()]


def tree_text(tree):
    return " ".join(re.findall(r"\(\d ([^()]+)\)", tree))


def tree_phrases(tree):
    """Every phrase of a tree such as ``(3 (2 a) (3 b))``, as (text, label from 0 to 4)."""
    stack, phrases = [], []
    for label, word, close in re.findall(r"\((\d) |([^() ]+)|(\))", tree):
        if label:
            stack.append((int(label), []))
        elif word:
            stack[-1][1].append(word)
        elif close:
            number, inside = stack.pop()
            phrases.append((" ".join(inside), number))
            if stack:
                stack[-1][1].extend(inside)
    return phrases


def tidy_phrase(text):
    """A tree's phrase in the way the .tsv files write theirs: lower case, no hyphens, no full stop."""
    text = text.replace("-LRB-", "lrb").replace("-RRB-", "rrb").replace("\\/", " ").replace("-", " ")
    return re.sub(r" \.$", "", " ".join(text.lower().split()))


def held_out_keys(sst):
    """Keys of every dev and test sentence, the neutral ones included."""
    texts = []
    for split in ("dev", "test"):
        texts += [text for text, _ in read_tsv(sst / f"{split}.tsv")]
        texts += [tree_text(tree) for tree in read_trees(sst / f"trees_{split}.txt.gz")]
    return {key_of(text) for text in texts}


def read_phrases(sst, held_out):
    """Labelled phrases of the training trees, without the neutral ones.

    The file of training trees may also hold dev trees: a tree whose sentence is held out is dropped.
    """
    trees = read_trees(sst / "trees_train.txt.gz")
    trees = [tree for tree in trees if key_of(tree_text(tree)) not in held_out]
    found = {}
    for tree in trees:
        for text, label in tree_phrases(tree):
            if label != 2 and words_of(text):
                found.setdefault(tidy_phrase(text), label)
    say(f"{len(trees)} training trees, {len(found)} phrases that are not neutral")
    return [(text, int(label > 2)) for text, label in found.items() if key_of(text) not in held_out]


def detokenize(text):
    """Treebank spelling to everyday spelling: ``do n't`` becomes ``don't``."""
    text = re.sub(r" (n't|'s|'re|'ve|'ll|'d|'m)\b", r"\1", text)
    return text.replace("lrb ", "(").replace(" rrb", ")").replace("`` ", '"').replace(" ''", '"')


def read_reviews(path, limit):
    with lzma.open(path, "rt", encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file)
        return [
            (html.unescape(row["review"]), int(row["sentiment"] == "positive"))
            for _, row in zip(range(limit), rows, strict=False)
        ]


def split_review(review):
    """Sentences of 3 to 64 words."""
    lines = re.split(r"<br\s*/?>|\n", review)
    parts = [part.strip() for line in lines for part in re.split(r"(?<=[.!?])\s+", line)]
    return [part for part in parts if 3 <= len(part.split()) <= 64]


def review_ending(review, rng):
    """The last 15 to 90 words of a review, which mostly sum up its judgement."""
    return " ".join(re.sub(r"<br\s*/?>", " ", review).split()[-rng.randint(15, 90) :])


def inflect(verb, subject):
    """The form of a verb of the lists above that goes with a subject."""
    if subject == "i":
        return "am" if verb == "be" else verb
    if subject in PLURAL:
        return "are" if verb == "be" else verb
    return "is" if verb == "be" else verb + "s"


def everyday_sentence(rng):
    """One short sentence from the templates and its label."""
    label = rng.randint(0, 1)
    subject, thing, degree = rng.choice(SUBJECTS), rng.choice(THINGS), rng.choice(DEGREES)
    kind = rng.randrange(6)
    if kind == 0:
        verb = inflect(rng.choice(LIKING[label]), subject)
        text = f"{subject} {verb} {rng.choice(['the', 'this', 'that', 'my', 'your', 'our'])} {thing}"
    elif kind == 1:
        look = inflect(rng.choice(LOOKS), subject)
        text = f"{subject} {look} {degree}{rng.choice(FEELINGS[label])}"
    elif kind == 2:
        opening = rng.choice(
            [
                f"the {thing} is",
                f"this {thing} is",
                "this is",
                "it is",
                "that was",
                "it was",
                f"the {thing} was",
                f"{subject} found the {thing}",
            ]
        )
        text = f"{opening} {degree}{rng.choice(QUALITIES[label])}"
    elif kind == 3:
        turn = rng.choice(["do not", "don't", "never", "did not", "didn't"])
        who = rng.choice(["i", "you", "we", "they", "people"])
        text = f"{who} {turn} {rng.choice(LIKING[1 - label])} the {thing}"
    elif kind == 4:
        text = f"the {thing} {rng.choice(['is', 'was'])} not {rng.choice(QUALITIES[1 - label])}"
    else:
        text = rng.choice(IDIOMS[label]).format(s=rng.choice(["i", "we", "you", "they", "people"]), t=thing)
    return text + rng.choice(["", "", " .", " !"]), label


ACCEPTANCE_WORDS = [words_of(sentence) for sentence, _ in ACCEPTANCE]


def near_acceptance(text):
    """True for an acceptance sentence and for any that differs from one in a single word."""
    words = ["cannot" if word == "can't" else word for word in words_of(text)]
    same_length = [target for target in ACCEPTANCE_WORDS if len(target) == len(words)]
    return any(sum(a != b for a, b in zip(words, target, strict=True)) <= 1 for target in same_length)


def everyday_sentences(count, rng):
    check = {key_of(text) for text, _ in EVERYDAY_CHECK}
    made = dict(everyday_sentence(rng) for _ in range(count))
    return [(text, label) for text, label in made.items() if key_of(text) not in check]


def load_labelled(args):
    """The labelled texts by source, none of them held out or near an acceptance sentence."""
    rng = random.Random(args.data_seed)
    sst = Path(args.data) / "sst"
    held_out = held_out_keys(sst)
    reviews = read_reviews(Path(args.data) / "imdb50k.csv.xz", args.reviews)
    sentences = [row for row in read_tsv(sst / "train.tsv") if key_of(row[0]) not in held_out]
    natural = [(detokenize(text), label) for text, label in sentences]
    sources = {
        "sentences": sentences,
        "natural": [row for row, old in zip(natural, sentences, strict=True) if row != old],
        "phrases": read_phrases(sst, held_out),
        "endings": [(review_ending(text, rng), label) for text, label in reviews],
        "everyday": everyday_sentences(args.everyday, rng),
    }
    if args.limit:
        sources = {name: rows[: args.limit] for name, rows in sources.items()}
        reviews = reviews[: args.limit]
    sources = {name: [row for row in rows if not near_acceptance(row[0])] for name, rows in sources.items()}
    say(", ".join(f"{name} {len(rows)}" for name, rows in sources.items()))
    return sources, reviews


# ------------------------------------------------------------------------------------------- batches


def encode(tokenizer, texts, device):
    """Token ids as one padded tensor, and the length of each row."""
    rows = []
    for start in range(0, len(texts), 20000):
        rows += tokenizer(texts[start : start + 20000], truncation=True, max_length=MAX_LENGTH)["input_ids"]
    lengths = torch.tensor([len(row) for row in rows])
    ids = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int32)
    for index, row in enumerate(rows):
        ids[index, : len(row)] = torch.tensor(row, dtype=torch.int32)
    return ids.to(device), lengths


def batches_of(lengths, size, generator):
    """Shuffled batches of rows of similar length."""
    order = torch.randperm(len(lengths), generator=generator)
    batches = []
    for chunk in order.split(size * 50):
        batches += chunk[lengths[chunk].argsort()].split(size)
    return [batches[i] for i in torch.randperm(len(batches), generator=generator)]


def forward(model, ids, lengths, batch):
    """Logits of one batch of rows."""
    width = int(lengths[batch].max())
    part = ids[batch.to(ids.device), :width].long()
    mask = torch.arange(width, device=ids.device) < lengths[batch].to(ids.device)[:, None]
    return model(input_ids=part, attention_mask=mask.long()).logits


@torch.no_grad()
def predict(model, tokenizer, texts, size=512):
    """Logits of each text, in order, on the CPU."""
    model.eval()
    ids, lengths = encode(tokenizer, texts, model.device)
    logits = torch.zeros(len(texts), 2)
    for batch in lengths.argsort().split(size):
        logits[batch] = forward(model, ids, lengths, batch).float().cpu()
    return logits


def accuracy(model, tokenizer, rows):
    logits = predict(model, tokenizer, [text for text, _ in rows])
    labels = torch.tensor([label for _, label in rows])
    return (logits.argmax(1) == labels).float().mean().item()


def optimizer_for(model, lr, steps, warmup=0.06):
    """AdamW with a linear warm-up and a linear decay to zero."""
    decayed = [p for p in model.parameters() if p.ndim > 1]
    plain = [p for p in model.parameters() if p.ndim <= 1]
    groups = [{"params": decayed, "weight_decay": 0.01}, {"params": plain, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=lr)
    first = max(1, int(warmup * steps))
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / first, max(0.0, (steps - step) / max(1, steps - first)))
    )
    return optimizer, schedule


def fit(model, ids, lengths, loss_of, settings, report):
    """Train for some epochs; ``loss_of(logits, batch)`` gives the loss, ``report(epoch, loss)`` logs."""
    generator = torch.Generator().manual_seed(settings["seed"])
    per_epoch = sum(
        -(-len(chunk) // settings["batch"]) for chunk in torch.arange(len(lengths)).split(settings["batch"] * 50)
    )
    optimizer, schedule = optimizer_for(model, settings["lr"], settings["epochs"] * per_epoch)
    for epoch in range(settings["epochs"]):
        model.train()
        total = torch.zeros((), device=ids.device)
        for batch in batches_of(lengths, settings["batch"], generator):
            loss = loss_of(forward(model, ids, lengths, batch), batch.to(ids.device))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            total += loss.detach()
        report(epoch + 1, total.item() / per_epoch)


# ------------------------------------------------------------------------------------------- teacher


def teacher_folder(args, seed):
    return Path(args.work) / f"teacher-{seed}"


def train_teacher(args, seed):
    """Fine-tune one teacher on every labelled text."""
    torch.manual_seed(seed)
    sources, _ = load_labelled(args)
    rows = [row for part in sources.values() for row in part]
    tokenizer = AutoTokenizer.from_pretrained(args.teacher)
    model = AutoModelForSequenceClassification.from_pretrained(args.teacher, num_labels=2, dtype=torch.float32).to(
        pick_device()
    )
    ids, lengths = encode(tokenizer, [text for text, _ in rows], model.device)
    labels = torch.tensor([label for _, label in rows], device=model.device)
    dev = read_tsv(Path(args.data) / "sst" / "dev.tsv")

    def report(epoch, loss):
        say(
            f"teacher {seed} epoch {epoch} loss {loss:.4f} dev {accuracy(model, tokenizer, dev):.4f}",
            f"everyday {accuracy(model, tokenizer, EVERYDAY_CHECK):.3f}",
        )

    settings = {"seed": seed, "batch": args.teacher_batch, "lr": args.teacher_lr, "epochs": args.teacher_epochs}
    fit(model, ids, lengths, lambda logits, batch: F.cross_entropy(logits, labels[batch]), settings, report)
    show_acceptance(model, tokenizer)
    model.save_pretrained(teacher_folder(args, seed))
    tokenizer.save_pretrained(teacher_folder(args, seed))


# --------------------------------------------------------------------------------------- transfer set


@torch.no_grad()
def near_words(args, words, count=12):
    """For each word that is one token of the teacher: the words with the nearest embeddings."""
    tokenizer = AutoTokenizer.from_pretrained(args.teacher)
    table = teacher_embeddings(args).to(pick_device())
    known = {word: i for word, i in tokenizer.get_vocab().items() if word.isalpha() and word.isascii()}
    names, rows = list(known), torch.tensor(list(known.values()), device=table.device)
    vectors = F.normalize(table[rows], dim=1)
    asked = sorted({word for word in words if word in known and len(word) > 2})
    near = {}
    for start in range(0, len(asked), 1000):
        part = asked[start : start + 1000]
        own = F.normalize(table[torch.tensor([known[word] for word in part], device=table.device)], dim=1)
        best = (own @ vectors.T).topk(count + 1, dim=1).indices[:, 1:].tolist()
        near |= {word: [names[i] for i in indices] for word, indices in zip(part, best, strict=True)}
    return near


def replaced_copies(args, sentences, rng):
    """Copies of sentences with about a third of the words replaced by near ones, label unknown."""
    near = near_words(args, {word for text in sentences for word in text.split()})
    copies = []
    for text in sentences:
        for _ in range(args.copies):
            words = [rng.choice(near[word]) if word in near and rng.random() < 0.35 else word for word in text.split()]
            copies.append((" ".join(words), UNKNOWN))
    return copies


def transfer_texts(args):
    """Every text the student learns from, with its label or UNKNOWN."""
    rng = random.Random(args.data_seed + 1)
    sources, reviews = load_labelled(args)
    held_out = held_out_keys(Path(args.data) / "sst")
    texts = dict(replaced_copies(args, [text for text, _ in sources["sentences"]], rng))
    texts |= {part: UNKNOWN for review, _ in reviews for part in split_review(review)}
    texts |= {text: UNKNOWN for text, _ in sources.pop("endings")}  # a review's label does not fit each part
    for rows in sources.values():
        texts |= dict(rows)
    kept = [
        (text, label) for text, label in texts.items() if not near_acceptance(text) and key_of(text) not in held_out
    ]
    say(f"{len(kept)} texts in the transfer set")
    return kept


def train_vocabulary(args, texts):
    """A lower-case WordPiece vocabulary, as a list of tokens."""
    trainer = BertWordPieceTokenizer(lowercase=True)
    trainer.train_from_iterator(texts, vocab_size=args.vocab, min_frequency=2, limit_alphabet=120, show_progress=False)
    return sorted(trainer.get_vocab(), key=trainer.get_vocab().get)


def label_texts(args):
    """Write WORK/transfer.json and WORK/transfer.safetensors (labels, mean logits of the teachers)."""
    rows = transfer_texts(args)
    texts = [text for text, _ in rows]
    logits = torch.zeros(len(rows), 2)
    folders = sorted(Path(args.work).glob("teacher-*"))
    for folder in folders:
        model = AutoModelForSequenceClassification.from_pretrained(folder).to(pick_device())
        logits += predict(model, AutoTokenizer.from_pretrained(folder), texts) / len(folders)
        say("labelled by", folder.name)
    labels = torch.tensor([label for _, label in rows])
    known = labels != UNKNOWN
    agreed = (logits.argmax(1)[known] == labels[known]).float().mean()
    say(f"{len(folders)} teachers agree with {agreed:.3f} of {int(known.sum())} labels")
    save_file({"labels": labels, "logits": logits}, Path(args.work) / "transfer.safetensors")
    (Path(args.work) / "transfer.json").write_text(json.dumps(texts), encoding="utf-8")


# ------------------------------------------------------------------------------------------- student


def teacher_embeddings(args):
    model = AutoModelForSequenceClassification.from_pretrained(args.teacher, dtype=torch.float32)
    return model.get_input_embeddings().weight.detach()


@torch.no_grad()
def start_embeddings(args, vocabulary):
    """Principal components of the teacher's embedding of each token (the mean over its pieces)."""
    tokenizer = AutoTokenizer.from_pretrained(args.teacher)
    table, known, special = teacher_embeddings(args), tokenizer.get_vocab(), set(tokenizer.all_special_ids)
    rows = []
    for token in vocabulary:
        pieces = [known[token]] if token in known else tokenizer.encode(token.removeprefix("##"))
        plain = [piece for piece in pieces if piece not in special] or pieces
        rows.append(table[plain].mean(0))
    rows = torch.stack(rows)
    rows = rows - rows.mean(0)
    basis = torch.linalg.svd(rows, full_matrices=False).Vh[: args.hidden]
    start = rows @ basis.T
    return start * (0.04 / start.std())


def new_student(args, vocabulary):
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=args.hidden,
        num_hidden_layers=args.layers,
        num_attention_heads=args.heads,
        intermediate_size=args.inner or 4 * args.hidden,
        max_position_embeddings=MAX_LENGTH,
        type_vocab_size=2,
        hidden_dropout_prob=args.dropout,
        attention_probs_dropout_prob=args.dropout,
        id2label=LABELS,
        label2id={name: index for index, name in LABELS.items()},
    )
    model = BertForSequenceClassification(config)
    model.bert.embeddings.word_embeddings.weight.data.copy_(start_embeddings(args, vocabulary))
    return model


def distillation_loss(args, targets, labels):
    """Cross-entropy with the softened teacher, plus that with the label where it is known."""
    soft = F.softmax(targets / args.temperature, dim=1)

    def loss_of(logits, batch):
        losses = -(soft[batch] * F.log_softmax(logits / args.temperature, dim=1)).sum(1)
        known = (labels[batch] != UNKNOWN).float()
        hard = F.cross_entropy(logits, labels[batch].clamp(min=0), reduction="none")
        return (args.temperature**2 * losses + args.hard * known * hard).mean()

    return loss_of


def train_student(args):
    torch.manual_seed(args.seed)
    texts = json.loads((Path(args.work) / "transfer.json").read_text(encoding="utf-8"))
    stored = load_file(Path(args.work) / "transfer.safetensors")
    vocabulary = train_vocabulary(args, texts)
    tokenizer = BertTokenizerFast(
        vocab={token: index for index, token in enumerate(vocabulary)}, do_lower_case=True, model_max_length=MAX_LENGTH
    )
    model = new_student(args, vocabulary).to(pick_device())
    say(f"student with {sum(p.numel() for p in model.parameters()):,} parameters, {len(vocabulary)} tokens")
    ids, lengths = encode(tokenizer, texts, model.device)
    loss_of = distillation_loss(args, stored["logits"].to(model.device), stored["labels"].to(model.device))
    dev = read_tsv(Path(args.data) / "sst" / "dev.tsv")

    def report(epoch, loss):
        say(
            f"student epoch {epoch} loss {loss:.4f} dev {accuracy(model, tokenizer, dev):.4f}",
            f"everyday {accuracy(model, tokenizer, EVERYDAY_CHECK):.3f}",
        )

    settings = {"seed": args.seed, "batch": args.batch, "lr": args.lr, "epochs": args.epochs}
    fit(model, ids, lengths, loss_of, settings, report)
    show_acceptance(model, tokenizer)
    save_student(model, tokenizer, vocabulary, Path(args.out))


def save_student(model, tokenizer, vocabulary, folder):
    """Half-precision weights; the config asks for float32, so that they load as float32."""
    model = model.cpu()
    model.half().save_pretrained(folder)
    model.config.dtype = torch.float32
    model.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    (folder / "model.safetensors").chmod(0o644)
    size = sum(path.stat().st_size for path in folder.iterdir())
    say(f"saved to {folder}: {size / 1e6:.2f} MB")


def show_acceptance(model, tokenizer):
    chances = predict(model, tokenizer, [text for text, _ in ACCEPTANCE]).softmax(1)
    for (text, label), row in zip(ACCEPTANCE, chances, strict=True):
        got = int(row.argmax())
        say(f"{'ok   ' if got == label else 'WRONG'} {LABELS[got]} {row[got]:.3f}  {text}")


def load_student(folder):
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32)
    return model.to(pick_device()), AutoTokenizer.from_pretrained(folder)


def test_student(args):
    model, tokenizer = load_student(args.out)
    for split in ("dev", "test"):
        rows = read_tsv(Path(args.data) / "sst" / f"{split}.tsv")
        say(f"{split}: {accuracy(model, tokenizer, rows):.4f} of {len(rows)} sentences")
    say(f"everyday: {accuracy(model, tokenizer, EVERYDAY_CHECK):.3f} of {len(EVERYDAY_CHECK)} sentences")
    show_acceptance(model, tokenizer)


# ------------------------------------------------------------------------------------------- command


def parse():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
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
