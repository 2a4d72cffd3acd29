"""What teacher and student share: batches of texts, the training loop, and looking at the result."""

import torch

from training.machine import say
from training.sentiment.acceptance import ACCEPTANCE

LABELS = {0: "negative", 1: "positive"}
MAX_LENGTH = 128


def encode(tokenizer, texts, device, length=MAX_LENGTH):
    """Token ids as one padded tensor, and the length of each row."""
    rows = []
    for start in range(0, len(texts), 20000):
        rows += tokenizer(texts[start : start + 20000], truncation=True, max_length=length)["input_ids"]
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
def predict(model, tokenizer, texts, size=512, length=MAX_LENGTH):
    """Logits of each text, in order, on the CPU."""
    model.eval()
    ids, lengths = encode(tokenizer, texts, model.device, length)
    logits = torch.zeros(len(texts), model.config.num_labels)
    for batch in lengths.argsort().split(size):
        logits[batch] = forward(model, ids, lengths, batch).float().cpu()
    return logits


def accuracy(model, tokenizer, rows, length=MAX_LENGTH):
    logits = predict(model, tokenizer, [text for text, _ in rows], length=length)
    labels = torch.tensor([label for _, label in rows])
    return (logits.argmax(1) == labels).float().mean().item()


def show_acceptance(model, tokenizer):
    chances = predict(model, tokenizer, [text for text, _ in ACCEPTANCE]).softmax(1)
    for (text, label), row in zip(ACCEPTANCE, chances, strict=True):
        got = int(row.argmax())
        say(f"{'ok   ' if got == label else 'WRONG'} {LABELS[got]} {row[got]:.3f}  {text}")


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
