"""Break formulas and mechanisms on purpose, one at a time, and list what the tests do not notice.

    python -m bench.mutations [names…] [--list] [--unbroken]

A mutation replaces one piece of source text, which occurs exactly once in its file, and names the tests that have to
fail. Everything happens in a copy of the tree. The exit code is 1 if a mutation survives. ``--unbroken`` runs the same
tests on the source as it is: there all of them have to pass, or a mutation could be "killed" by an unrelated failure.
"""

from __future__ import annotations

import argparse
import importlib
import multiprocessing
import os
import re
import shlex
import shutil
import signal
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
COPIED = ("src", "tests", "docs/code_blocks.py", "models/src", "pyproject.toml", "CONTRIBUTING.md")
# Imported once, before the process of each mutation is forked: importing them takes longer than most of the tests.
LIBRARIES = (
    "pytest",
    "jaxtyping",
    "beartype",
    "scipy.ndimage",
    "torch.export",
    "typer.testing",
    *(f"transformers.models.{name}.modeling_{name}" for name in ("bert", "gpt2", "llama", "vit", "modernbert")),
)
LIMIT = 1200.0  # seconds; a mutation that makes a test hang is noticed, too


@dataclass(frozen=True)
class Mutation:
    name: str
    file: str  # below src/whyformer
    old: str
    new: str
    tests: str  # arguments of pytest


def twins(methods: str, more: str = "") -> str:
    """Compare methods with their reference implementations; ``more``: test files besides."""
    chosen = " or ".join(f"[{method}-" for method in methods.split())
    names = " or ".join(Path(path).name for path in more.split())
    return f"tests/methods/test_twins.py {more} -k '{chosen}{' or ' + names if names else ''}'"


MAPS, VECTORS = "engines/attention/maps.py", "methods/value_contributions.py"
GRADIENTS, REDISTRIBUTION = "capture/lrp/changed_gradients.py", "capture/lrp/redistribution.py"
REGRESSION, PLAYERS = "engines/perturbation/regression.py", "engines/perturbation/players.py"
INTEGRATED = "methods/input_gradients.py"
FAITHFULNESS, FUNCTIONS = "evaluate/metrics/faithfulness.py", "capture/functions.py"
METRICS = "tests/evaluate/test_metrics.py"

TRACES, RUNS = "language/traces.py", "language/agent_runs.py"
OF_TRACES = "tests/language/test_traces.py"

