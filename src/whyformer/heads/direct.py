"""Direct logit attribution: what each head writes straight into the logit.

Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits". On a pre-norm model the logit is a linear
function of the residual stream once the scale of the final norm is held constant, and the stream is a sum of what the
heads, the MLPs and the embedding wrote. So the logit is a sum of shares: one per head, and the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from whyformer.borrow import refuse_without_gradients
from whyformer.capture.direct_path import DirectPath
from whyformer.capture.functions import PROJECTIONS
from whyformer.capture.intercept import module_names
from whyformer.capture.record import record, require_sites
from whyformer.capture.roles import Observe
from whyformer.codec import Float32
from whyformer.errors import NotOffered
from whyformer.heads.importance_kinds import mask_gradient, open_gates
from whyformer.interop import dataframe
from whyformer.parameters import BatchSize, checked
from whyformer.result import Result
from whyformer.run import Run
from whyformer.session import passing_through
from whyformer.targets import Aims
from whyformer.types import Cost, Target
from whyformer.views.heads import direct_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd

Array = np.ndarray[Any, Any]


@dataclass(frozen=True, eq=False)
class DirectShares(Result):
    """``shares`` (B, L, H) and ``rest`` (B,) of the logit ``value`` (B,): they add up to it, input by input.

    Its pictures take ``index``, the input that is drawn.
    """

    what: ClassVar[str] = "direct shares"
    axes: ClassVar[Mapping[str, str]] = {"paths": "L", "shares": "BLH", "rest": "B", "value": "B", "targets": "B"}

    shares: Float32
    rest: Float32  # embedding, MLPs, biases
    value: Float32
    targets: tuple[Target, ...]
    paths: tuple[str, ...]
    cost: Cost = field(default_factory=Cost)
    model: str = ""

    def ranked(self, index: int = 0) -> list[tuple[int, int, float]]:
        """(layer, head, share) of one input, the largest first."""
        shares = [
            (int(i), int(j), float(self.shares[index, i, j])) for i, j in np.argwhere(~np.isnan(self.shares[index]))
        ]
        return sorted(shares, key=lambda f: -f[2])

    def to_frame(self) -> pd.DataFrame:
        """One row per input and head."""
        known = [tuple(map(int, at)) for at in np.argwhere(~np.isnan(self.shares))]
        return dataframe(
            [{"input": n, "layer": i, "head": j, "share": float(self.shares[n, i, j])} for n, i, j in known]
        )


view_of.register(DirectShares, direct_view)


@checked
def direct_logit(
    model: Any,
    inputs: Any,
    processor: Any = None,
    *,
    tokenizer: Any = None,
    target: Aims = None,
    attention_at: Mapping[str, str] | None = None,
    batch_size: BatchSize | None = None,
    progress: bool | None = None,
) -> DirectShares:
    """Split each input's target logit into what every head writes straight into it, and the rest.

    share_h = w_t · N(W_O^h A_h V_h at the readout row), N the final norm with its scale held at what it was. For models
    whose heads reach the logits along the residual stream through norms and linear maps only: GPT-2, Llama and their
    kin, ViT. ``target`` as in ``explain``; ``(a, b)`` splits the difference of two logits.

    Misleads when: a head works through later layers (it moves information that an MLP turns into the answer): its
    direct share is then small although ablating it changes everything.
    """
    how: dict[str, Any] = {"processor": processor, "attention_at": attention_at, "batch_size": batch_size}
    with passing_through(model, inputs, target=target, progress=progress, **how) as session:
        refuse_without_gradients(session.model, "direct_logit")
        if not session.study.one_stream:
            raise NotOffered(
                "the model has several streams of tokens, which meet in a product or in cross-attention: its logits do "
                'not split into shares of heads. Use head_importance (kind="gradient" or "ablation").'
            )
        targets: dict[int, Target] = {}

        def measure(run: Run, rows: list[int]) -> Tensor:
            shares = _shares(run)
            targets.update(zip(rows, run.targets, strict=True))
            return torch.cat([run.value_B[:, None].to(shares), shares.flatten(1)], 1)

        columns = session.gather(measure, label="direct shares")
        value, shares = columns[:, 0], columns[:, 1:].reshape(session.size, *open_gates(session).shape)
        return DirectShares(
            shares=shares.astype(np.float32),
            rest=(value - np.nansum(shares, (1, 2))).astype(np.float32),
            value=value.astype(np.float32),
            targets=tuple(targets[i] for i in range(session.size)),
            paths=session.paths,
            cost=session.cost(),
            model=type(session.model).__name__,
        )


def _shares(run: Run) -> Tensor:
    """(b, L, H): ∂s/∂ξ, as in heads/importance_kinds.py, with only the direct path in the graph."""
    everyone = list(range(run.batch.size))
    names, axes = module_names(run.modality.model), run.study.batch_axes
    counter = _Counter(run.batch.size, names, axes)
    with torch.no_grad(), counter:
        run.output.logits(run.batch)
    role = DirectPath(run.batch.size, names, axes, last=counter.projections - 1)
    np.add.at(run.forwards_B, everyone, 2)
    np.add.at(run.backwards_B, everyone, 1)
    try:
        maps = record(lambda: run.output.logits(run.batch), role, run.scalars)
    except NotOffered as error:
        if "does not depend on any captured attention" not in str(error):
            raise
        raise NotOffered(
            "the logits are not a linear function of the last layer's stream (a pooler or an MLP stands before them), "
            'so they do not split into shares of heads. Use head_importance (kind="gradient" or "ablation").'
        ) from None
    require_sites(maps)
    return mask_gradient(maps)


class _Counter(Observe):
    """Counts projections: the last one makes the logits."""

    projections = 0

    def __torch_function__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        if func.__name__ in PROJECTIONS:
            self.projections += 1
        return super().__torch_function__(func, types, args, kwargs)
