"""Models that learn in context: columns of the row, and training rows, by one forward and one backward."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import whyformer as wf
from tests.models.case import randn, seeded
from tests.references.in_context import Plain, cells_by_whole_matrices, weight_slopes
from tests.tables.in_context_model import Attention, InContext
from whyformer.errors import BadInput, NothingCaptured, NotOffered, NotOverUnits, UnknownName
from whyformer.tables import ContextExplanation, explain_in_context

COLUMNS = ["age", "dose", "weight", "pulse"]
KNOWN, ASKED = randn(9, 4, seed=1), randn(3, 4, seed=2)
ANSWERS = torch.tensor([0, 1, 1, 0, 1, 0, 0, 1, 1])
TABLE = wf.Table(numerical=COLUMNS, classes=["ill", "well"])
LAYERS, HEADS = 2, 2


def model(kind: type[InContext] = InContext) -> InContext:
    return seeded(lambda: kind(width=8, layers=LAYERS, heads=HEADS)).eval()


def explained(net: nn.Module, asked: Any = ASKED, **how: Any) -> Any:
    how = {"context": KNOWN.numpy(), "answers": ANSWERS.tolist(), "processor": TABLE, "target": "well"} | how
    return explain_in_context(net, asked.numpy() if isinstance(asked, Tensor) else asked, progress=False, **how)


class OneToken(nn.Module):
    """As TabPFN v1: a row is one token, and what is asked looks at training rows and at itself. One table at a time."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.columns, self.answer = nn.Linear(4, width), nn.Embedding(2, width)
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        known = len(y)
        told = torch.cat([self.answer(y), self.answer.weight.new_zeros(len(x) - known, self.answer.embedding_dim)])
        return self.answered(self.columns(x) + told, known)

    def answered(self, tokens: Tensor, known: int) -> Tensor:
        hidden = torch.zeros(len(tokens), len(tokens), dtype=torch.bool)
        hidden[:, known:] = True
        hidden[known:, known:] = ~torch.eye(len(tokens) - known, dtype=torch.bool)
        return self.head(self.blocks(tokens[None], mask=hidden)[0, known:])


class Apart(Attention):
    """As TabPFN v2: training rows and asked ones look at the training rows in calls of their own."""

    def forward(self, x: Tensor, keys: int | None = None) -> Tensor:
        if keys is None:
            return super().forward(x)
        y = self.norm(x)
        q = self.queries(y).unflatten(-1, (self.heads, -1)).transpose(1, 2)
        k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.keys_values(y[:, :keys]).chunk(2, -1))
        parts = [F.scaled_dot_product_attention(part, k, v) for part in (q[:, :, :keys], q[:, :, keys:])]
        return x + self.out(torch.cat(parts, 2).transpose(1, 2).flatten(2))


@pytest.mark.parametrize("method", ["input_x_gradient", "generic_attention"])
def test_rows_that_look_in_calls_of_their_own(method: str) -> None:
    together, apart = model(), model()
    for layer in apart.layers:
        layer.rows.__class__ = Apart
    for a, b in zip(explained(together, method=method), explained(apart, method=method), strict=True):
        np.testing.assert_allclose(a.scores, b.scores, atol=1e-6)
        np.testing.assert_allclose(a.row_scores, b.row_scores, atol=1e-6)


class Grouped(InContext):
    """Two columns are one token; or one column is in two of them."""

    def __init__(self, overlapping: bool) -> None:
        super().__init__(width=8, layers=LAYERS, heads=HEADS)
        self.cell, self.overlapping = nn.Linear(2, 8), overlapping

    def forward(self, x_train: Tensor, y_train: Tensor, x_test: Tensor) -> Tensor:
        known, rows = x_train.shape[1], torch.cat([x_train, x_test], 1)
        pairs = rows.unfold(2, 2, 1) if self.overlapping else rows.unflatten(2, (-1, 2))
        asked = self.unknown.expand(*x_test.shape[:2], -1)
        tokens = torch.cat([self.cell(pairs), torch.cat([self.answer(y_train), asked], 1)[:, :, None]], 2)
        for layer in self.layers:
            tokens = layer(tokens, known)
        return self.head(self.norm(tokens[:, known:, -1]))


def test_columns_of_one_token_share_its_score_and_of_several_tokens_there_is_none() -> None:
    shared = explained(seeded(lambda: Grouped(False)).eval(), method="generic_attention")[0]
    assert shared.scores[0] == shared.scores[1] != shared.scores[2] == shared.scores[3]
    assert "share one token" in shared.warnings[0]
    overlapping = seeded(lambda: Grouped(True)).eval()
    with pytest.raises(NotOffered, match="column 1 reaches several tokens"):
        explained(overlapping, method="generic_attention")
    assert np.isfinite(explained(overlapping)[0].row_scores).all()


class Floats(InContext):
    """Takes answers as numbers."""

    def forward(self, x_train: Tensor, y_train: Tensor, x_test: Tensor) -> Tensor:
        assert y_train.is_floating_point()
        return super().forward(x_train, y_train.long(), x_test)


