"""Does the zebra score prefer dots to bubbles? A loss that is zero where concept vectors, on average, move nothing."""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from training.vit import through_blocks

EXAMPLES = 14  # of each side that one vector learns from: two thirds of the 20 that a concept test gives it
STRENGTH = 0.1  # inverse of the penalty on a vector's length, as in the concept test


@torch.no_grad()
def concept_vectors(first, second, steps=8):
    """(runs, width) unit vectors of logistic regressions, each on EXAMPLES of both sides, by Newton's method."""
    runs = min(len(first), len(second)) // EXAMPLES
    sides = [x[: runs * EXAMPLES].double().view(runs, EXAMPLES, -1) for x in (first, second)]
    x = torch.cat(sides, 1)
    x = x - x.mean(1, keepdim=True)
    x = x / x.square().mean((1, 2), keepdim=True).sqrt().clamp(min=1e-12)
    y = torch.cat([torch.ones(EXAMPLES), torch.zeros(EXAMPLES)]).to(x)
    weight = x.new_zeros(runs, x.shape[-1])
    for _ in range(steps):
        chance = torch.einsum("rnd,rd->rn", x, weight).sigmoid()
        slope = weight - STRENGTH * torch.einsum("rnd,rn->rd", x, y - chance)
        curve = STRENGTH * torch.einsum("rnd,rn,rne->rde", x, chance * (1 - chance), x)
        curve.diagonal(dim1=1, dim2=2).add_(1)
        weight = weight - torch.linalg.solve(curve, slope)
    return torch.nn.functional.normalize(weight, dim=1)


def pooled(state, how):
    return state[:, 0] if how == "cls" else state.mean(1)


def derivatives(score, state, vectors, how):
    """(inputs, runs) of the score for a step of the pooled state along each vector; differentiable once more."""
    gradient = torch.autograd.grad(score.sum(), state, create_graph=True)[0]
    moved = gradient[:, 0] if how == "cls" else gradient.sum(1)  # the mean takes a step where every token does
    return moved @ vectors.T.to(moved)


def preference(model, head, zebras, dotted, bubbly, depth, how):
    """The mean derivative along vectors from bubbles to dots, squared, in units of its spread over vectors.

    Two halves of the vectors are multiplied instead of squaring one mean: its noise then counts for nothing. The spread
    is part of the gradient, so that nothing is won by making all derivatives small.
    """
    with torch.no_grad():
        sides = [pooled(through_blocks(model, model.vit.embeddings(x))[depth], how) for x in (dotted, bubbly)]
    vectors = concept_vectors(*sides)
    with sdpa_kernel(SDPBackend.MATH):  # the fused kernels have no second derivative
        states = through_blocks(model, model.vit.embeddings(zebras))
        found = derivatives(head(model, states[-1])[:, 0], states[depth], vectors, how)
    left, right = (half.mean(1) for half in found.chunk(2, dim=1))
    return (left * right).mean() / found.square().mean().clamp(min=1e-12)
