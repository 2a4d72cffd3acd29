"""Objects in images: one explanation per detected object."""

from __future__ import annotations

import math
from dataclasses import replace
from fractions import Fraction
from typing import Any

import torch
from torch import Tensor, nn

from whyformer.errors import BadInput, NotOffered, NotOverUnits, UnknownName
from whyformer.inputs.base import LearnedPositions, Mean, Modality
from whyformer.inputs.batch import Batch, shifted
from whyformer.inputs.families import class_names
from whyformer.inputs.image import ImageMask, ImagePlace, ImageRead
from whyformer.inputs.multi_input import StreamsMask
from whyformer.loan.borrow import borrowed, known_about
from whyformer.results.types import Target, Units

THRESHOLD = 0.5
TIE = 1e-6  # of two queries that say the same, the one that is explained
PICKED = (
    "this detector selects its queries for each image: in a changed image, the query most similar to the explained one "
    "by box and classes is used."
)


class DetectionRead(ImageRead):
    """An image and a detector's object queries. The target is (query, class), a class, or a threshold.

    ``target=None`` explains every detection with a probability above 0.5, ``target=0.8`` every one above that.
    """

    joint, kind = True, "detector"

    @property
    def asking(self) -> int:
        """The number of detection tokens, which YOLOS puts among the patches."""
        return getattr(self.config, "num_detection_tokens", 0) or 0

    def one_by_one(self, batch: Batch) -> bool:
        return bool(self.asking) and len(set(batch.positions)) > 1


class DetectionPlace(ImagePlace):
    """Patches, and object queries, which YOLOS puts among them."""

    read: DetectionRead

    def _names(self, extra: int) -> list[str]:
        count = self.read.asking if self.read.asking <= extra else 0
        return [*super()._names(extra - count), *(f"[detection token {i}]" for i in range(count))]

    def form(self, batch: Batch) -> tuple[Any, ...]:
        return batch.positions[:1] if self.read.asking else ()

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        """Return patches; detection tokens among them are queries, each with its predicted box."""
        result = []
        for row, units in enumerate(super().units(batch, length, front, grid)):
            asking = [i for i, label in enumerate(units.labels) if label.startswith("[detection token")]
            stream = tuple("queries" if i in asking else s for i, s in enumerate(units.stream))
            boxes = batch.encodings[row].get("boxes") if batch.encodings else None
            placed = None
            if asking and boxes is not None and len(boxes) == len(asking):
                place = dict(zip(asking, boxes, strict=True))
                placed = tuple(place.get(i, (0.0, 0.0, 0.0, 0.0)) for i in range(len(units)))
            result.append(replace(units, stream=stream, boxes=placed))
        return result

    def part(self, stream: str, batch: Batch) -> tuple[Modality | None, Batch]:
        if stream == "queries":
            return LearnedPositions(self.read.model, self.read.main), batch
        return PaddedImage(self.read.model, self.read.processor), batch


class DetectionMask(StreamsMask, ImageMask):
    """Patches are masked; queries are not."""

    @property
    def fillers(self) -> tuple[str, ...]:
        """Without "resample": other images have other sizes, and padding."""
        return (*self.replacements, "grey", "black")