class Standardized(InContext):
    """As TabPFN v2: columns have the mean and the deviation of the training rows."""

    def forward(self, x_train: Tensor, y_train: Tensor, x_test: Tensor) -> Tensor:
        mean, deviation = x_train.mean(1, keepdim=True), x_train.std(1, keepdim=True)
        return super().forward((x_train - mean) / deviation, y_train, (x_test - mean) / deviation)


def test_training_rows_that_change_each_others_numbers_are_warned_of() -> None:
    net = model(Standardized)
    assert "normalises columns" in explained(net)[0].warnings[0]
    assert not explained(net, rows="cells")[0].warnings and not explained(model())[0].warnings


def test_a_training_rows_weight_is_the_slope_of_having_it_more_than_once() -> None:
    plain = Plain(model().state_dict(), LAYERS, HEADS)
    for net in (model(), model(Floats)):  # answers come as the model takes them
        for row, result in zip(ASKED, explained(net), strict=True):
            expected = weight_slopes(plain, KNOWN, ANSWERS, row, 1)
            np.testing.assert_allclose(result.row_scores, expected.numpy(), atol=1e-6)


def test_generic_attention_over_cells_is_the_product_of_whole_matrices() -> None:
    net = model()
    plain = Plain(net.state_dict(), LAYERS, HEADS)
    for row, result in zip(ASKED, explained(net, method="generic_attention"), strict=True):
        cells = cells_by_whole_matrices(plain, KNOWN, ANSWERS, row, 1).numpy()
        np.testing.assert_allclose(result.scores, cells[-1, :4], atol=1e-6)
        np.testing.assert_allclose(result.cells, cells[:-1, :4], atol=1e-6)
        np.testing.assert_allclose(result.row_scores, cells[:-1].sum(1), atol=1e-6)
        assert not result.signed and not result.rows_signed and not result.warnings


@pytest.mark.parametrize("baseline", ["mean", "zero"])
def test_columns_are_input_times_gradient(baseline: str) -> None:
    net = model()
    result = explained(net, ASKED[:2], baseline=baseline, rows="cells")[1]
    known, row = KNOWN.clone().requires_grad_(), ASKED[1:2].clone().requires_grad_()
    slopes = torch.autograd.grad(net(known[None], ANSWERS[None], row[None])[0, 0, 1], [known, row])
    start = KNOWN.mean(0) if baseline == "mean" else torch.zeros(4)
    np.testing.assert_allclose(result.scores, ((row - start) * slopes[1])[0].detach().numpy(), atol=1e-6)
    cells = ((known - start) * slopes[0]).detach().numpy()
    np.testing.assert_allclose(result.cells, cells, atol=1e-6)
    np.testing.assert_allclose(result.row_scores, cells.sum(1), atol=1e-6)


def test_a_row_that_is_one_token() -> None:
    net = seeded(OneToken).eval()
    how = {"context": KNOWN.numpy(), "answers": ANSWERS.numpy(), "target": 1, "progress": False}
    result = explain_in_context(net, ASKED.numpy(), **how)[2]
    row = ASKED[2:].clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(torch.cat([KNOWN, row]), ANSWERS)[0, 1], row)
    np.testing.assert_allclose(result.scores, ((row - KNOWN.mean(0)) * slope)[0].detach().numpy(), atol=1e-6)
    assert result.columns == ("0", "1", "2", "3") and result.row_scores.all()
    attended = explain_in_context(net, ASKED.numpy(), method="generic_attention", **how)[2]
    assert np.isnan(attended.scores).all() and attended.row_scores.min() >= 0 and attended.row_scores.max() > 0
    assert "one token" in attended.warnings[0] and "columns of this row" not in attended.to_html()


def test_one_pass_each_and_the_model_is_as_it_was() -> None:
    net = model().train()
    before = {k: v.clone() for k, v in net.state_dict().items()}
    calls: list[int] = []
    net.register_forward_hook(lambda *_: calls.append(1))
    first = explained(net)
    assert [r.setup_forwards for r in first] == [len(calls) - 3, 0, 0]
    calls.clear()
    again = explained(net)
    assert len(calls) == 3
    assert all((r.forwards, r.backwards) == (1, 1) for r in again)
    assert net.training and all(torch.equal(before[k], v) for k, v in net.state_dict().items())
    assert all(p.requires_grad and p.grad is None for p in net.parameters())


def test_rows_with_names_and_answers_with_names() -> None:
    net = model()
    as_dicts = [dict(zip(COLUMNS[::-1], row[::-1], strict=True)) for row in KNOWN.tolist()]
    words = ["ill" if a == 0 else "well" for a in ANSWERS.tolist()]
    one = explained(net, dict(zip(COLUMNS, ASKED[0].tolist(), strict=True)), context=as_dicts, answers=words)
    assert isinstance(one, ContextExplanation)
    many = explained(net)
    np.testing.assert_allclose(one.scores, many[0].scores, atol=1e-6)
    np.testing.assert_allclose(one.row_scores, many[0].row_scores, atol=1e-6)
    assert one.answers == tuple(words) == many[0].answers and "well" in one.target and len(one.to_frame()) == 4 + 9
    assert [c for c, _ in one.ranked()] == [COLUMNS[i] for i in np.argsort(-one.scores)]
    assert one.ranked_rows()[0][0] == int(one.row_scores.argmax())
    with torch.no_grad():
        assert one.value == pytest.approx(float(net(KNOWN[None], ANSWERS[None], ASKED[None, :1])[0, 0, 1]), abs=1e-5)


