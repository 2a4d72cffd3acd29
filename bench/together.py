"""One pass serves many: five methods that share a record, against generic attention alone (BERT-base size, N = 128)."""

from __future__ import annotations

import whyformer as wf
from bench.engine import bert
from bench.timing import machine, ratios

FIVE = ["raw_attention", "attention_rollout", "generic_attention", "grad_sam", "attention_gradcam"]


def main() -> None:
    print(machine())
    model, inputs = bert("sdpa")
    explainer = wf.Explainer(model)
    x = inputs(1)
    found = ratios(
        {
            "five together": lambda: explainer.explain(x, method=FIVE, target=0),
            "generic_attention": lambda: explainer.explain(x, method="generic_attention", target=0),
        },
        rounds=7,
    )
    print(f"five methods together / generic_attention alone: {found['five together', 'generic_attention']:.2f}")


if __name__ == "__main__":
    main()
