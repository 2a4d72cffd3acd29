"""Choosing among 728 attention aggregations, against the N + 1 perturbed forwards it is made from (BERT-base size)."""

from __future__ import annotations

import torch

import whyformer as wf
from bench.timing import machine, ratios
from whyformer.engines.perturbation.players import leave_one_out
from whyformer.evaluate.games import games_of

TOKENS = 20
SPECIAL = {"cls_token_id": 101, "sep_token_id": 102, "mask_token_id": 103}


def main() -> None:
    from transformers import BertConfig, BertForSequenceClassification

    print(machine())
    torch.manual_seed(0)
    model = BertForSequenceClassification._from_config(BertConfig(**SPECIAL), attn_implementation="sdpa").eval()
    words = torch.randint(1000, 20000, (1, TOKENS), generator=torch.Generator().manual_seed(0))
    ids = torch.cat([torch.tensor([[101]]), words, torch.tensor([[102]])], 1)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    explainer = wf.Explainer(model)
    how = {"scope": "instance", "methods": [], "report": False, "replace": 103}

    counts = {
        spaces: explainer.recommend(inputs, spaces=spaces, **how).candidates
        for spaces in (("attention",), ("attention", "gradient", "rollout"))
    }
    contenders = {
        f"{count} candidates": (lambda spaces=spaces: explainer.recommend(inputs, spaces=spaces, **how))
        for spaces, count in counts.items()
    }
    with games_of(explainer, inputs, replace=103) as games:
        masks = leave_one_out(TOKENS)

        def forwards() -> None:
            games.new_game(0).ask(masks)

        found = ratios({**contenders, "forwards": forwards}, rounds=5)
    print(f"{TOKENS + 1} perturbed forwards: {found['forwards', '']:.3f} s")
    for name in contenders:
        print(f"{name}: {found[name, '']:.3f} s, {found[name, 'forwards']:.2f} × the perturbed forwards")


if __name__ == "__main__":
    main()