def test_columns_that_a_call_pads_change_nothing() -> None:
    """A model of fixed width: what stands for absent columns has no score, and the others have theirs."""

    def wide(context: Tensor, answers: Tensor, rows: Tensor) -> tuple[Tensor, ...]:
        padded = [nn.functional.pad(t, (0, 3))[None] for t in (context, rows)]
        return padded[0], answers[None], padded[1]

    net = model()
    result = explained(net, call=wide)[0]
    row = ASKED[:1].clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(*wide(KNOWN, ANSWERS, row))[0, 0, 1], row)
    np.testing.assert_allclose(result.scores, ((row - KNOWN.mean(0)) * slope)[0].detach().numpy(), atol=1e-6)
    attended = explained(net, call=wide, method="generic_attention")[0]
    assert attended.scores.shape == (4,) and attended.cells.shape == (9, 4)


def test_contrast_and_targets_by_row() -> None:
    net = model()
    contrast = explained(net, target=("well", "ill"))[0]
    well, ill = (explained(net, ASKED[:1], target=name)[0] for name in ("well", "ill"))
    np.testing.assert_allclose(contrast.row_scores, well.row_scores - ill.row_scores, atol=1e-5)
    each = explained(net, target=["well", "ill", None])
    np.testing.assert_allclose(each[1].scores, explained(net, target="ill")[1].scores, atol=1e-6)


class Unclear(nn.Module):
    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        return a


class Averages(nn.Module):
    """No attention at all."""

    def forward(self, x_train: Tensor, y_train: Tensor, x_test: Tensor) -> Tensor:
        return (x_test - x_train.mean(1, keepdim=True))[..., :2]


@pytest.mark.parametrize(
    ("how", "error", "words"),
    [
        ({"net": Unclear()}, BadInput, "call=lambda context, answers, rows"),
        ({"net": Averages()}, NothingCaptured, "no attention was captured"),
        ({"answers": ["ill"] * 8 + ["dead"]}, BadInput, "'dead' is not one of the classes"),
        ({"answers": [0, 1]}, BadInput, "one answer per row"),
        ({"answers": [0.0] * 8 + [float("nan")]}, BadInput, "NaN or infinity"),
        ({"context": KNOWN[:2].numpy(), "answers": [0, 1]}, NotOffered, "3 or more"),
        ({"context": KNOWN[:, :3].numpy()}, BadInput, "3 columns were given"),
        ({"processor": "a table"}, BadInput, "described by a whyformer.Table"),
        ({"target": "dead"}, UnknownName, "dead"),
        ({"method": "occlusion"}, UnknownName, "occlusion"),
    ],
)
def test_what_is_wrong_is_said(how: dict[str, Any], error: type[Exception], words: str) -> None:
    net = how.pop("net", None) or model()
    with pytest.raises(error, match=words):
        explained(net, **how)


# The rows that are learned from inside the model (as TabPFN v1 in a pipeline): a row is one token to wf.explain.


class Fitted(OneToken):
    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        told = self.answer.weight[ANSWERS]  # no embedding is called: its vectors would be taken for those of the input
        return self.answered(torch.cat([self.columns(KNOWN) + told, self.columns(x)]), len(KNOWN))


FORMS: dict[str, Any] = {"tensors": (ASKED, None), "rows": (ASKED.numpy(), wf.Table(numerical=COLUMNS))}


@pytest.mark.parametrize("form", FORMS)
def test_columns_of_a_row_that_is_one_token_are_left_out_one_by_one(form: str) -> None:
    inputs, table = FORMS[form]
    net = seeded(Fitted).eval()
    for row, result in zip(ASKED, wf.explain(net, inputs, processor=table, method="occlusion", target=1), strict=True):
        assert result.units.labels == (tuple(COLUMNS) if table else ("0", "1", "2", "3"))
        with torch.no_grad():
            expected = net(row[None])[0, 1] - net(row.repeat(4, 1) * (1 - torch.eye(4)))[:, 1]
        np.testing.assert_allclose(result.scores, expected.numpy(), atol=1e-5)
    row = ASKED[1:2].clone().requires_grad_()
    (slope,) = torch.autograd.grad(net(row)[0, 1], row)
    result = wf.explain(net, inputs, processor=table, method="input_x_gradient", target=1)[1]
    np.testing.assert_allclose(result.scores, (row * slope)[0].detach().numpy(), atol=1e-5)
    with pytest.raises(NotOverUnits, match="the whole row is one of the 10 tokens"):
        wf.explain(net, inputs, processor=table, method="generic_attention")
    if table:  # another description of the same columns is not the one that was studied
        table = wf.Table(numerical=["v", "w", "x", "y"])
        assert wf.explain(net, inputs, processor=table, method="occlusion")[0].units.labels == table.numerical
