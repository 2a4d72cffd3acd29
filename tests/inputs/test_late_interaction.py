"""MaxSim of two texts, and of a query with a picture, against plain loops."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from bench.tiny_models import tiny_model
from tests.models.case import randint
from tests.models.hf import text
from tests.models.kinds import KINDS
from tests.support.released import tiny_models
from whyformer.errors import NotOffered


def pair() -> dict[str, Tensor]:
    """Two pairs of texts of 10 and 7 tokens, padded."""
    inputs = text()
    return {f"{side}_{k}": v if side == "a" else v.flip(0) for side in "ab" for k, v in inputs.items()}


@torch.no_grad()
def maxsim(model: nn.Module, tensors: dict[str, Tensor], row: int) -> tuple[float, list[int]]:
    """Token by token: the score, and the token of b that each token of a matches."""
    sides = []
    for side in "ab":
        real = tensors[f"{side}_attention_mask"][row].bool()
        ids = tensors[f"{side}_input_ids"][row][real][None]
        sides.append(model(input_ids=ids).last_hidden_state[0])
    total, matched = 0.0, []
    for token in sides[0]:
        cosines = [float(token @ other / token.norm() / other.norm()) for other in sides[1]]
        matched.append(int(np.argmax(cosines)))
        total += max(cosines)
    return total, matched


def test_the_score_and_its_pairs_are_those_of_a_loop() -> None:
    model, tensors = KINDS["bert_headless"].case.build(None), pair()
    found = wf.explain(model, tensors, method="generic_attention", scalar="maxsim")
    for row, one in enumerate(found):
        total, matched = maxsim(model, tensors, row)
        cells = one.matrix["a", "b"]
        assert one.value == pytest.approx(total, abs=1e-4) and one.scalar == "maxsim"
        assert cells.sum() == pytest.approx(total, abs=1e-4)
        assert [int(i) for i in np.abs(cells).argmax(1)] == matched
        assert set(one.units.stream) == {"a", "b"}


def test_a_masked_token_changes_the_score_as_it_does_in_the_loop() -> None:
    model, tensors = KINDS["bert_headless"].case.build(None), pair()
    one = wf.explain(model, tensors, method="occlusion", scalar="maxsim", replace=7)[0]
    changed = tensors | {"b_input_ids": tensors["b_input_ids"].clone()}
    changed["b_input_ids"][0, 2] = 7
    expected = maxsim(model, tensors, 0)[0] - maxsim(model, changed, 0)[0]
    of_b = [score for score, stream in zip(one.scores, one.units.stream, strict=True) if stream == "b"]
    assert of_b[2] == pytest.approx(expected, abs=1e-4)


class Query(nn.Module):
    """As in docs/guide/streams.md: classes are the tokens of a query."""

    def __init__(self, model: Any, vectors: Tensor) -> None:
        super().__init__()
        self.model, self.vectors, self.config = model, vectors, model.config

    def forward(self, input_ids: Tensor, attention_mask: Tensor, pixel_values: Tensor) -> Tensor:
        document = self.model(input_ids=input_ids, attention_mask=attention_mask, pixel_values=pixel_values).embeddings
        return torch.einsum("nd,bmd->bnm", self.vectors, document).amax(2)


@tiny_models
@pytest.mark.filterwarnings("ignore")
def test_a_query_token_is_explained_over_the_patches_of_a_page() -> None:
    tiny = tiny_model("ColPaliForRetrieval")
    query = randint(40, 100, 1, 6)
    vectors = tiny.model(input_ids=query).embeddings[0].detach()
    texts = {"a_input_ids": query, "b_input_ids": query.flip(1)}
    assert wf.explain(tiny.model, texts, method="generic_attention")[0].scalar == "maxsim"
    model = Query(tiny.model, vectors)
    inputs = {k: v[:1] for k, v in tiny.inputs.items() if k in ("input_ids", "attention_mask", "pixel_values")}
    one = wf.explain(model, inputs, method="input_x_gradient", target=2)[0]
    leaf = inputs["pixel_values"].clone().requires_grad_()
    with torch.enable_grad():
        score = model(**(inputs | {"pixel_values": leaf}))[0, 2]
        (gradient,) = torch.autograd.grad(score, leaf)
    by_patch = (leaf * gradient).detach()[0].sum(0).view(4, 8, 4, 8).sum((1, 3)).flatten()
    patches = [s for s, name, own in zip(one.scores, one.units.stream, one.units.special, strict=True)
               if name == "image" and not own]  # fmt: skip
    assert one.value == pytest.approx(float(score.detach()), abs=1e-5)
    np.testing.assert_allclose(patches, by_patch, atol=1e-5)


def test_where_there_are_no_two_texts_it_is_refused() -> None:
    case = KINDS["bert"].case
    with pytest.raises(NotOffered, match="pair of texts"):
        wf.explain(case.build("sdpa"), case.inputs(), scalar="maxsim", method="occlusion", replace=7)
    with pytest.raises(NotOffered, match="'cosine', or 'maxsim'"):
        wf.explain(KINDS["bert_headless"].case.build(None), pair(), scalar="probability", method="occlusion")


class Diffusion(nn.Module):
    """A DiT: patches of a noisy picture and the vectors of a text attend to each other; one number per pixel."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.patches = nn.Conv2d(3, 16, 4, 4)
        self.block = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.out = nn.Linear(16, 48)

    def forward(self, hidden_states: Tensor, encoder_hidden_states: Tensor) -> Tensor:
        pieces = self.patches(hidden_states).flatten(2).transpose(1, 2)
        mixed = self.block(torch.cat([encoder_hidden_states, pieces], 1))[:, -pieces.shape[1] :]
        return nn.functional.fold(self.out(mixed).transpose(1, 2), hidden_states.shape[2:], 4, stride=4)


def test_a_diffusion_transformer_is_explained_by_the_wrapper_of_its_error() -> None:
    model, inputs = Diffusion().eval(), {"hidden_states": torch.randn(1, 3, 8, 8)}
    inputs["encoder_hidden_states"] = torch.randn(1, 3, 16)
    with pytest.raises(NotOffered, match=r"One\(model\)") as refused:
        wf.explain(model, inputs, method="occlusion")
    scope: dict[str, Any] = {"torch": torch}
    exec(str(refused.value).partition("last line:")[2].partition("\n\n\n")[0], scope)
    one = wf.explain(scope["One"](model), inputs, method="occlusion")[0]
    with torch.no_grad():
        assert one.value == pytest.approx(float(model(**inputs)[0, one.target.index, 4, 4]), abs=1e-5)
    assert len(one.scores) >= 4 and np.abs(one.scores).max() > 0
