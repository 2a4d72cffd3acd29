"""Kinds of models: what docs/kinds.md says of them holds now, by formulas that know nothing of whyformer.

A subset that runs in a few seconds; ``python -m bench.model_kinds`` compares all kinds.
"""

from __future__ import annotations

import pytest

from bench.model_kinds import METHODS, PAGE, line, row
from tests.models.kinds import KINDS

# One of each: post- and pre-norm, causal, experts, windows, sinks, other layouts of heads, pictures, sound, video,
# tables, several streams, and kinds that have to be refused.
SUBSET = (
    "bert", "modernbert", "deberta_v2", "gpt2_cls", "gemma3", "mixtral", "qwen3_moe", "gpt_oss", "vit", "beit",
    "videomae", "wav2vec2", "wavlm", "nn_transformer_encoder", "looped_heads", "rtdl_ft_transformer", "lxmert", "t5",
    "mamba", "token_mixing", "recurrent_gemma", "longformer", "convbert", "bert_tokens", "nystromformer", "yolos",
    "patchtst",
)  # fmt: skip
LISTED = {each.split(" | ")[0].removeprefix("| "): each for each in PAGE.read_text(encoding="utf-8").splitlines()}


@pytest.mark.filterwarnings("ignore")  # of the models, not of ours
@pytest.mark.parametrize("name", SUBSET)
def test_value_and_scores_are_those_of_the_formula(name: str) -> None:
    assert line(row(KINDS[name])) == LISTED[name]


def test_the_page_lists_every_kind() -> None:
    assert set(KINDS) <= set(LISTED)
    rows = [LISTED[name] for name in KINDS]
    assert sum(each.endswith(" | ".join(["| works"] + ["works"] * (len(METHODS) - 1)) + " |") for each in rows) >= 60
    assert not [name for name in KINDS if "differs" in LISTED[name]]
