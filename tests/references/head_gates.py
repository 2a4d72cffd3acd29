"""Hard-concrete gates as Louizos, Welling & Kingma 2018 (arXiv:1712.01312) define them, one number at a time."""

from __future__ import annotations

from math import exp, log

BETA, GAMMA, ZETA = 0.33, -0.1, 1.1


def sigmoid(x: float) -> float:
    return 1 / (1 + exp(-x)) if x > -700 else 0.0


def sampled(log_a: float, u: float) -> float:
    s = sigmoid((log(u) - log(1 - u) + log_a) / BETA)
    return min(1.0, max(0.0, s * (ZETA - GAMMA) + GAMMA))


def final(log_a: float) -> float:
    return min(1.0, max(0.0, sigmoid(log_a) * (ZETA - GAMMA) + GAMMA))


def open_probability(log_a: float) -> float:
    return sigmoid(log_a - BETA * log(-GAMMA / ZETA))
