"""Shapley values of sentences against the same masked texts in full batches, and beside them the stock recipe.

    python -m bench.shap_text [--rounds 3] [--evaluations 256]

Two recipes: shap's README, ``shap.Explainer(pipeline)`` with transformers' text-classification pipeline; and
``shap.Explainer(predict, shap.maskers.Text(tokenizer))``, where ``predict`` tokenises the masked strings again and runs
them in batches, padded to the longest or to 512 tokens. Each is given the same number of evaluations, and each is
divided by plain forwards over as many masked texts as *ours* ran, sentence by sentence, in full batches. Padding to 512
is timed once, on the shortest sentence, since it takes so long. Ratios of CPU seconds.
"""

from __future__ import annotations

import argparse
import time
from typing import Any

import numpy as np
import torch

import whyformer as wf
from bench.timing import machine, ratios
from whyformer.demo import load_sentiment
from whyformer.results.interop import shap_package

BATCH = 16
SENTENCES = (
    "The film starts slowly, but the last hour is so good that nobody in the audience wanted to leave.",
    "I expected a lot from this director and got two hours of empty pictures and tired jokes.",
    "A warm, funny and surprisingly honest story about a family that cannot stop arguing.",
)


def sized_model(tokenizer: Any) -> Any:
    """BERT of the size of MiniLM (6 layers, width 384) with the shipped tokenizer and room for 512 tokens."""
    from transformers import BertConfig, BertForSequenceClassification

    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), num_hidden_layers=6, hidden_size=384, num_attention_heads=12, intermediate_size=1536
    )
    return BertForSequenceClassification(config).eval()


class Bench:
    def __init__(self, evaluations: int) -> None:
        _, self.tokenizer = load_sentiment()
        self.model = sized_model(self.tokenizer)
        self.evaluations = evaluations
        self.explainer = wf.Explainer(self.model, self.tokenizer)
        self.counts = [int(e.cost.forwards) for e in self.ours()]

    def ours(self) -> Any:
        return self.explainer.explain(
            list(SENTENCES), method="shap", target=1, evaluations=self.evaluations, batch_size=BATCH
        )

    @torch.no_grad()
    def forwards(self) -> None:
        """As many texts as ours ran, of the same lengths, in full batches."""
        for sentence, count in zip(SENTENCES, self.counts, strict=True):
            encoded = self.tokenizer(sentence, return_tensors="pt")
            for start in range(0, count, BATCH):
                size = min(BATCH, count - start)
                self.model(**{k: v.expand(size, -1) for k, v in encoded.items()})

    def pipeline(self) -> Any:
        from transformers import pipeline

        shap = shap_package("this bench")
        pipe = pipeline("text-classification", model=self.model, tokenizer=self.tokenizer, top_k=None)
        return shap.Explainer(pipe, silent=True)(list(SENTENCES), max_evals=self.evaluations)

    def predict(self, sentences: tuple[str, ...] = SENTENCES, padding: Any = True, length: int | None = None) -> Any:
        shap = shap_package("this bench")

        @torch.no_grad()
        def predict(texts: Any) -> Any:
            parts = []
            for start in range(0, len(texts), BATCH):
                part = [str(t) for t in texts[start : start + BATCH]]
                encoded = self.tokenizer(part, padding=padding, max_length=length, truncation=True, return_tensors="pt")
                parts.append(self.model(**encoded).logits[:, 1].numpy())
            return np.concatenate(parts)

        explainer = shap.Explainer(predict, shap.maskers.Text(self.tokenizer), silent=True)
        return explainer(list(sentences), max_evals=self.evaluations, batch_size=BATCH)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--evaluations", type=int, default=256)
    options = parser.parse_args(argv)
    print(machine())
    bench = Bench(options.evaluations)
    found = ratios(
        {"ours": bench.ours, "pipeline": bench.pipeline, "predict": bench.predict, "forwards": bench.forwards},
        rounds=options.rounds,
        clock=time.process_time,
    )
    print(
        f"shap, {len(SENTENCES)} sentences, {bench.counts} masked texts, against their forwards in full batches: ours "
        f"{found['ours', 'forwards']:.2f} ×, shap.Explainer(pipeline) {found['pipeline', 'forwards']:.2f} ×, own "
        f"predict with dynamic padding {found['predict', 'forwards']:.2f} ×",
        flush=True,
    )
    shortest = min(range(len(SENTENCES)), key=lambda i: len(SENTENCES[i]))
    few = Bench(64)
    started = time.process_time()
    few.predict((SENTENCES[shortest],), "max_length", 512)
    padded = time.process_time() - started
    started = time.process_time()
    with torch.no_grad():
        encoded = few.tokenizer(SENTENCES[shortest], return_tensors="pt")
        for start in range(0, few.counts[shortest], BATCH):
            size = min(BATCH, few.counts[shortest] - start)
            few.model(**{k: v.expand(size, -1) for k, v in encoded.items()})
    plain = time.process_time() - started
    print(f"one sentence, 64 evaluations, own predict padded to 512: {padded / plain:.0f} × (once)", flush=True)


if __name__ == "__main__":
    main()
