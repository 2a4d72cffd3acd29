"""MambaLRP (Jafari et al. 2024, arXiv:2406.07592) of single layers, step by step over the sequence, in plain torch.

The layer is written as a function whose gradient is the rule: [·] is a constant, a product of two streams passes half
of its gradient to each factor, SiLU is x · [σ(x)]. The relevance of an input is then input × gradient. Linear attention
(gated delta rule) and RWKV are treated as the paper treats its state: all factors of the state are constants.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def constant(x: Tensor) -> Tensor:
    return x.detach()


def silu(x: Tensor) -> Tensor:
    return x * constant(x.sigmoid())


def gated(a: Tensor, b: Tensor) -> Tensor:
    product = a * b
    return 0.5 * product + constant(0.5 * product)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return weight * x * constant((x.square().mean(-1, keepdim=True) + eps).rsqrt())


def causal_conv(x_TD: Tensor, conv: Any) -> Tensor:
    """Each channel over the last few positions."""
    weight_DK = conv.weight[:, 0]
    width = weight_DK.shape[1]
    rows = []
    for t in range(len(x_TD)):
        past = [(k, t - width + 1 + k) for k in range(width) if t - width + 1 + k >= 0]
        rows.append(sum(weight_DK[:, k] * x_TD[s] for k, s in past))
    out = torch.stack(rows)
    return out if conv.bias is None else out + conv.bias


def mamba(layer: Any, x_TE: Tensor) -> Tensor:
    """Eq. 1 to 3 with A, B, C and Δ constant (their eq. 9), and the gate (their eq. 10)."""
    u, z = layer.in_proj(x_TE).chunk(2, -1)
    u = silu(causal_conv(u, layer.conv1d))
    rank, states = layer.time_step_rank, layer.ssm_state_size
    dt, b_TN, c_TN = constant(layer.x_proj(u)).split([rank, states, states], -1)
    delta_TD = F.softplus(layer.dt_proj(dt))
    a_DN = -layer.A_log.exp()
    h, rows = torch.zeros_like(a_DN), []
    for t in range(len(u)):
        h = constant((a_DN * delta_TD[t, :, None]).exp()) * h + constant(delta_TD[t, :, None] * b_TN[t]) * u[t, :, None]
        rows.append(h @ constant(c_TN[t]) + layer.D * u[t])
    return layer.out_proj(gated(torch.stack(rows), silu(z)))


def mamba2(layer: Any, x_TE: Tensor) -> Tensor:
    """The same with one decay per head; Falcon-H1 scales the projection, and has its norm as an option."""
    scale = torch.as_tensor(getattr(layer, "mup_vector", 1.0)).flatten()
    projected = layer.in_proj(x_TE * getattr(layer, "ssm_in_multiplier", 1.0)) * scale
    gate, mixed, dt = projected.split([layer.intermediate_size, layer.conv_dim, layer.num_heads], -1)
    groups = layer.n_groups * layer.ssm_state_size
    u, b, c = silu(causal_conv(mixed, layer.conv1d)).split([layer.intermediate_size, groups, groups], -1)
    delta_TH = constant(F.softplus(dt + layer.dt_bias).clamp(*layer.time_step_limit))
    u_THP = u.unflatten(-1, (layer.num_heads, -1))
    b_THN, c_THN = (
        constant(each).unflatten(-1, (layer.n_groups, -1)).repeat_interleave(layer.num_heads // layer.n_groups, 1)
        for each in (b, c)
    )
    decay_TH = (-layer.A_log.exp() * delta_TH).exp()
    h, rows = torch.zeros(*u_THP.shape[1:], layer.ssm_state_size), []
    for t in range(len(u)):
        h = decay_TH[t, :, None, None] * h + (delta_TH[t, :, None] * u_THP[t])[..., None] * b_THN[t, :, None]
        rows.append((h * c_THN[t, :, None]).sum(-1) + layer.D[:, None] * u_THP[t])
    y = gated(torch.stack(rows).flatten(1), silu(gate))
    if getattr(layer, "mamba_rms_norm", True):
        y = rms_norm(y, layer.norm.weight, layer.norm.variance_epsilon)
    return layer.out_proj(y)


def gated_delta(layer: Any, x_TE: Tensor) -> Tensor:
    """S_t = S_{t-1} α_t (I - β_t k_t k_tᵀ) + β_t v_t k_tᵀ, o_t = S_t q_t: linear in v, the rest constant."""
    heads, key_heads, width = layer.num_v_heads, layer.num_k_heads, layer.head_v_dim
    if hasattr(layer, "in_proj_qkvz"):  # Qwen3-Next: grouped by key head
        share = heads // key_heads
        sizes = [layer.head_k_dim, layer.head_k_dim, share * width, share * width]
        q, k, v, z = layer.in_proj_qkvz(x_TE).unflatten(-1, (key_heads, -1)).split(sizes, -1)
        b, a = (p.flatten(1) for p in layer.in_proj_ba(x_TE).unflatten(-1, (key_heads, -1)).split([share, share], -1))
        mixed, z = torch.cat([q.flatten(1), k.flatten(1), v.flatten(1)], -1), z.flatten(1)
    else:  # Qwen3.5
        mixed, z, b, a = (p(x_TE) for p in (layer.in_proj_qkv, layer.in_proj_z, layer.in_proj_b, layer.in_proj_a))
    q, k, v = silu(causal_conv(mixed, layer.conv1d)).split([layer.key_dim, layer.key_dim, layer.value_dim], -1)
    q, k = (
        F.normalize(constant(each).unflatten(-1, (key_heads, -1)), dim=-1).repeat_interleave(heads // key_heads, 1)
        for each in (q, k)
    )
    q, v = q * layer.head_k_dim**-0.5, v.unflatten(-1, (heads, width))
    beta, alpha = constant(b.sigmoid()), constant((-layer.A_log.exp() * F.softplus(a + layer.dt_bias)).exp())
    state, rows = torch.zeros(heads, layer.head_k_dim, width), []
    for t in range(len(v)):
        state = alpha[t, :, None, None] * state
        known = (state * k[t, :, :, None]).sum(1)
        state = state + k[t, :, :, None] * (beta[t, :, None] * (v[t] - known))[:, None]
        rows.append((state * q[t, :, :, None]).sum(1))
    o = rms_norm(torch.stack(rows), layer.norm.weight, layer.norm.variance_epsilon)
    return layer.out_proj(gated(o, silu(z.unflatten(-1, (heads, width)))).flatten(1))


def short_conv(layer: Any, x_TE: Tensor) -> Tensor:
    """LFM2: two gates around a convolution."""
    b, c, x = layer.in_proj(x_TE).chunk(3, -1)
    return layer.out_proj(gated(c, causal_conv(gated(b, x), layer.conv)))


def rwkv(layer: Any, x_TE: Tensor) -> Tensor:
    """A weighted mean of values, whose weights are constants, times a constant gate."""
    before = torch.cat([torch.zeros_like(x_TE[:1]), x_TE[:-1]])
    k, v, r = (
        getattr(layer, name)(x_TE * mix + before * (1 - mix))
        for name in ("key", "value", "receptance")
        for mix in [getattr(layer, f"time_mix_{name}")[0]]
    )
    decay, rows = -layer.time_decay.exp(), []
    for t in range(len(v)):
        logs = [k[s] + (layer.time_first if s == t else (t - 1 - s) * decay) for s in range(t + 1)]
        weights = constant(torch.stack(logs).softmax(0))
        rows.append((weights * v[: t + 1]).sum(0))
    return layer.output(constant(r.sigmoid()) * torch.stack(rows))
