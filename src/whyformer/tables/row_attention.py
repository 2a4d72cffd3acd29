"""Which other rows a row looked at, in models that let rows look at each other (SAINT)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
import torch

from whyformer.capture.roles import Observe
from whyformer.codec import Float32
from whyformer.errors import BadInput, NotOffered
from whyformer.explainer import Explainer
from whyformer.interop import dataframe
from whyformer.output import Output
from whyformer.parameters import checked
from whyformer.result import Result
from whyformer.session import loaded_as
from whyformer.views.table import row_attention_view
from whyformer.views.view import view_of

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True, eq=False)
class RowAttention(Result):
    """Attention of one row to itself and to the reference rows, per layer and head."""

    what: ClassVar[str] = "row attention"
    axes: ClassVar[Mapping[str, str]] = {"paths": "L", "labels": "R", "weights_LHR": "LHR"}

    weights_LHR: Float32  # rows sum to one; entry 0 is the row itself
    labels: tuple[str, ...]
    paths: tuple[str, ...]
    reference: str

    def ranked(self) -> list[tuple[str, float]]:
        """Rows from the most to the least looked at, averaged over layers and heads."""
        mean = self.weights_LHR.mean((0, 1))
        return [(self.labels[i], float(mean[i])) for i in np.argsort(-mean, kind="stable")]

    def to_frame(self) -> pd.DataFrame:
        """One row per row that was looked at, the most looked at first."""
        return dataframe(self.ranked(), columns=["row", "attention"])


view_of.register(RowAttention, row_attention_view)


@checked
def row_attention(model: Any, inputs: Any, processor: Any = None) -> RowAttention | list[RowAttention]:
    """Run rows beside the table's reference rows and say how much each looked at every one of them.

    Kept apart from explanations: it says which rows were looked at, not which columns mattered.
    """
    explainer = loaded_as(Explainer, model, processor)
    readings = []
    with explainer.session(inputs) as session, torch.no_grad():
        modality = session.modality
        if not modality.named_columns:
            raise BadInput("row attention is for tables: pass processor=Table(…, reference=rows).")
        if not modality.mixes_rows:
            raise NotOffered("rows of this model do not look at each other: there is no row attention to show.")
        for row in range(session.size):
            together = modality.beside_reference_rows(session.part([row]))
            observer = Observe(together.size, session.names)
            observer.rows_attend = True
            with observer:
                Output(modality, together).logits(together)
            maps = [m.reshape(-1, *m.shape[-2:])[:, 0].float().cpu().numpy() for _, m in observer.between_rows]
            names = ("this row", *(f"{modality.reference_name} {i}" for i in range(together.reference_rows)))
            paths = tuple(path for path, _ in observer.between_rows)
            readings.append(RowAttention(np.stack(maps), names, paths, modality.reference_name))
    return readings[0] if session.single else readings
