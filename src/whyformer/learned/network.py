"""The network that predicts Shapley values from features of one pass, its loss, and how it is trained.

The loss is that of FastSHAP (Jethani et al. 2022) and of the weighted regression behind KernelSHAP: the output for a
set S of features that are present is predicted by f(S) ≈ f(∅) + Σ_{j∈S} φ_j. The sizes of S are drawn from the Shapley
kernel, so the minimum over all φ is the Shapley value.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from whyformer.shapes import Array

WIDTH = 128
HEADS = 4
KINDS = 5  # features per head: features.py
DROPOUT = 0.1
EPOCHS = 40
FEWEST_STEPS, MOST_STEPS = 200, 2_000  # with few inputs 40 epochs are too few steps, with many more than is needed
STEP, STEP_UNITS = 32, 1024  # inputs of one training step; fewer where these have more units together
RATE, DECAY = 1e-3, 1e-2
SPARSE = 1e-2  # weight of the absolute scores in training, in units of the scale
RIDGES = (1e-7, 1e-4, 1e-3, 1e-2, 1e-1, 1.0)  # of the linear fit, relative to the mean square of its columns
MOST_COLUMNS = 4096  # of the linear fit in closed form


@dataclass
class Example:
    """One input with one target: features of its units, and the output for several masks."""

    heads_UF: Tensor  # float32
    states_US: Tensor  # float16
    parts: Array  # (P,) the units that can be masked
    masks_MP: Array  # True: present
    values_M: Array  # output with these parts present
    whole: float  # f(N)
    none: float  # f(∅)


def drawn_masks(parts: int, count: int, generator: np.random.Generator) -> Array:
    """(count, parts) masks, sizes drawn from the Shapley kernel 1 / (s (n - s)), each followed by its complement."""
    sizes = np.arange(1, parts)
    weights = 1 / (sizes * (parts - sizes))
    present = np.zeros((count, parts), dtype=bool)
    for row in range(0, count, 2):
        size = int(generator.choice(sizes, p=weights / weights.sum()))
        present[row, generator.permutation(parts)[:size]] = True
        if row + 1 < count:
            present[row + 1] = ~present[row]
    return present


def with_efficiency(phi_BU: Tensor, parts_BU: Tensor, total_B: Tensor) -> Tensor:
    """(B, U) φ with the same amount added to every part, so that they sum to f(N) - f(∅)."""
    missing_B = (total_B - phi_BU.sum(1)) / parts_BU.sum(1)
    return phi_BU + parts_BU * missing_B[:, None]


def loss_of(
    phi_BU: Tensor,
    parts_BU: Tensor,
    masks_BMU: Tensor,
    values_BM: Tensor,
    whole_B: Tensor,
    none_B: Tensor,
    sparse: float = 0.0,
) -> Tensor:
    """Mean squared error of f(∅) + Σ_{j∈S} φ_j after the efficiency step, plus sparse · Σ_j |φ_j|.

    The second term keeps many small errors of both signs from adding up over the parts that do not matter.
    """
    phi_BU = with_efficiency(phi_BU, parts_BU, whole_B - none_B)
    predicted_BM = none_B[:, None] + torch.einsum("bmu,bu->bm", masks_BMU, phi_BU)
    return ((predicted_BM - values_BM) ** 2).mean() + sparse * phi_BU.abs().sum(1).mean()


def flipped(heads_UF: Tensor, heads: Sequence[int]) -> Tensor:
    """(…, F) head features as they are for the negated output: gradients change their sign, attention does not."""
    parts = []
    for layer in heads_UF.split([KINDS * count for count in heads], dim=-1):
        column, positive, row, attention, gradient = layer.chunk(KINDS, dim=-1)
        parts += [-column, positive - column, -row, attention, -gradient]
    return torch.cat(parts, -1)


class Network(nn.Module):
    """One score per unit: a linear map of the head features, and beside it one small transformer layer.

    Shapley values are linear in the output, so those of the negated output are the negated ones: the layer's part is
    made odd by the difference of the layer's results for features of the output and of its negation. It then serves all
    classes. Buffers hold the mean and spread of the features it learned from, and the scale of its scores.
    The efficiency step needs f(∅), which would take another pass: it is predicted from f(N) and the number of features
    (``total_weights``). ``heads``: the number of heads of each attention call.
    """

    heads_mean: Tensor
    heads_spread: Tensor
    states_mean: Tensor
    states_spread: Tensor
    scale: Tensor
    total_weights: Tensor

    def __init__(self, heads: Sequence[int], state_features: int, linear: bool = False, width: int = WIDTH) -> None:
        super().__init__()
        self.heads, head_features = tuple(heads), KINDS * sum(heads)
        for name, size in (("heads", head_features), ("states", state_features)):
            self.register_buffer(f"{name}_mean", torch.zeros(size))
            self.register_buffer(f"{name}_spread", torch.ones(size))
        self.register_buffer("scale", torch.ones(()))
        self.register_buffer("total_weights", torch.zeros(4))
        self.head_weights = nn.Parameter(torch.zeros(head_features))  # a bias would be the same for all parts
        self.linear = linear
        if linear:
            return
        self.from_heads = nn.Linear(head_features, width)
        self.from_states = nn.Linear(state_features, width, bias=False) if state_features else None
        self.norm_in, self.norm_middle, self.norm_out = (nn.LayerNorm(width) for _ in range(3))
        self.attend, self.attended = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.expand, self.contract = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        self.score = nn.Linear(width, 1, bias=False)
        nn.init.zeros_(self.score.weight)

    def standardized(self, heads_BUF: Tensor, states_BUS: Tensor) -> tuple[Tensor, Tensor]:
        """Features in units of their spread over the inputs learned from."""
        heads = (heads_BUF - self.heads_mean) / self.heads_spread
        return heads, (states_BUS - self.states_mean) / self.states_spread

    def forward(
        self, heads_BUF: Tensor, states_BUS: Tensor, there_BU: Tensor, parts_BU: Tensor, whole_B: Tensor
    ) -> Tensor:
        """(B, U) scores of parts, 0 elsewhere; ``there_BU`` is False at padding, ``whole_B`` is f(N)."""
        heads, states = self.standardized(heads_BUF, states_BUS)
        scores_BU = heads @ self.head_weights
        if not self.linear:
            negated, _ = self.standardized(flipped(heads_BUF, self.heads), states_BUS)
            both = self._layer(torch.cat([heads, negated]), states.repeat(2, 1, 1), there_BU.repeat(2, 1))
            plus_BU, minus_BU = both.chunk(2)
            scores_BU = scores_BU + plus_BU - minus_BU
        total_B = _total_features(whole_B / self.scale, parts_BU.sum(1)) @ self.total_weights
        return with_efficiency(scores_BU * parts_BU, parts_BU, total_B) * self.scale

    def _layer(self, heads_BUF: Tensor, states_BUS: Tensor, there_BU: Tensor) -> Tensor:
        """(B, U)"""
        x = self.from_heads(heads_BUF)
        if self.from_states is not None:
            x = x + self.from_states(states_BUS)
        x = x + self._mixed(self.norm_in(x), there_BU)
        x = x + self._dropped(self.contract(self._dropped(F.gelu(self.expand(self.norm_middle(x))))))
        scores_BU: Tensor = self.score(self.norm_out(x))[..., 0]
        return scores_BU

    def _mixed(self, x_BUW: Tensor, there_BU: Tensor) -> Tensor:
        count = x_BUW.shape[:2]
        queries, keys, values = (
            part.view(*count, HEADS, -1).transpose(1, 2) for part in self.attend(x_BUW).chunk(3, dim=-1)
        )
        weights = (queries @ keys.transpose(2, 3) / math.sqrt(queries.shape[-1])).masked_fill(
            ~there_BU[:, None, None], -torch.inf
        )
        mixed = (self._dropped(weights.softmax(-1)) @ values).transpose(1, 2).reshape(x_BUW.shape)
        return self._dropped(self.attended(mixed))

    def _dropped(self, x: Tensor) -> Tensor:
        return F.dropout(x, DROPOUT, self.training)


def _total_features(whole_B: Tensor, count_B: Tensor) -> Tensor:
    """(B, 4) what f(N) - f(∅) is predicted from."""
    count_B = count_B.clamp(min=1)
    return torch.stack([whole_B, torch.ones_like(count_B), count_B / 10, 1 / count_B], 1)


@dataclass
class Features:
    """Features of several inputs, padded with zeros. ``whole_B``: f(N)."""

    heads_BUF: Tensor
    states_BUS: Tensor
    there_BU: Tensor
    parts_BU: Tensor
    whole_B: Tensor

    def phi(self, network: Network) -> Tensor:
        phi_BU: Tensor = network(self.heads_BUF, self.states_BUS, self.there_BU, self.parts_BU, self.whole_B)
        return phi_BU

    @torch.no_grad()
    def distances(self, network: Network) -> Tensor:
        """(B,) how far features are from the mean of those learned from, in their spread: mean over units and features.

        Head features and value vectors count the same, however many numbers they have.
        """
        kinds = [part for part in network.standardized(self.heads_BUF, self.states_BUS) if part.shape[2]]
        sizes = [part.abs().clamp(max=100).mean(2) * self.there_BU for part in kinds]
        return torch.stack([size.sum(1) / self.there_BU.sum(1) for size in sizes]).mean(0)


@dataclass
class Padded(Features):
    """Features and outputs of several examples, as one padded batch."""

    masks_BMU: Tensor
    values_BM: Tensor
    none_B: Tensor

    def loss(self, network: Network, sparse: float = 0.0) -> Tensor:
        """Return the loss in units of the scale."""
        unit = network.scale
        answers = (self.values_BM / unit, self.whole_B / unit, self.none_B / unit)
        return loss_of(self.phi(network) / unit, self.parts_BU, self.masks_BMU, *answers, sparse)


class ExampleTable:
    """All examples on one device, their units concatenated; batches are gathered from it."""

    def __init__(self, examples: Sequence[Example], device: torch.device) -> None:
        """All examples have the same number of masks."""
        self.lengths = np.array([len(e.heads_UF) for e in examples])
        starts = np.concatenate([[0], np.cumsum(self.lengths)[:-1]])
        masks_TM = np.zeros((int(self.lengths.sum()), len(examples[0].masks_MP)), dtype=np.uint8)
        parts_T = np.zeros(len(masks_TM), dtype=np.uint8)
        for start, e in zip(starts, examples, strict=True):
            parts_T[start + e.parts] = 1
            masks_TM[start + e.parts] = e.masks_MP.T
        self.starts, self.lengths_on = (torch.from_numpy(each).to(device) for each in (starts, self.lengths))
        self.masks_TM, self.parts_T = torch.from_numpy(masks_TM).to(device), torch.from_numpy(parts_T).to(device)
        self.heads_TF = torch.cat([e.heads_UF for e in examples]).to(device)
        self.states_TS = torch.cat([e.states_US for e in examples]).to(device)

        def numbers(values: Any) -> Tensor:
            return torch.tensor(np.array(values), dtype=torch.float32, device=device)

        self.values_EM = numbers([e.values_M for e in examples])
        self.whole_E, self.none_E = numbers([e.whole for e in examples]), numbers([e.none for e in examples])

    def batch(self, rows: Sequence[int] | Array) -> Padded:
        at = torch.as_tensor(np.asarray(rows), device=self.starts.device)
        place_U = torch.arange(int(self.lengths[rows].max()), device=at.device)
        there_BU = place_U < self.lengths_on[at, None]
        index_BU = (self.starts[at, None] + place_U).clamp(max=len(self.parts_T) - 1)
        return Padded(
            self.heads_TF[index_BU],
            self.states_TS[index_BU].float(),
            there_BU,
            self.parts_T[index_BU] * there_BU.float(),
            self.whole_E[at],
            (self.masks_TM[index_BU] * there_BU[..., None]).transpose(1, 2).float(),
            self.values_EM[at],
            self.none_E[at],
        )

    def batches(self) -> Iterator[Padded]:
        for start in range(0, len(self.lengths), STEP):
            yield self.batch(np.arange(start, min(start + STEP, len(self.lengths))))


def trained(
    learning: Sequence[Example],
    validating: Sequence[Example],
    *,
    heads: Sequence[int],
    linear: bool,
    seed: int,
    device: torch.device,
    track: Callable[[Sequence[Any], str], Any] = lambda steps, label: steps,
) -> Network:
    """Return a network trained on ``learning``, in the state with the lowest loss on ``validating``."""
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        network = Network(heads, learning[0].states_US.shape[1], linear)
        _set_scales(network, learning)
        _fit_total(network, learning)
        closed = _fit_linear(network, learning, validating)
        network.to(device)
        if not (linear and closed):
            _descend(network, learning, validating, seed, device, track)
    return network.eval()


def _set_scales(network: Network, examples: Sequence[Example]) -> None:
    both = [part for e in examples for part in (e.heads_UF, flipped(e.heads_UF, network.heads))]
    for name, parts in (("heads", both), ("states", [e.states_US for e in examples])):
        count = sum(len(part) for part in parts)
        mean = sum((part.double().sum(0) for part in parts), torch.zeros(parts[0].shape[1]).double()) / count
        square = sum(((part.double() - mean) ** 2).sum(0) for part in parts) / count
        spread = torch.as_tensor(square).sqrt()
        # A feature that never varied (a head without gradient) would be infinitely far off when it first does.
        floor = 1e-6 * spread.max().clamp(min=1e-12) if len(spread) else 0.0
        setattr(network, f"{name}_mean", mean.float())
        setattr(network, f"{name}_spread", torch.where(spread > floor, spread, torch.ones_like(spread)).float())
    network.scale = torch.tensor(max(float(np.std(np.concatenate([e.values_M for e in examples]))), 1e-12))


def _fit_total(network: Network, examples: Sequence[Example]) -> None:
    scale = float(network.scale)
    whole, count = torch.tensor([e.whole for e in examples]), torch.tensor([len(e.parts) for e in examples])
    features = _total_features(whole.double() / scale, count.double())
    totals = torch.tensor([e.whole - e.none for e in examples]).double() / scale
    ridge = 1e-8 * len(examples) * torch.eye(4, dtype=torch.float64)
    network.total_weights = torch.linalg.solve(features.T @ features + ridge, features.T @ totals).float()


def _fit_linear(network: Network, learning: Sequence[Example], validating: Sequence[Example]) -> bool:
    """Set the linear map by ridge regression, its strength chosen on ``validating``; False if there is too much."""
    if network.head_weights.numel() > MOST_COLUMNS:
        return False
    gram, moment = _normal_equations(network, learning)
    size = float(gram.diagonal().mean())
    best = (math.inf, torch.zeros_like(moment))
    for ridge in RIDGES:
        weights = torch.linalg.solve(gram + ridge * size * torch.eye(len(gram), dtype=gram.dtype), moment)
        equations = (_equations(network, example) for example in validating)
        error = float(np.mean([float(((rows @ weights - y) ** 2).sum()) for rows, y in equations]))
        best = min(best, (error, weights), key=lambda each: each[0])
    with torch.no_grad():
        network.head_weights.copy_(best[1].float())
    return True


def _equations(network: Network, example: Example) -> tuple[Tensor, Tensor]:
    """Rows and right-hand sides of the loss of one example as a linear regression of the head weights."""
    scale, total = float(network.scale), example.whole - example.none
    features_UF = network.standardized(example.heads_UF, example.states_US.float())[0].double()
    present_MP = torch.from_numpy(example.masks_MP).double()
    parts_PF = features_UF[torch.from_numpy(example.parts)]
    sum_F, share_M = parts_PF.sum(0), present_MP.mean(1)
    rows = present_MP @ parts_PF - share_M[:, None] * sum_F
    answers = (torch.from_numpy(example.values_M).double() - example.none - share_M * total) / scale
    return rows / math.sqrt(len(rows)), answers / math.sqrt(len(rows))


def _normal_equations(network: Network, examples: Sequence[Example]) -> tuple[Tensor, Tensor]:
    columns = network.head_weights.numel()
    gram, moment = torch.zeros(columns, columns).double(), torch.zeros(columns).double()
    for start in range(0, len(examples), STEP):
        pairs = [_equations(network, e) for e in examples[start : start + STEP]]
        rows, answers = torch.cat([pair[0] for pair in pairs]), torch.cat([pair[1] for pair in pairs])
        gram += rows.T @ rows
        moment += rows.T @ answers
    return gram, moment


def _descend(
    network: Network,
    learning: Sequence[Example],
    validating: Sequence[Example],
    seed: int,
    device: torch.device,
    track: Callable[[Sequence[Any], str], Any],
) -> None:
    step = max(4, min(STEP, STEP_UNITS * len(learning) // sum(len(e.heads_UF) for e in learning)))
    steps = math.ceil(len(learning) / step)
    epochs = max(min(EPOCHS, MOST_STEPS // steps), math.ceil(FEWEST_STEPS / steps), 4)
    optimizer = torch.optim.AdamW(network.parameters(), lr=RATE, weight_decay=DECAY)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, RATE, total_steps=epochs * steps, pct_start=0.1)
    generator = np.random.default_rng(seed)
    table, judged = ExampleTable(learning, device), ExampleTable(validating, device)
    best = (mean_loss(network, judged), _copied(network))  # the linear map alone
    with torch.no_grad():
        network.head_weights.zero_()  # the layer learns less beside a map that is fitted already
    for epoch in track(range(epochs), "training"):
        network.train()
        order = np.argsort(table.lengths + generator.random(len(learning)) * 6, kind="stable")  # little padding
        chunks = [order[i : i + step] for i in range(0, len(order), step)]
        generator.shuffle(chunks)  # type: ignore[arg-type]
        for chunk in chunks:
            loss = table.batch(chunk).loss(network, SPARSE)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(network.parameters(), 1.0)
            optimizer.step()
            schedule.step()
        if epoch % 4 == 3 or epoch == epochs - 1:
            best = min(best, (mean_loss(network, judged), _copied(network)), key=lambda each: each[0])
    network.load_state_dict(best[1])


def _copied(network: Network) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in network.state_dict().items()}


@torch.no_grad()
def mean_loss(network: Network, table: ExampleTable) -> float:
    """Loss without dropout, in units of the scale."""
    network.eval()
    losses = [(float(batch.loss(network)), len(batch.whole_B)) for batch in table.batches()]
    return float(np.average([loss for loss, _ in losses], weights=[count for _, count in losses]))


@torch.no_grad()
def removal_error(network: Network, examples: Sequence[Example]) -> float:
    """Root mean square of f(S) - (f(N) - Σ_{j∉S} φ_j): how far the raw scores are off for masks they did not see."""
    squares: list[Array] = []
    for batch in ExampleTable(examples, next(network.parameters()).device).batches():
        phi_BU = batch.phi(network)
        gone_BM = phi_BU.sum(1, keepdim=True) - torch.einsum("bmu,bu->bm", batch.masks_BMU, phi_BU)
        squares.append(((batch.values_BM - (batch.whole_B[:, None] - gone_BM)) ** 2).flatten().cpu().numpy())
    return float(np.sqrt(np.concatenate(squares).mean()))


NOISES = 10.0 ** np.arange(-2, 4.5, 0.25)


@torch.no_grad()
def known_errors(network: Network, examples: Sequence[Example]) -> tuple[float, float]:
    """Return the most likely variance of a Shapley value around its prediction, and the noise in units of it.

    The output of a set less that of its complement is z·φ (z: 1 in the set, -1 outside) plus what is no sum.
    """
    table = ExampleTable(examples, next(network.parameters()).device)
    spectra = []
    for batch in table.batches():
        phi_BU = with_efficiency(batch.phi(network), batch.parts_BU, batch.whole_B - batch.none_B)
        for row, phi_U in enumerate(phi_BU.double().cpu().numpy()):
            parts = np.flatnonzero(batch.parts_BU[row].cpu().numpy())
            signs_KP = 2.0 * batch.masks_BMU[row, 0::2].double().cpu().numpy()[:, parts] - 1
            said_M = batch.values_BM[row].double().cpu().numpy()
            left_K = said_M[0::2] - said_M[1::2] - signs_KP @ phi_U[parts]
            x_KP = signs_KP - signs_KP.mean(1, keepdims=True)
            size_K, turned_KK = np.linalg.eigh(x_KP @ x_KP.T)
            spectra.append((size_K, (turned_KK.T @ left_K) ** 2))
    size_N, square_N = (np.concatenate(each) for each in zip(*spectra, strict=True))
    variances = [float((square_N / (size_N.clip(0) + noise)).mean()) for noise in NOISES]
    likely = [
        -len(size_N) * math.log(max(variance, 1e-300)) - float(np.log(size_N.clip(0) + noise).sum())
        for variance, noise in zip(variances, NOISES, strict=True)
    ]
    best = int(np.argmax(likely))
    return max(variances[best], 1e-12 * float(network.scale) ** 2), float(NOISES[best])
