"""Shapley values by regression over pairs of coalitions, towards a guide as far as the coalitions bear it out."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from whyformer.shapes import Array

# How much noise a prior expects for what it expects of the values, from "next to nothing: least squares" to "all of
# it: stay with the prior". The noise is what is not a sum over players.
NOISE = 10.0 ** np.arange(-8, 4.5, 0.5)
FLOOR = 0.2  # of a guide's mean size, added to all sizes: no player is ruled out
NEGLIGIBLE = 1e-4  # weight of a prior that is left out of the mean
TOP = 5  # players whose order is to be settled
SURE = 1.645  # standard errors between two that are told apart
TIED = 0.05  # of the largest value: a standard error below it says that two are as good as equal


class Pairs:
    """Coalitions, each with its complement, whose sizes follow the kernel of Lundberg & Lee 2017 (eq. 8).

    Sizes s have the share 1/(s(n-s)) and are drawn at even distances; players join in shuffled rounds, so that all join
    about equally often. Which of the ``strongest`` are together is drawn at even distances, too: what three do together
    is then less often taken for what one does.
    """

    def __init__(self, players: int, seed: int, strongest: Sequence[int] = ()) -> None:
        self.players = players
        self._generator = np.random.default_rng([seed, players])
        self._cells = list(_cells(players, strongest))
        share = np.array([share for _, _, share in self._cells])
        self._share = np.cumsum(share / share.sum())
        self._others = np.setdiff1d(np.arange(players), strongest)
        self._queue: list[int] = []
        self._times: dict[bytes, int] = {}
        self.drawn = np.zeros((0, players), dtype=bool)

    def more(self, count: int) -> Array:
        """(K, P) one side each of ``count`` further pairs; of few players there may be fewer that are new."""
        new: list[Array] = []
        most = 2 ** (self.players - 1) - 1 - len(self.drawn) if self.players < 40 else count
        for size, together in self._drawn_cells(count):
            one = self._members(size, together)
            key = min(one.tobytes(), (~one).tobytes())
            if key not in self._times:
                new.append(one)
            self._times[key] = self._times.get(key, 0) + 1
            if len(new) >= min(count, most):
                break
        added = np.array(new, dtype=bool).reshape(len(new), self.players)
        self.drawn = np.concatenate([self.drawn, added])
        return added

    @property
    def weights_K(self) -> Array:
        """How often each pair was drawn, 1 on average: what is drawn twice was run once."""
        keys = [min(one.tobytes(), (~one).tobytes()) for one in self.drawn]
        times_K = np.array([self._times[key] for key in keys], dtype=float)
        return times_K / times_K.mean()

    def _drawn_cells(self, count: int) -> Iterator[tuple[int, list[int]]]:
        for _ in range(50):  # rounds; of few players most pairs come again and again
            places = (np.arange(count) + self._generator.random()) / count
            drawn = np.searchsorted(self._share, places - 1e-12).clip(max=len(self._cells) - 1)
            for number in self._generator.permutation(drawn).tolist():
                size, together, _ = self._cells[number]
                yield size, together

    def _members(self, size: int, together: list[int]) -> Array:
        """(P,) who joins: of the strongest those ``together``, of the others the next of a shuffled queue."""
        one = np.zeros(self.players, dtype=bool)
        one[together] = True
        while one.sum() < size:
            if not self._queue:
                self._queue = self._generator.permutation(self._others).tolist()
            later = [player for player in self._queue if one[player]]
            first = [player for player in self._queue if not one[player]][: size - int(one.sum())]
            one[first] = True
            self._queue = later + [p for p in self._queue if not one[p]]
            if later and one.sum() < size:  # all that are left have joined: the next round begins
                self._queue = []
        return one


def _cells(players: int, strongest: Sequence[int]) -> Iterator[tuple[int, list[int], float]]:
    """Sizes, who of the strongest is together, and how likely that is; neighbours in the list are much alike."""
    if not strongest:
        yield from ((size, [], 1 / (size * (players - size))) for size in range(1, players))
        return
    count, others = len(strongest), players - len(strongest)
    for size in range(1, players // 2 + 1):  # of a pair, the smaller side
        share = 1 / (size * (players - size)) * (0.5 if 2 * size == players else 1.0)
        for number in range(2**count):
            code = number ^ (number >> 1)  # Gray's: from one to the next, one player comes or goes
            together = [player for bit, player in enumerate(strongest) if code >> bit & 1]
            if 0 <= size - len(together) <= others:
                ways = math.comb(others, size - len(together)) / math.comb(players, size)
                yield size, together, share * ways


@dataclass(frozen=True)
class Fit:
    """Values of the players, with the covariance of their errors."""

    values_P: Array
    covariance_PP: Array

    @property
    def errors_P(self) -> Array:
        return np.sqrt(np.clip(np.diag(self.covariance_PP), 0, None))

    def is_settled(self, top: int = TOP) -> bool:
        """Whether the players of the largest values are told apart, or known to be as good as equal."""
        sizes = np.abs(self.values_P)
        order = np.argsort(-sizes, kind="stable")[: top + 1]
        signs = np.sign(self.values_P)
        for one, other in pairwise(order):
            contrast = np.zeros(len(sizes))
            contrast[one], contrast[other] = signs[one], -signs[other]
            error = math.sqrt(max(float(contrast @ self.covariance_PP @ contrast), 0.0))
            if sizes[one] - sizes[other] < SURE * error and error > TIED * sizes[order[0]]:
                return False
        return True


def fitted(
    present_KP: Array, difference_K: Array, weights_K: Array, change: float, guides: Sequence[Array] = ()
) -> Fit:
    """Return the values φ with Σφ = ``change`` that explain by how much each coalition is ahead of its complement.

    Least squares over both, with the sum held, is least squares of d = s(S) - s(not S) on z·φ, z = 1 in S and -1
    outside. Priors: φ is normal around the even share, or around α·guide on top of it (α free), with variances that are
    equal or follow the size of the guide; of several guides, scaled to mean size 1, the mean. Each prior is weighted by
    its evidence. Leave-one-out errors chose worse: of so few pairs they are noise themselves.
    """
    count = present_KP.shape[1]
    centred = np.eye(count) - 1 / count
    root_K = np.sqrt(weights_K)[:, None]
    signs_KP = np.where(present_KP, 1.0, -1.0) * root_K
    y_K = difference_K * root_K[:, 0] - change / count * signs_KP.sum(1)
    x_KP = signs_KP @ centred
    priors: list[tuple[Array | None, Array]] = [(None, np.ones(count))]
    said = [guide_P / np.abs(guide_P).mean() for guide_P in guides if np.ptp(guide_P) > 0]
    if said:
        direction, sizes = np.mean(said, 0), np.mean(np.abs(said), 0) + FLOOR
        priors += [(direction, np.ones(count)), (direction, sizes**2), (None, sizes**2)]
    candidates = []
    for mean_P, variances_P in priors:
        root_PP = centred * np.sqrt(variances_P / variances_P.mean())
        way = _Way(x_KP, y_K, root_PP, None if mean_P is None else centred @ mean_P)
        typical = float(way.s2.sum()) / len(y_K)
        candidates += [_Posterior(way, noise * typical) for noise in NOISE]
    evidence = np.array([c.evidence for c in candidates])
    evidence[: len(NOISE)] += np.log(max(len(priors) - 1, 1))  # with and without a guide are as likely beforehand
    weights = np.exp(evidence - evidence.max())
    weights = np.where(weights / weights.sum() < NEGLIGIBLE, 0, weights)
    weights /= weights.sum()
    values_P: Array = weights @ np.stack([c.values_P for c in candidates])
    covariance_PP = np.zeros((count, count))
    for weight, one in zip(weights, candidates, strict=True):
        if weight:
            apart = one.values_P - values_P
            covariance_PP += weight * (one.covariance() + np.outer(apart, apart))
    return Fit(values_P + change / count, covariance_PP)


@dataclass(frozen=True)
class KnownErrors:
    """How far a learned guide is from Shapley values, as measured on inputs that it was not trained on."""

    variance: float  # of a value around the guide's
    noise: float  # variance of a difference that no values explain, in units of ``variance``


def corrected(
    present_KP: Array, difference_K: Array, weights_K: Array, change: float, guide_P: Array, known: KnownErrors
) -> Fit:
    """Return the guide, corrected by the differences as far as its known errors allow: φ is normal around the guide.

    Standard errors grow where the differences are further off than the known errors explain.
    """
    count = present_KP.shape[1]
    centred = np.eye(count) - 1 / count
    root_K = np.sqrt(weights_K)[:, None]
    signs_KP = np.where(present_KP, 1.0, -1.0) * root_K
    guide_P = guide_P + (change - guide_P.sum()) / count
    left_K = difference_K * root_K[:, 0] - signs_KP @ guide_P
    x_KP = signs_KP @ centred
    gram_KK = x_KP @ x_KP.T + known.noise * np.eye(len(x_KP))
    gain_PK = np.linalg.solve(gram_KK, x_KP).T
    surprise = float(left_K @ np.linalg.solve(gram_KK, left_K)) / (known.variance * max(len(left_K), 1))
    return Fit(guide_P + gain_PK @ left_K, known.variance * max(surprise, 1.0) * (centred - gain_PK @ x_KP))


class _Posterior:
    """What one prior makes of the differences."""

    def __init__(self, way: _Way, noise: float) -> None:
        self.way, self.noise = way, noise
        shrunk = way.s2 / (way.s2 + noise)

        def residual(vector_K: Array) -> Array:
            """noise · (G + noise)⁻¹ v, G = X C Xᵀ"""
            left: Array = vector_K - way.u_KR @ (shrunk * (way.u_KR.T @ vector_K))
            return left

        y_K, mean_K = way.y_K, way.mean_K
        left_K = residual(y_K)
        rank, count = len(way.s2), len(y_K)
        determinant = float(np.log(way.s2 + noise).sum() + (count - rank) * np.log(noise))
        self.slope, freedom, penalty, self.spread = 0.0, count, 0.0, np.inf
        if mean_K is not None:
            left_mean_K = residual(mean_K)
            self.spread = float(mean_K @ left_mean_K) / noise
            self.slope = float(mean_K @ left_K) / noise / self.spread
            left_K = left_K - self.slope * left_mean_K
            y_K = y_K - self.slope * mean_K
            freedom, penalty = count - 1, np.log(self.spread / float(mean_K @ mean_K))
        fit = max(float(y_K @ left_K) / noise, np.finfo(float).tiny)
        self.scale = fit / max(freedom, 1)  # of the prior's variance, given all differences
        self.evidence = -0.5 * (freedom * np.log(fit) + determinant + penalty)
        self.values_P = way.coefficients(y_K, noise) + (0 if way.mean_P is None else self.slope * way.mean_P)

    def covariance(self) -> Array:
        way = self.way
        basis_PR = way.root_PP @ way.v_PR
        known = basis_PR * (way.s2 / (way.s2 + self.noise)) @ basis_PR.T
        covariance_PP: Array = way.root_PP @ way.root_PP.T - known
        if way.mean_P is not None and way.mean_K is not None:
            open_P = way.mean_P - way.coefficients(way.mean_K, self.noise)
            covariance_PP = covariance_PP + np.outer(open_P, open_P) / self.spread
        return self.scale * covariance_PP


class _Way:
    """One prior, decomposed once for all amounts of noise: variances of the values, and around what they lie."""

    def __init__(self, x_KP: Array, y_K: Array, root_PP: Array, mean_P: Array | None) -> None:
        self.y_K, self.root_PP, self.mean_P = y_K, root_PP, mean_P
        self.mean_K = None if mean_P is None else x_KP @ mean_P
        u_KR, s_R, v_RP = np.linalg.svd(x_KP @ root_PP, full_matrices=False)
        real = s_R > 1e-10 * max(s_R.max(initial=0.0), 1e-300)
        self.u_KR, self.s2, self.v_PR = u_KR[:, real], s_R[real] ** 2, v_RP[real].T

    def coefficients(self, y_K: Array, noise: float) -> Array:
        """(P,) the values that explain y, as far as the noise lets them."""
        values_P: Array = self.root_PP @ (self.v_PR @ (np.sqrt(self.s2) / (self.s2 + noise) * (self.u_KR.T @ y_K)))
        return values_P
