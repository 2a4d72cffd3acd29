"""TCAV as in Kim et al. 2018, sections 3.1 to 3.3, input by input; the logistic regression by Newton's method."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from tests.support.released import VIT_LAYERS

Array = np.ndarray[Any, Any]


def hidden_state(model: Any, image: torch.Tensor, layer: int) -> torch.Tensor:
    """(N, D) the residual stream after a block, from the model's own hidden states."""
    return model(pixel_values=image[None], output_hidden_states=True).hidden_states[layer + 1][0]


def mean_activation(model: Any, image: torch.Tensor, layer: int) -> Array:
    with torch.no_grad():
        states = hidden_state(model, image, layer)
    total = torch.zeros(states.shape[1], dtype=torch.float64)
    for token in states:
        total += token.double()
    return (total / len(states)).numpy()


def directional_derivative(
    model: Any, image: torch.Tensor, layer: int, target: int, v_D: Array, step: float = 1e-5
) -> float:
    """(f(h + ε v) − f(h − ε v)) / 2ε with every token moved along v."""
    values = []
    for sign in (1.0, -1.0):
        move = torch.tensor(sign * step * v_D, dtype=image.dtype)
        block = model.get_submodule(f"{VIT_LAYERS}.{layer}")
        handle = block.register_forward_hook(lambda module, args, out, move=move: out + move)
        with torch.no_grad():
            values.append(float(model(pixel_values=image[None]).logits[0, target]))
        handle.remove()
    return (values[0] - values[1]) / (2 * step)


def logistic_direction(concept_ND: Array, other_ND: Array, C: float = 0.1, rounds: int = 60) -> Array:
    """Unit vector of the L2-penalised logistic regression ½‖w‖² + C Σ log(1 + exp(−y (wx + b)))."""
    x = np.concatenate([concept_ND, other_ND])
    middle = x.mean(0)
    x = (x - middle) / np.sqrt(((x - middle) ** 2).mean())
    x = np.concatenate([x, np.ones((len(x), 1))], 1)
    y = np.array([1.0] * len(concept_ND) + [0.0] * len(other_ND))
    penalty = np.eye(x.shape[1])
    penalty[-1, -1] = 0  # the bias is free
    w = np.zeros(x.shape[1])
    for _ in range(rounds):
        p = 1 / (1 + np.exp(-x @ w))
        slope = penalty @ w + C * x.T @ (p - y)
        bend = penalty + C * (x * (p * (1 - p))[:, None]).T @ x
        w = w - np.linalg.solve(bend, slope)
    return w[:-1] / np.linalg.norm(w[:-1])
