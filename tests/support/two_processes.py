"""One of two processes that hold a model together: what explanations say there, written into a file.

FOLDER holds a Llama in ``model``. Nothing waits longer than a minute for the other process.
"""

from __future__ import annotations

import json
import os
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

IDS = [[11, 12, 13, 14, 15, 16], [11, 17, 13, 19, 15, 2]]
RANKS = (0, 1)
SCORED: dict[str, dict[str, Any]] = {
    "saliency": {},
    "input_x_gradient": {},
    "integrated_gradients": {"steps": 3},
    "smooth_grad": {"samples": 3},
    "attn_lrp": {},
    "cp_lrp": {},
    "occlusion": {},
    "two_ended": {},
}


def inputs() -> dict[str, Tensor]:
    ids = torch.tensor(IDS)
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


class Stage(nn.Module):
    """Half of a home-made pipeline: the first sends what it knows, the last waits for it."""

    def __init__(self, model: Any, rank: int) -> None:
        super().__init__()
        self.model, self.rank = model, rank

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        if self.rank == 0:
            hidden = self.model.model(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
            dist.send(hidden.detach(), 1)
            return hidden
        hidden = torch.empty(*input_ids.shape, self.model.config.hidden_size)
        dist.recv(hidden, 0)
        return self.model.lm_head(hidden)


def refusal(call: Any) -> str:
    from whyformer.errors import WhyformerError

    try:
        call()
    except WhyformerError as error:
        return f"{type(error).__name__}: {error}"
    return "went through"


def sharded(model: Any, folder: Path) -> dict[str, Any]:
    """What a model says whose heads are split between the two."""
    import whyformer as wf

    x = wf.Explainer(model)
    scored = {}
    for method, options in SCORED.items():
        found = x.explain(inputs(), method=method, target=1, scalar="logit", **options)
        scored[method] = [{"scores": e.scores.tolist(), "value": e.value, "warnings": e.warnings} for e in found]
    advised = refusal(lambda: x.explain(inputs(), method="generic_attention", target=1))
    x.advises = False
    refused = {
        name: refusal(lambda name=name: x.explain(inputs(), method=name, target=1))
        for name, entry in wf.list_methods().items()
        if entry.specificity == "attention"
    }
    refused["fold"] = refusal(lambda: x.explain(inputs(), method="generic_attention", memory="fold"))
    refused["record"] = refusal(lambda: x.record(inputs()))
    refused["heads"] = refusal(lambda: wf.head_importance(model, inputs()))
    dataset = refusal(lambda: wf.explain_dataset(model, ["a"], out=folder / "out", method="saliency"))
    return {"scored": scored, "refused": refused, "advised": advised, "dataset": dataset}


def whole(model: Any) -> list[list[list[float]]]:
    """What a model says that each process has for itself: watched, and from the second call on no more."""
    import whyformer as wf

    return [
        [e.scores.tolist() for e in wf.explain(model, inputs(), method="generic_attention", target=1, scalar="logit")]
        for _ in RANKS
        for _ in RANKS
    ]


def staged(model: Any) -> dict[str, str]:
    """What a stage says to methods of every kind."""
    import whyformer as wf

    x = wf.Explainer(model)
    methods = ("saliency", "occlusion", "generic_attention")
    return {name: refusal(lambda name=name: x.explain(inputs(), method=name, target=1)) for name in methods}


def main(rank: int, folder: Path) -> None:
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2"}  # transformers reads them
    place = f"file://{folder / 'meeting'}"
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=2, timeout=timedelta(seconds=60))
    from transformers import LlamaForCausalLM
    from transformers.distributed import DistributedConfig

    def load(**sizes: int) -> Any:
        return LlamaForCausalLM.from_pretrained(
            folder / "model", distributed_config=DistributedConfig(**sizes) if sizes else None
        ).eval()

    said: dict[str, Any] = {"whole": whole(load())}
    home_made = Stage(load(), rank)
    said["home-made"] = staged(home_made)
    with torch.no_grad():
        said["runs"] = list(home_made(**inputs()).shape)  # refused, and as usable as before
    said["of transformers"] = staged(load(pp_size=2))
    said["sharded"] = sharded(load(tp_size=2), folder)
    (folder / f"said-{rank}.json").write_text(json.dumps(said))
    dist.barrier()
    dist.destroy_process_group()


def logged_main(rank: int, folder: Path) -> None:
    """In a process of its own, on one thread, with what it prints in a file."""
    torch.set_num_threads(1)
    with (folder / f"log-{rank}.txt").open("w") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())
        main(rank, folder)