class DetectionMean(Mean):
    """Each detected object has an explanation."""

    outcome = "objects"
    positioned = "queries"

    def logits(self, output: Any, batch: Batch, scalar: str) -> Tensor | None:
        logits: Tensor = output.logits
        queries = torch.tensor(batch.positions or [0] * len(logits), device=logits.device)
        if batch.encodings and "object" in batch.encodings[0]:
            queries = self._same_objects(output, batch, queries)
        return logits[torch.arange(len(logits), device=logits.device), queries]

    @torch.no_grad()
    def _same_objects(self, output: Any, batch: Batch, queries_B: Tensor) -> Tensor:
        """(B,) the query of each image whose box and classes are most like those of the explained object.

        The similarity is D-RISE's (Petsiuk et al. 2021, eq. 3), overlap of boxes times cosine of class probabilities,
        with the generalised overlap, which also orders boxes that do not overlap.
        """
        boxes_BQ4 = _corners(output.pred_boxes)
        probability_BQC = self._probability(output.logits.float())
        box_B4, wanted_BC = (
            torch.tensor([e["object"][part] for e in batch.encodings], device=boxes_BQ4.device)
            for part in ("box", "classes")
        )
        cosine_BQ = nn.functional.cosine_similarity(probability_BQC, wanted_BC[:, None], dim=-1)
        likeness_BQ = (1 + _overlap(boxes_BQ4, box_B4[:, None])) / 2 * cosine_BQ
        likeness_BQ.scatter_add_(1, queries_B[:, None], torch.full_like(likeness_BQ[:, :1], TIE))
        return likeness_BQ.argmax(1)

    def _picks_queries(self, one: Batch, output: Any) -> bool:
        """Return whether queries start at places that depend on the picture (RT-DETR)."""
        facts = known_about(self.read.model)
        start = getattr(output, "init_reference_points", None)
        if start is None or getattr(output, "pred_boxes", None) is None:
            return False
        if "picks queries" not in facts:
            other = one.with_tensors(**{self.read.main: shifted(one.tensors[self.read.main])})
            with borrowed(self.read.model), torch.no_grad():
                elsewhere = self.read.call(other).init_reference_points
            facts["picks queries"] = not torch.allclose(start[:1], elsewhere[:1], atol=1e-4)
        return bool(facts["picks queries"])

    def expanded(self, batch: Batch, target: Any) -> tuple[Batch, Any]:
        with torch.no_grad():
            output = self.read.call(batch)
        predicted = getattr(output, "pred_boxes", None)
        if predicted is not None and predicted.shape[-1] != 4:
            raise NotOffered(
                f"the detector returns pred_boxes of shape {tuple(predicted.shape)}, {predicted.shape[-1]} numbers per "
                "box; boxes of 4 (centre and size) are supported. Wrap the model in a module whose forward returns one "
                "row of logits per input, output.logits[:, query]."
            )
        boxes: list[Any] = [None] * batch.size
        if getattr(output, "pred_boxes", None) is not None:
            inside = _corners(output.pred_boxes).clamp(0, 1).tolist()
            boxes = [tuple(tuple(box) for box in row) for row in inside]
        picks = self._picks_queries(batch.select([0]), output)
        probability = self._probability(output.logits.float())
        best, classes = probability.max(-1)
        rows, queries, wanted, warnings = [], [], [], []
        for row in range(batch.size):
            want = target[row] if isinstance(target, list) else target
            if want is None or isinstance(want, float):
                threshold = THRESHOLD if want is None else want
                detections = (best[row] > threshold).nonzero()[:, 0].tolist()
                note = () if detections else (f"no detection is above {threshold:g}: this is the most probable one.",)
                chosen = [(q, int(classes[row, q])) for q in detections or [int(best[row].argmax())]]
            else:
                chosen, note = [self._chosen(want, probability[row], classes[row])], ()
            for query, index in chosen:
                rows.append(row)
                queries.append(query)
                wanted.append(index)
                warnings.append((*(batch.warnings[row] if batch.warnings else ()), *note, *[PICKED] * picks))
        facts: list[dict[str, Any]] = [{"boxes": boxes[r]} for r in rows]
        for fact, row, query in zip(facts, rows, queries, strict=True) if picks else ():
            box = _corners(output.pred_boxes[row, query])
            fact["object"] = {"box": box.tolist(), "classes": probability[row, query].tolist()}
        steps = replace(
            batch.select(rows),
            positions=tuple(queries),
            warnings=tuple(warnings),
            groups=tuple(rows) if target is None or isinstance(target, float) else (),
            encodings=tuple(facts),
        )
        return steps, wanted

    def _probability(self, logits_BQC: Tensor) -> Tensor:
        """Return class probabilities. DETR has one more class, the last, for no object; its successors use sigmoids."""
        if logits_BQC.shape[-1] == getattr(self.read.model.config, "num_labels", None):
            return logits_BQC.sigmoid()
        return logits_BQC.softmax(-1)[..., :-1]

    def _chosen(self, want: Any, probability_QC: Tensor, classes_Q: Tensor) -> tuple[int, int]:
        if isinstance(want, Target):  # what an earlier explanation explained
            want = (want.position, want.index)
        pair = want if isinstance(want, tuple) else (None, want)
        if len(pair) != 2:
            raise BadInput(f"target {want!r}: a detector takes (query, class), a class, or a threshold such as 0.7.")
        query, name = pair
        index = None if name is None else self._class(name, probability_QC.shape[1])
        if query is None:
            assert index is not None
            return int(probability_QC[:, index].argmax()), index
        if not isinstance(query, int) or not 0 <= query < len(classes_Q):
            raise BadInput(f"query {query!r}: the detector has {len(classes_Q)}, numbered 0 to {len(classes_Q) - 1}.")
        return query, int(classes_Q[query]) if index is None else index

    def _class(self, name: Any, count: int) -> int:
        labels = class_names(self.read.model)
        if isinstance(name, str):
            for index, label in labels.items():
                if label.lower() == name.lower():
                    return index
            raise UnknownName("target", name, labels.values())
        if not 0 <= int(name) < count:
            raise UnknownName("target", name, [f"0 to {count - 1}"])
        return int(name)