MUTATIONS = (
    # Traces
    Mutation(
        "trace_shares_of_both_signs",
        TRACES,
        "speaking = np.maximum(np.nan_to_num(scores_TN), 0.0)",
        "speaking = np.abs(np.nan_to_num(scores_TN))",
        OF_TRACES,
    ),
    Mutation(
        "trace_hands_nothing_on",
        TRACES,
        "                origins[number] += share * origins[before]\n",
        "",
        OF_TRACES,
    ),
    Mutation(
        "trace_step_keeps_its_share",
        TRACES,
        "                origins[number, own[before]] = 0.0\n",
        "",
        OF_TRACES,
    ),
    Mutation(
        "trace_log_probability_for_log_odds",
        "language/tracing.py",
        ", (1.0,) * (inside[-1] + 1 - inside[0]))",
        ")",
        OF_TRACES,
    ),
    Mutation(
        "trace_drop_of_the_step_alone",
        "language/tracing.py",
        "return Stretch(self.exchange, len(self.exchange.prompt), inside[-1] + 1)",
        "return Stretch(self.exchange, inside[0], inside[-1] + 1)",
        OF_TRACES,
    ),
    Mutation(
        "trace_results_by_order_not_id",
        "language/tracing.py",
        "next(iter(by_id or unnamed), None)",
        "next(iter(waiting), None)",
        OF_TRACES,
    ),
    Mutation(
        "trace_contents_found_in_the_template",
        RUNS,
        "return dict(zip(plain, found, strict=True)) if fitting else {}",
        "return {}",
        OF_TRACES,
    ),
    # Attention maps
    Mutation(
        "chat-share-of-any-answer",
        "inputs/completions.py",
        "        return math.fsum(matches) / len(matches)\n",
        "        return max(matches)\n",
        "tests/inputs/test_chat_server.py",
    ),
    Mutation(
        "chat-part-after-written-answer",
        "inputs/prompt.py",
        '"" if self.samples else answer[:start]',
        "answer[:start]",
        "tests/inputs/test_chat_server.py -k citations",
    ),
    Mutation(
        "difference-interval-of-one-share",
        "evidence.py",
        "    below = np.sqrt((first - low_1) ** 2 + (high_2 - second) ** 2)\n",
        "    below = first - low_1\n",
        "tests/inputs/test_chat_server.py -k cover",
    ),
    Mutation(
        "chat-budget-unchecked",
        "inputs/completions.py",
        "        if answers > self.budget:\n",
        "        if answers > self.budget and self.sampled:\n",
        "tests/inputs/test_chat_server.py -k budget",
    ),
    Mutation(
        "every-drop-is-cited",
        "language/citations.py",
        " & (known >= self.least_share * known.max(1, keepdims=True))",
        "",
        "tests/language/test_answers.py -k small_shares",
    ),
    Mutation(
        "product_order",
        MAPS,
        "return reduce(lambda earlier, later: torch.bmm(later, earlier), maps)",
        "return reduce(lambda earlier, later: torch.bmm(earlier, later), maps)",
        twins("generic_attention attention_rollout"),
    ),
    Mutation(
        "generic_attention_positive_part",
        "engines/attention/chain.py",
        "over_heads((gradient * attention).clamp(min=0), heads)",
        "over_heads((gradient * attention).abs(), heads)",
        twins("generic_attention"),
    ),
    Mutation(
        "generic_attention_identity",
        "engines/attention/chain.py",
        "residual: float | Tensor = 0.5,",
        "residual: float | Tensor = 0.4,",
        twins("generic_attention"),
    ),
    Mutation(
        "hops_hand_on",
        "hops.py",
        "            relevance_U[holding] = 0\n",
        "",
        "tests/language/test_hops.py",
    ),
    Mutation(
        "hops_weights",
        "hops.py",
        "value_T[tokens] += value_U[unit] / len(tokens)",
        "value_T[tokens] += 1 / len(tokens)",
        "tests/language/test_hops.py",
    ),
    Mutation(
        "hops_even_share",
        "hops.py",
        "Array = EVEN + (1 - EVEN) * length",
        "Array = (1 - EVEN) * length",
        "tests/language/test_hops.py",
    ),
    Mutation(
        "hops_refine",
        "hops.py",
        ".sum() + returned_U",
        ".sum()",
        "tests/language/test_hops.py",
    ),
    Mutation(
        "hops_keep_nothing",
        "hops.py",
        "            before_U[holding] = 0\n",
        "",
        "tests/language/test_hops.py",
    ),
    Mutation(
        "hops_log_odds",
        "inputs/output.py",
        "rows_TV.scatter_(1, tokens_T[:, None], -torch.inf).logsumexp(1)",
        "rows_TV.logsumexp(1)",
        "tests/language/test_hops.py",
    ),
    Mutation(
        "learned_efficiency",
        "learned/network.py",
        "missing_B = (total_B - phi_BU.sum(1)) / parts_BU.sum(1)",
        "missing_B = (total_B - phi_BU.sum(1)) / parts_BU.shape[1]",
        "tests/learned/test_network.py",
    ),
    Mutation(
        "learned_mask_sizes",
        "learned/network.py",
        "weights = 1 / (sizes * (parts - sizes))",
        "weights = 1 / (sizes * sizes)",
        "tests/learned/test_network.py",
    ),
    Mutation(
        "learned_second_class",
        "learned/learning.py",
        "place: (second, drawn, said[:, 1], games.parts[place])",
        "place: (second, drawn, said[:, 0], games.parts[place])",
        "tests/learned/test_learn.py",
    ),
    Mutation(
        "learned_known_errors",
        REGRESSION,
        "gram_KK = x_KP @ x_KP.T + known.noise * np.eye(len(x_KP))",
        "gram_KK = x_KP @ x_KP.T + np.eye(len(x_KP))",
        "tests/learned/test_network.py",
    ),
    Mutation(
        "learned_wrong_model",
        "learned/learned.py",
        "if known[itself] != self.fingerprint:",
        "if known[itself] == '':",
        "tests/learned/test_learn.py",
    ),
    Mutation(
        "rollout_residual",
        "methods/attention_maps.py",
        'OneOf("mixing")] = 0.5,',
        'OneOf("mixing")] = 0.4,',
        "tests/test_golden.py tests/methods/test_twins.py -k 'golden or [attention_rollout-'",
    ),
    Mutation(
        "rollout_row_sums",
        MAPS,
        "return row_normalized(plus_identity((1 - residual) * map_BQK, first_query, residual))",
        "return plus_identity((1 - residual) * map_BQK, first_query, residual)",
        twins("attention_rollout", "tests/methods/test_attention_maps.py"),
    ),
    Mutation(
        "padding_columns",
        MAPS,
        "return map_BQK * rows[:, :, None] * keep[:, None, :]",
        "return map_BQK * rows[:, :, None]",
        "tests/test_contracts.py tests/methods -k 'test_contract[ or left_padding or padding'",
    ),
    Mutation(
        "readout_row",
        MAPS,
        'return torch.einsum("bq,bqk->bk", weights.to(map_BQK.dtype), map_BQK)',
        "return map_BQK[:, 0] * weights.sum(1, keepdim=True).to(map_BQK.dtype)",
        twins("attention_rollout generic_attention"),
    ),
    Mutation(
        "attention_flow_capacity",
        "methods/attention_maps.py",
        "with_residual(fused, site.first_query, 0.5, normalize=True)",
        "with_residual(fused, site.first_query, 0.0, normalize=True)",
        twins("attention_flow", "tests/methods/test_attention_maps.py"),
    ),
    Mutation(
        "attention_flow_reached_nodes",
        "methods/attention_maps.py",
        "offset += len(reached)\n",
        "offset += len(below)\n",
        twins("attention_flow", "tests/methods/test_attention_maps.py"),
    ),
    Mutation(
        "gradient_rollout_clamp",
        "methods/attention_maps.py",
        "over_heads(attention * gradient, heads).clamp(min=0)",
        "over_heads((attention * gradient).clamp(min=0), heads)",
        twins("gradient_rollout"),
    ),
    Mutation(
        "grad_sam_mean",
        "methods/attention_gradients.py",
        "total_BN / (len(sites) * tokens_B1)",
        "total_BN / len(sites)",
        twins("grad_sam"),
    ),
    Mutation(
        "attention_gradcam_padding",
        "methods/attention_gradients.py",
        "real(torch.ones_like(site.attention_BHQK[:, 0], dtype=torch.float32), run.keep_BN, site)",
        "torch.ones_like(site.attention_BHQK[:, 0], dtype=torch.float32)",
        "tests/test_contracts.py tests/methods/test_attention_maps.py -k gradcam",
    ),
    Mutation(
        "head_weights_of_folded_maps",
        "engines/attention/chain.py",
        "each[head] += 1 / len(chosen)",
        "each[head] += 1.0",
        "tests/capture/test_fold.py",
    ),
    Mutation(
        "folded_tiles",
        "capture/fold.py",
        "result[:, :, where] += torch.bmm(part, block)",
        "result[:, :, where] = torch.bmm(part, block)",
        "tests/capture/test_fold.py",
    ),
    # Value vectors
    Mutation(
        "value_norms_residual",
        VECTORS,
        "sums_BQE = sums_BQE + residual_BQE",
        "sums_BQE = sums_BQE + 0 * residual_BQE",
        twins("value_norms"),
    ),
    Mutation(
        "value_norms_scale",
        VECTORS,
        "norms = norms * self.scale_BQ[..., None]",
        "norms = norms * 1",
        twins("value_norms"),
    ),
    Mutation(
        "value_zeroing_distance",
        "methods/value_contributions.py",
        "dim=-1).square() / 2",
        "dim=-1) / 2",
        twins("value_zeroing"),
    ),
    Mutation(
        "alti_clamp", "methods/value_contributions.py", "- distance).clamp(min=0)", "- distance).abs()", twins("alti")
    ),
    Mutation(
        "decompx_bias",
        "capture/decompose/rules.py",
        "offset = (bias.to(call.dtype) + (0 if offset is None else offset))",
        "offset = (0 * bias.to(call.dtype) + (0 if offset is None else offset))",
        twins("decompx"),
    ),
    # Relevance
    Mutation(
        "attn_lrp_softmax",
        GRADIENTS,
        "_plain(func, args, kwargs).detach() if constant_map else",
        "_plain(func, args, kwargs).detach() if x.ndim > 2 else",
        twins("attn_lrp", "tests/capture/test_lrp_rules.py"),
    ),
    Mutation(
        "attn_lrp_gain",
        GRADIENTS,
        "stand_in = scaled_x if weight is None else scaled_x * weight",
        "stand_in = scaled_x",
        twins("attn_lrp"),
    ),
    Mutation(
        "attn_lrp_spread_of_the_norm",
        GRADIENTS,
        "zero, mean = torch.zeros_like(gradient), torch.zeros_like(spread)",
        "zero, mean = torch.zeros_like(gradient), torch.ones_like(spread)",
        twins("attn_lrp"),
    ),
    Mutation(
        "attn_lrp_plan_unchecked",
        "run/traced.py",
        "if func is not function and func != function:",
        "if function is None:",
        "tests/methods/test_relevance_propagation.py -k leaves",
    ),
    Mutation(
        "hops_graph_of_another_pass",
        "hops.py",
        "KeptPass(route.answer.stop - 1, tuple(sorted(places))",
        "KeptPass(route.answer.stop - 1, tuple(sorted(places)[1:])",
        "tests/language/test_hops.py -k one_forward",
    ),
    Mutation(
        "attn_lrp_spread_of_groups",
        GRADIENTS,
        "spread = (grouped.detach().var(",
        "spread = (grouped.var(",
        "tests/capture/test_lrp_rules.py",
    ),
    Mutation(
        "attn_lrp_places_of_samples",
        GRADIENTS,
        'call.pop("grid").detach()',
        'call.pop("grid")',
        "tests/capture/test_lrp_rules.py",
    ),
    Mutation(
        "attn_lrp_rules_missing_before_the_inputs",
        GRADIENTS,
        "None if inputs is None else inputs.grad_fn) if self.unruled",
        "None) if self.unruled",
        "tests/capture/test_lrp_rules.py",
    ),
    Mutation(
        "attn_lrp_decays_of_a_scan",
        GRADIENTS,
        "    **dict.fromkeys(FACTORS, scan_factor),\n",
        "",
        "tests/methods/test_recurrent_layers.py",
    ),
    Mutation(
        "attn_lrp_keys_of_a_scan",
        "capture/lrp/elementwise.py",
        "return (0, 1) if sizes[0] == sizes[1] == key else ()",
        "return ()",
        "tests/methods/test_recurrent_layers.py",
    ),
    Mutation(
        "attn_lrp_system_of_the_delta_rule",
        GRADIENTS,
        "return func(args[0].detach(), *args[1:], **kwargs)",
        "return func(args[0], args[1].detach(), *args[2:], **kwargs)",
        "tests/methods/test_recurrent_layers.py",
    ),
    Mutation(
        "slope_of_a_quantised_layer",
        "loan/quantised.py",
        "if not bool((error_R <= TOLERANCE).all()):",
        "if not bool((error_R <= TOLERANCE).any()) and False:",
        "tests/explainer/test_quantised.py -k 'right or named'",
    ),
    Mutation(
        "bias_of_a_layer_that_is_read",
        "loan/quantised.py",
        "torch.cat([own(ones), own(-ones)])",
        "torch.cat([own(ones), own(ones)])",
        "tests/explainer/test_adapters.py",
    ),
    Mutation(
        "attn_lrp_half_in_products",
        GRADIENTS,
        "part = 1 / (len(factors) - len(weights))",
        "part = 1.0",
        twins("attn_lrp", "tests/capture/test_lrp_rules.py"),
    ),
    Mutation("attn_lrp_half_in_kernels", GRADIENTS, "outer = 0.5 if", "outer = 1.0 if", twins("attn_lrp")),
    Mutation(
        "attn_lrp_activation",
        GRADIENTS,
        "(shown / x).nan_to_num_(0.0, 0.0, 0.0)",
        "torch.ones_like(x)",
        twins("attn_lrp"),
    ),
    Mutation(
        "cp_lrp_constant_maps",
        GRADIENTS,
        "query, key = query.detach(), key.detach()",
        "query, key = query, key",
        twins("cp_lrp"),
    ),
    Mutation(
        "transformer_attribution_clamp",
        "methods/relevance_propagation.py",
        "relevance_BHQK.clamp(min=0).mean(1)",
        "relevance_BHQK.mean(1).clamp(min=0)",
        twins("transformer_attribution"),
    ),
    Mutation(
        "transformer_attribution_negative_weights",
        REDISTRIBUTION,
        "torch.where(x_MI > 0, slope @ above_OI, slope @ below_OI)",
        "(slope @ above_OI)",
        twins("transformer_attribution", "tests/capture/test_lrp_rules.py"),
    ),
    # Gradients
    Mutation(
        "integrated_gradients_points",
        INTEGRATED,
        "(nodes[taken] + 1) / 2",
        "(nodes[taken] + 1.2) / 2",
        twins("integrated_gradients"),
    ),
    Mutation(
        "integrated_gradients_weights",
        INTEGRATED,
        "weights[taken] / 2",
        "np.full(len(taken), 1 / len(nodes))",
        twins("integrated_gradients", "tests/methods/test_gradients.py"),
    ),
    Mutation(
        "integrated_gradients_completeness",
        INTEGRATED,
        "change_B = run.value_B - base_B",
        "change_B = run.value_B + base_B",
        twins("integrated_gradients", "tests/methods/test_gradients.py"),
    ),
    Mutation(
        "gradient_at_the_baseline",
        INTEGRATED,
        "np.array([-1.0]), np.array([2.0])",
        "np.array([1.0]), np.array([2.0])",
        "tests/methods/test_shap.py",
    ),
    Mutation(
        "smooth_grad_seed",
        "methods/input_gradients.py",
        "[torch.Generator().manual_seed(run.seed) for _ in range(run.batch.size)]",
        "[torch.Generator().manual_seed(run.seed)] * run.batch.size",
        "tests/test_contracts.py -k smooth_grad",
    ),
    Mutation(
        "smooth_grad_noise",
        "methods/input_gradients.py",
        "noise * space.spread(row)",
        "noise * 1",
        twins("smooth_grad"),
    ),
    Mutation(
        "input_x_gradient",
        "methods/input_gradients.py",
        "terms = space.inputs * space.gradient",
        "terms = space.inputs.abs() * space.gradient",
        twins("input_x_gradient"),
    ),
    Mutation(
        "grad_cam_relu",
        "methods/image_features.py",
        "features.values_BPD).clamp(min=0)",
        "features.values_BPD).abs()",
        twins("grad_cam"),
    ),
    # Perturbation
    Mutation(
        "shap_weights",
        "methods/shap.py",
        "1 / (count * comb(count - 1, size))",
        "1 / (count * comb(count, size))",
        twins("shap"),
    ),
    Mutation(
        "shap_kernel_of_sizes",
        REGRESSION,
        "1 / (size * (players - size))) for size in range(1, players))",
        "1.0) for size in range(1, players))",
        "tests/engines/test_regression.py",
    ),
    Mutation(
        "shap_sum",
        REGRESSION,
        "Fit(values_P + change / count, covariance_PP)",
        "Fit(values_P, covariance_PP)",
        "tests/engines/test_regression.py",
    ),
    Mutation(
        "shap_pairs_drawn_twice",
        REGRESSION,
        "return times_K / times_K.mean()",
        "return np.ones_like(times_K)",
        "tests/engines/test_regression.py",
    ),
    Mutation(
        "two_ended_mean",
        "methods/ablation.py",
        "(whole - without_G + alone_G - none) / 2",
        "(whole - without_G)",
        twins("two_ended"),
    ),
    Mutation(
        "occlusion_sign",
        "methods/ablation.py",
        "whole - without)",
        "without - whole)",
        twins("occlusion"),
    ),
    Mutation(
        "vit_cx_noise",
        "methods/image_features.py",
        "rest = drawn * (1 - weight)",
        "rest = drawn * weight",
        twins("vit_cx"),
    ),
    Mutation(
        "deleted_padding",
        "engines/perturbation/variants.py",
        "there[:, self.positions] = np.asarray(present_MP)[:, self.owners]",
        "there[:, self.positions] = np.asarray(present_MP)[:, self.owners]\n        there &= self.real",
        "tests/engines/test_variants.py",
    ),
    # Evaluation
    Mutation(
        "comprehensiveness_order",
        FAITHFULNESS,
        "return average(falls(trial, top_away(",
        "return average(falls(trial, bottom_away(",
        METRICS,
    ),
    Mutation(
        "sufficiency_whole",
        FAITHFULNESS,
        "return average(falls(trial, top_kept(trial, fractions=(1.0, *bins))",
        "return average(falls(trial, top_kept(trial, fractions=(0.9, *bins))",
        METRICS,
    ),
    Mutation(
        "aopc_mean",
        FAITHFULNESS,
        "fractions=(0.0, *fractions)), value).mean())",
        "fractions=(0.0, *fractions)), value)[1:].mean())",
        METRICS,
    ),
    Mutation("ranks_of_ties", FAITHFULNESS, 'side="left"', 'side="right"', METRICS),
    Mutation(
        "fractions_rounded_up",
        PLAYERS,
        "math.ceil(fraction * parts - 1e-9)",
        "math.floor(fraction * parts + 1e-9)",
        METRICS,
    ),
    Mutation(
        "interval_level",
        "evidence.py",
        "tail = (1 - LEVEL) / 2\n        return",
        "tail = 1 - LEVEL\n        return",
        "tests/evaluate/test_compare.py tests/evaluate/test_detectors.py",
    ),
    Mutation(
        "interval_draws_inputs",
        "evidence.py",
        "np.unique(np.arange(len(values)) if of is None else np.asarray(of), return_inverse=True)[1]",
        "np.arange(len(values))",
        "tests/evaluate/test_compare.py tests/evaluate/test_detectors.py",
    ),
    Mutation(
        "cache_key_of_the_question",
        "evaluate/games.py",
        'contents = {"question": self.question, "about": about,',
        'contents = {"about": about,',
        "tests/evaluate/test_stale_numbers.py -k noticed",
    ),
    Mutation(
        "cache_checksum",
        "engines/perturbation/game.py",
        "return zlib.crc32(record, zlib.crc32(self.path.name.encode()))",
        "return 0",
        "tests/evaluate/test_games.py -k 'flipped or stopped'",
    ),
    # Capture, study and loan
    Mutation(
        "grouped_query_heads",
        FUNCTIONS,
        "shared.repeat_interleave(groups, dim=-3)",
        "shared.repeat(*[1] * (shared.ndim - 3), groups, 1, 1)",
        "tests/capture/test_interceptor.py",
    ),
    Mutation(
        "causal_mask",
        FUNCTIONS,
        "device=scores.device).triu(1)",
        "device=scores.device).triu(2)",
        "tests/capture/test_interceptor.py",
    ),
    Mutation(
        "left_padding",
        "study/study.py",
        "rank = {int(p): i for i, p in enumerate(real.nonzero()[:, 0])}",
        "rank = {int(p): int(p) for p in real.nonzero()[:, 0]}",
        "tests/test_contracts.py tests/study/test_study.py -k 'left or padding'",
    ),
    Mutation(
        "leak_audit",
        "study/facts.py",
        "return self.amount != 0.0",
        "return self.amount > 0.1",
        "tests/study/test_study.py tests/models/test_models.py tests/test_promises.py",
    ),
    Mutation(
        "slope_tolerance",
        "study/interference.py",
        "TOLERANCE = 0.02",
        "TOLERANCE = 2.0",
        "tests/study/test_slopes.py",
    ),
    Mutation(
        "loan_gradients_back",
        "loan/borrow.py",
        "weight.requires_grad = True",
        "weight.requires_grad = False",
        "tests/test_loan.py tests/test_promises.py",
    ),
    Mutation(
        "loan_hooks_back",
        "loan/borrow.py",
        "handed.hooks.pop().remove()",
        "handed.hooks.pop()",
        "tests/capture/test_interceptor.py tests/test_loan.py",
    ),
    Mutation(
        "loan_random_numbers_back",
        "loan/borrow.py",
        "            generator.set_state(state)\n",
        "            generator.get_state()\n",
        "tests/test_loan.py",
    ),
    # Inputs and results
    Mutation(
        "pieces_of_words",
        "inputs/units.py",
        'else label.startswith("##")',
        "else False",
        "tests/inputs tests/explainer -k 'word or piece or tokenizer'",
    ),
    Mutation(
        "words_are_sums",
        "results/types.py",
        '{"sum": np.sum, "max"',
        '{"sum": np.mean, "max"',
        "tests/methods/test_shap.py tests/tables/test_global.py tests/explainer/test_saved_results.py -k word",
    ),
    Mutation(
        "pieces_of_the_first_image",
        "inputs/media.py",
        "patch_index(tile.grid, *tile.where_FCHW.shape[-2:]) + tile.first",
        "patch_index(tile.grid, *tile.where_FCHW.shape[-2:])",
        "tests/inputs/test_vision_language.py -k explained_with_the_words",
    ),
    Mutation(
        "image_relevance_left_out",
        "methods/relevance_propagation.py",
        "scores = scores + _at_image_tokens(run, token, features, slope)",
        "scores = scores + 0 * _at_image_tokens(run, token, features, slope)",
        "tests/inputs/test_vision_language.py -k conserved",
    ),
    Mutation(
        "unknown_words_are_not_special",
        "inputs/tokens.py",
        "set(tokenizer.all_special_ids) - ({unknown} - others)",
        "set(tokenizer.all_special_ids)",
        "tests/inputs tests/explainer -k 'special or tokenizer or unknown or prompt'",
    ),
    Mutation(
        "codec_loses_a_field",
        "results/codec.py",
        "for f in dataclasses.fields(value)}\n    fields",
        "for f in dataclasses.fields(value)[:-1]}\n    fields",
        "tests/explainer/test_saved_results.py tests/views/test_results.py",
    ),
    Mutation(
        "codec_not_a_number",
        "results/codec.py",
        "plain[np.isnan(array)] = None",
        "plain[np.isnan(array)] = 0.0",
        "tests/views/test_results.py",
    ),
    Mutation(
        "path_with_a_zero_byte",
        "files.py",
        'if "\\0" in text:',
        'if "\\0" in text[:0]:',
        "tests/explainer/test_paths.py",
    ),
    # Programs
    Mutation(
        "exit_code",
        "cli/main.py",
        "raise typer.Exit(1) from None",
        "raise typer.Exit(0) from None",
        "tests/cli/test_cli_errors.py",
    ),
    Mutation(
        "server_token",
        "serve/safety.py",
        "if not self._knows(headers):",
        "if not self._knows(headers) and not headers:",
        "tests/serve/test_safety.py -k token",
    ),
    Mutation(
        "server_host",
        "serve/safety.py",
        "if self.loopback and not is_loopback(_name(host)):",
        "if not self.loopback and not is_loopback(_name(host)):",
        "tests/serve/test_safety.py -k 'other_pages or names or token'",
    ),
    Mutation(
        "proxy_writes_replies_anew",
        "proxy/chat.py",
        """return body[:end] + comma + f'"{FIELD}":'.encode() + _json(added) + body[end:]""",
        "return _json({**content, FIELD: added})",
        "tests/proxy/test_proxy.py -k 'one_more_field or whole'",
    ),
    Mutation(
        "proxy_holds_events",
        "proxy/relay.py",
        "                yield _joined(lines)\n",
        "                rest = _joined(lines) + rest\n",
        "tests/proxy/test_proxy.py -k 'passed_on_before or however'",
    ),
    Mutation(
        "proxy_waits_for_explanations",
        "proxy/relay.py",
        "await job.ended(self.seconds)",
        "await job.ended(3600)",
        "tests/proxy/test_proxy.py -k 'too_long'",
    ),
    Mutation(
        "proxy_token_goes_to_the_server",
        "proxy/relay.py",
        'request.headers.get("authorization") if self.token is None else None',
        'request.headers.get("authorization")',
        "tests/proxy/test_proxy.py -k tokens",
    ),
    Mutation(
        "telemetry_names_documents",
        "proxy/chat.py",
        '[names.index(source["document"]) for source in sources]',
        '[source["document"] for source in sources]',
        "tests/proxy/test_telemetry.py -k without_its_texts",
    ),
    Mutation(
        "job_commits_after_writing",
        "jobs/folder.py",
        "            self.write(part_file(self.folder, commit.part), written.data)\n",
        "            self._append(json.dumps(asdict(commit)))\n"
        "            self.write(part_file(self.folder, commit.part), written.data)\n",
        "tests/jobs/test_resuming.py",
    ),
    Mutation(
        "job_files_cut_short",
        "jobs/folder.py",
        "whole = is_file(file) and file.stat().st_size == commit.bytes",
        "whole = is_file(file)",
        "tests/jobs/test_resuming.py",
    ),
)


