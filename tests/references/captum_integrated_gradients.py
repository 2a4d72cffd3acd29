"""Makes tests/references/captum_integrated_gradients.npz: Captum's integrated gradients on two test models.

    pip install captum && python -m tests.references.captum_integrated_gradients

Captum is no dependency of the tests, so its numbers are stored.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

from tests.models import CASES
from tests.references.differentiable import TARGET

STEPS, MASK = 20, 7
FILE = Path(__file__).with_suffix(".npz")


def main() -> None:
    import captum
    from captum.attr import IntegratedGradients

    made = {"version": np.array(captum.__version__)}
    model, inputs = CASES["bert"].build("sdpa"), CASES["bert"].inputs()
    table = model.get_input_embeddings()
    for row in range(len(inputs["input_ids"])):
        ids = inputs["input_ids"][row][inputs["attention_mask"][row].bool()][None]
        with torch.no_grad():
            end, start = table(ids), table(torch.full_like(ids, MASK))
        method = IntegratedGradients(lambda embeddings: model(inputs_embeds=embeddings).logits)
        made[f"bert.{row}"] = _attributed(method, end, start)
    vit, images = CASES["vit"].build("sdpa"), CASES["vit"].inputs()["pixel_values"]
    for row, image in enumerate(images):
        method = IntegratedGradients(lambda pixels: vit(pixel_values=pixels).logits)
        made[f"vit.{row}"] = _attributed(method, image[None], torch.zeros_like(image)[None])
    np.savez_compressed(FILE, **made)


def _attributed(method: object, end: torch.Tensor, start: torch.Tensor) -> np.ndarray:
    found = method.attribute(end, baselines=start, target=TARGET, n_steps=STEPS, method="gausslegendre")
    return found.detach()[0].numpy().astype(np.float32)


if __name__ == "__main__":
    main()