DetectionInput = Modality.of(DetectionRead, DetectionPlace, DetectionMask, DetectionMean)


def _corners(boxes: Tensor) -> Tensor:
    """(…, 4) left, top, right, bottom of boxes as shares of the image, from centres and sides."""
    centre, half = boxes.float()[..., :2], boxes.float()[..., 2:] / 2
    return torch.cat([centre - half, centre + half], -1)


def _overlap(a: Tensor, b: Tensor) -> Tensor:
    """Return the generalised intersection over union of boxes (Rezatofighi et al. 2019): 1 if equal, -1 if far."""

    def area(box: Tensor) -> Tensor:
        return (box[..., 2:] - box[..., :2]).clamp_min(0).prod(-1)

    inner = torch.cat([torch.maximum(a[..., :2], b[..., :2]), torch.minimum(a[..., 2:], b[..., 2:])], -1)
    outer = torch.cat([torch.minimum(a[..., :2], b[..., :2]), torch.maximum(a[..., 2:], b[..., 2:])], -1)
    union = (area(a) + area(b) - area(inner)).clamp_min(TIE)
    return area(inner) / union - 1 + union / area(outer).clamp_min(TIE)


class PaddedImagePlace(ImagePlace):
    """Images of different sizes in one batch, padded at the right and bottom; ``pixel_mask`` says how far."""

    def padded_grid(self, batch: Batch, length: int) -> tuple[int, int]:
        return self._patches(batch, length)[0]

    def _patches(self, batch: Batch, length: int) -> tuple[tuple[int, int], tuple[Fraction, Fraction]]:
        """Return how many patches there are along the two sides, and how many pixels each of them is long."""
        height, width = batch.tensors[self.read.main].shape[-2:]
        for stride in (32, 16, 8, 64, 4):
            rows, columns = math.ceil(height / stride), math.ceil(width / stride)
            if rows * columns == length:
                return (rows, columns), (Fraction(stride), Fraction(stride))
        rows, columns = self._grid(batch, length, None)
        if rows * columns != length:
            raise NotOverUnits(
                f"attention runs over {length} positions that are no patches of a {height}×{width} image: a detector "
                "that samples points (Deformable DETR) attends between its queries only, so attention cannot be shown "
                "on the image."
            )
        return (rows, columns), (Fraction(height, rows), Fraction(width, columns))

    def _mask(self, batch: Batch) -> Tensor | None:
        """(B, height, width) the pixels of the pictures, where it is given."""
        mask = batch.tensors.get("pixel_mask")
        return None if mask is None or mask.ndim != 3 else mask.bool()

    def keep(self, batch: Batch, length: int, front: int | None) -> Tensor:
        mask = self._mask(batch)
        if mask is None:
            return super().keep(batch, length, front)
        small = nn.functional.interpolate(mask[None].float(), size=self.padded_grid(batch, length))  # as DETR does it
        return small.bool()[0].flatten(1)

    def units(self, batch: Batch, length: int, front: int | None, grid: tuple[int, int] | None) -> list[Units]:
        """Return the patches of each picture; padding that the model's own mask lets through becomes special units."""
        grid, (patch_height, patch_width) = self._patches(batch, length)
        size, mask, result = batch.tensors[self.read.main].shape[-2:], self._mask(batch), []
        for row, keep in enumerate(self.keep(batch, length, front)):
            real = keep.view(grid)
            high, wide = size if mask is None else (int(mask[row].any(1).sum()), int(mask[row].any(0).sum()))
            rows = min(math.ceil(high / patch_height), int(real.any(1).sum()))
            columns = min(math.ceil(wide / patch_width), int(real.any(0).sum()))
            cells = real.nonzero().tolist()
            padding = tuple(i >= rows or j >= columns for i, j in cells)
            names = ["[padding {},{}]" if outside else "patch {},{}" for outside in padding]
            labels = tuple(name.format(*cell) for name, cell in zip(names, cells, strict=True))
            stream = ("image",) * len(cells)
            result.append(Units(labels, padding, stream, (rows, columns), image_size=(int(high), int(wide))))
        return result


PaddedImage = Modality.of(ImageRead, PaddedImagePlace, ImageMask)