@dataclass(frozen=True)
class Outcome:
    killed: bool
    by: str
    seconds: float


def copied(folder: Path) -> None:
    """Copy what the tests need; nothing is ever changed in the user's own tree."""
    for name in COPIED:
        source, target = ROOT / name, folder / name
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.is_dir():
            shutil.copytree(source, target, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy2(source, target)


def tried(mutation: Mutation, folder: Path, new: str, stamp: int) -> Outcome:
    """Run the tests of a mutation on the copy with ``new`` in place of the old text."""
    path = folder / "src/whyformer" / mutation.file
    source, times = path.read_text(encoding="utf-8"), path.stat()
    if source.count(mutation.old) != 1:
        raise SystemExit(f"{mutation.name}: its old text occurs {source.count(mutation.old)} times in {mutation.file}.")
    compile(source.replace(mutation.old, new), mutation.file, "exec")  # an error of syntax would look like a kill
    log, begin = folder / "log.txt", time.perf_counter()
    try:
        path.write_text(source.replace(mutation.old, new), encoding="utf-8")
        os.utime(path, (stamp, stamp))  # a time of its own, by which Python knows that compiled code is out of date
        process = multiprocessing.get_context("fork").Process(target=_tested, args=(folder, mutation.tests, log))
        process.start()
        process.join(LIMIT)
        if process.is_alive():
            process.kill()
            process.join()
    finally:
        path.write_text(source, encoding="utf-8")
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    seconds, said = time.perf_counter() - begin, log.read_text(encoding="utf-8", errors="replace")
    failed = re.findall(r"^(?:FAILED|ERROR) (\S+)", said, re.MULTILINE)
    if process.exitcode == -signal.SIGKILL:
        failed = ["time limit"]
    elif process.exitcode != 0 and not failed:  # neither passed nor failed: the tests did not run
        raise SystemExit(f"{mutation.name}: pytest {mutation.tests} ended with {process.exitcode}.\n{said[-2000:]}")
    return Outcome(bool(failed), failed[0] if failed else "", seconds)


def _tested(folder: Path, tests: str, log: Path) -> None:
    """In a process of its own: run pytest inside the copy."""
    import pytest

    with log.open("wb") as stream:
        os.dup2(stream.fileno(), 1)
        os.dup2(stream.fileno(), 2)
    own = [str(folder), str(folder / "src"), str(folder / "models/src")]
    sys.path[:] = own + [path for path in sys.path if not Path(path or ".").resolve().is_relative_to(ROOT / "src")]
    os.environ["PYTHONPATH"] = os.pathsep.join(own)
    os.chdir(folder)
    imported = "ignore::pytest.PytestAssertRewriteWarning"  # plugins that were imported before the fork
    code = pytest.main(["-q", "-x", "--tb=short", "-p", "no:cacheprovider", "-W", imported, *shlex.split(tests)])
    sys.stdout.flush()
    os._exit(int(code))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("names", nargs="*", help="mutations to run (default: all)")
    parser.add_argument("--list", action="store_true", help="print the mutations and end")
    parser.add_argument("--unbroken", action="store_true", help="run the tests without breaking anything")
    asked = parser.parse_args()
    if unknown := set(asked.names) - {mutation.name for mutation in MUTATIONS}:
        parser.error(f"unknown: {', '.join(sorted(unknown))}. See --list.")
    chosen = [mutation for mutation in MUTATIONS if not asked.names or mutation.name in asked.names]
    if asked.list:
        for mutation in chosen:
            print(f"{mutation.name:42} {mutation.file:36} {mutation.tests}")
        return
    os.environ["TRITON_INTERPRET"] = "1"  # as tests/conftest.py sets it, before Triton is imported
    for name in LIBRARIES:
        importlib.import_module(name)
    survivors = []
    with tempfile.TemporaryDirectory(prefix="mutations-") as name:
        folder = Path(name).resolve()
        copied(folder)
        for number, mutation in enumerate(chosen):
            outcome = tried(mutation, folder, mutation.old if asked.unbroken else mutation.new, 10**9 + number)
            said = "killed" if outcome.killed else "SURVIVED"
            print(f"{mutation.name:42} {said:8} {outcome.seconds:6.0f} s  {outcome.by}", flush=True)
            survivors += [] if outcome.killed else [mutation.name]
    print(f"\n{len(chosen) - len(survivors)} of {len(chosen)} killed. Survivors: {', '.join(survivors) or 'none'}.")
    sys.exit(bool(survivors))


if __name__ == "__main__":
    main()
