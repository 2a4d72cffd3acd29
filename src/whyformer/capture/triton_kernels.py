"""The two kernels themselves (fold.py says what they add up). Importing this needs Triton."""

# Triton reads the source: constants are annotated, and arguments are pointers, strides and sizes.
# mypy: ignore-errors

import triton
import triton.language as tl


@triton.jit
def _rows(X, first, n_stride, d_stride, count, BLOCK: tl.constexpr, WIDTH: tl.constexpr, EXACT_WIDTH: tl.constexpr):
    """A (BLOCK, WIDTH) piece from row ``first`` on, zero beyond the end."""
    offs_n, offs_d = first + tl.arange(0, BLOCK), tl.arange(0, WIDTH)
    inside = (offs_n < count)[:, None] & (offs_d < EXACT_WIDTH)[None, :]
    return tl.load(X + offs_n[:, None].to(tl.int64) * n_stride + offs_d[None, :] * d_stride, mask=inside, other=0.0)


@triton.jit
def _block(
    k, v, Q, DO, L, first, offs_k, q_n, q_d, o_n, o_d, queries, scale2,
    WIDTH: tl.constexpr, EXACT_WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr,
    DIAGONAL: tl.constexpr, GRADIENT: tl.constexpr, PRECISE: tl.constexpr,
):  # fmt: skip
    """(keys, queries) A = exp(q·k - lse), times max(0, dO·v) with gradients; powers of two, as the hardware has them.

    Beyond the last query the log-sum-exp is infinite, so that A is zero there.
    """
    precision: tl.constexpr = "ieee" if PRECISE else "tf32"
    offs_q = first + tl.arange(0, BLOCK_Q)
    q = _rows(Q, first, q_n, q_d, queries, BLOCK_Q, WIDTH, EXACT_WIDTH)
    lse2 = tl.load(L + offs_q, mask=offs_q < queries, other=float("inf"))
    scores = tl.dot(k, tl.trans(q), input_precision=precision) * scale2 - lse2[None, :]
    if DIAGONAL:
        scores = tl.where(offs_k[:, None] <= offs_q[None, :], scores, float("-inf"))
    weights = tl.exp2(scores)
    if GRADIENT:
        do = _rows(DO, first, o_n, o_d, queries, BLOCK_Q, WIDTH, EXACT_WIDTH)
        weights = weights * tl.maximum(tl.dot(v, tl.trans(do), input_precision=precision), 0.0)
    return weights


@triton.jit
def pull(
    Q, K, V, DO, L, W, OUT, USED,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, v_b, v_h, v_n, v_d, o_b, o_h, o_n, o_d,
    queries, keys, rows, heads, heads_used, group, first_row, last_row, scale2,
    WIDTH: tl.constexpr, EXACT_WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr, GRADIENT: tl.constexpr, PRECISE: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """One block of keys, one head, a few rows of weights: Σ_q w_q · map[q, k].

    A single row of weights is part of the log-sum-exp already: w·exp(x - lse) = exp(x - (lse - log w)).
    """
    block, place = tl.program_id(0), tl.program_id(1)
    b = (place // heads_used).to(tl.int64)
    used = place % heads_used
    h = tl.load(USED + used).to(tl.int64)
    g = h // group
    offs_k = block * BLOCK_K + tl.arange(0, BLOCK_K)
    k = _rows(K + b * k_b + g * k_h, block * BLOCK_K, k_n, k_d, keys, BLOCK_K, WIDTH, EXACT_WIDTH)
    v = k
    if GRADIENT:
        v = _rows(V + b * v_b + g * v_h, block * BLOCK_K, v_n, v_d, keys, BLOCK_K, WIDTH, EXACT_WIDTH)
    Q, DO, L = Q + b * q_b + h * q_h, DO + b * o_b + h * o_h, L + (b * heads + h) * queries
    start = first_row // BLOCK_Q * BLOCK_Q
    if BLOCK_R == 1:
        total = tl.zeros((BLOCK_K, BLOCK_Q), dtype=tl.float32)
        if CAUSAL:
            start = tl.maximum(start, (block * BLOCK_K) // BLOCK_Q * BLOCK_Q)
            full = tl.maximum(start, tl.cdiv((block + 1) * BLOCK_K, BLOCK_Q) * BLOCK_Q)  # all of it looks at all keys
            for first in tl.range(start, tl.minimum(full, last_row), BLOCK_Q):
                total += _block(
                    k, v, Q, DO, L, first, offs_k, q_n, q_d, o_n, o_d, queries, scale2,
                    WIDTH, EXACT_WIDTH, BLOCK_Q, True, GRADIENT, PRECISE,
                )  # fmt: skip
            start = full
        for first in tl.range(start, last_row, BLOCK_Q):
            total += _block(
                k, v, Q, DO, L, first, offs_k, q_n, q_d, o_n, o_d, queries, scale2,
                WIDTH, EXACT_WIDTH, BLOCK_Q, False, GRADIENT, PRECISE,
            )  # fmt: skip
        row = tl.program_id(2)
        out = OUT + ((b * heads_used + used) * rows + row) * keys + offs_k
        tl.store(out, tl.sum(total, 1), mask=offs_k < keys)
    else:
        offs_r = tl.program_id(2) * BLOCK_R + tl.arange(0, BLOCK_R)
        in_r = offs_r < rows
        sums = tl.zeros((BLOCK_K, BLOCK_R), dtype=tl.float32)
        if CAUSAL:
            start = tl.maximum(start, (block * BLOCK_K) // BLOCK_Q * BLOCK_Q)
        for first in tl.range(start, last_row, BLOCK_Q):
            a = _block(
                k, v, Q, DO, L, first, offs_k, q_n, q_d, o_n, o_d, queries, scale2,
                WIDTH, EXACT_WIDTH, BLOCK_Q, CAUSAL, GRADIENT, PRECISE,
            )  # fmt: skip
            offs_q = first + tl.arange(0, BLOCK_Q)
            w = tl.load(
                W + (b * rows + offs_r[None, :]) * queries + offs_q[:, None],
                mask=in_r[None, :] & (offs_q < queries)[:, None], other=0.0,
            )  # fmt: skip
            sums += tl.dot(a, w, input_precision="ieee")
        out = OUT + ((b * heads_used + used) * rows + offs_r[None, :]) * keys + offs_k[:, None]
        tl.store(out, sums, mask=in_r[None, :] & (offs_k < keys)[:, None])


@triton.jit
def push(
    Q, K, V, DO, L, W, OUT, USED,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, v_b, v_h, v_n, v_d, o_b, o_h, o_n, o_d,
    queries, keys, rows, heads, heads_used, group, first_row, last_row, scale2,
    WIDTH: tl.constexpr, EXACT_WIDTH: tl.constexpr, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr,
    CAUSAL: tl.constexpr, GRADIENT: tl.constexpr, PRECISE: tl.constexpr, BLOCK_R: tl.constexpr,
):  # fmt: skip
    """One block of queries, one head, one row of weights: Σ_k map[q, k] · w_k."""
    block, place, row = tl.program_id(0), tl.program_id(1), tl.program_id(2)
    b = (place // heads_used).to(tl.int64)
    used = place % heads_used
    h = tl.load(USED + used).to(tl.int64)
    g = h // group
    precision: tl.constexpr = "ieee" if PRECISE else "tf32"
    offs_q = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    q = _rows(Q + b * q_b + h * q_h, block * BLOCK_Q, q_n, q_d, queries, BLOCK_Q, WIDTH, EXACT_WIDTH)
    do = q
    if GRADIENT:
        do = _rows(DO + b * o_b + h * o_h, block * BLOCK_Q, o_n, o_d, queries, BLOCK_Q, WIDTH, EXACT_WIDTH)
    lse2 = tl.load(L + (b * heads + h) * queries + offs_q, mask=offs_q < queries, other=float("inf"))
    K, V = K + b * k_b + g * k_h, V + b * v_b + g * v_h
    total = tl.zeros((BLOCK_Q,), dtype=tl.float32)
    stop = tl.minimum(keys, (block + 1) * BLOCK_Q) if CAUSAL else keys
    for first in tl.range(0, stop, BLOCK_K):
        offs_k = first + tl.arange(0, BLOCK_K)
        w = tl.load(W + (b * rows + row) * keys + offs_k, mask=offs_k < keys, other=0.0)
        k = _rows(K, first, k_n, k_d, keys, BLOCK_K, WIDTH, EXACT_WIDTH)
        scores = tl.dot(q, tl.trans(k), input_precision=precision) * scale2 - lse2[:, None]
        if CAUSAL:
            scores = tl.where(offs_k[None, :] <= offs_q[:, None], scores, float("-inf"))
        a = tl.exp2(scores)
        if GRADIENT:
            v = _rows(V, first, v_n, v_d, keys, BLOCK_K, WIDTH, EXACT_WIDTH)
            a = a * tl.maximum(tl.dot(do, tl.trans(v), input_precision=precision), 0.0)
        total += tl.sum(a * w[None, :], 1)
    out = OUT + ((b * heads_used + used) * rows + row) * queries + offs_q
    tl.store(out, total, mask=offs_q < queries)
