"""Heads of models with an encoder, a decoder and cross-attention between them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import whyformer as wf
from tests.methods.properties import close, model_of
from tests.models import CASES
from tests.references.generic_attention_streams import normalized
from training import translation
from whyformer.errors import BadInput
from whyformer.heads import head_importance, layer_profile, roles
from whyformer.heads.importance_kinds import stream_relevance
from whyformer.run.session import passing_through

NAMES = ("t5", "bart")
PARTS = ("encoder", "encoder", "decoder", "cross", "decoder", "cross")
TARGET = 3


def maps_of(name: str, grad: bool = False) -> list[tuple[str, Tensor, Tensor]]:
    """(part, attention, its gradient) of each layer, in call order, as the model itself reports them."""
    inputs = CASES[name].inputs()
    said = CASES[name].build("eager")(**inputs, output_attentions=True)
    encoder, decoder, cross = said.encoder_attentions, said.decoder_attentions, said.cross_attentions
    maps = [*encoder, *(layer for pair in zip(decoder, cross, strict=True) for layer in pair)]
    last = _last(inputs)
    score = said.logits[torch.arange(len(last)), last][:, TARGET].sum()
    slopes = torch.autograd.grad(score, maps, allow_unused=True) if grad else maps
    parts = ["encoder"] * len(encoder) + ["decoder", "cross"] * len(decoder)
    slopes = [torch.zeros_like(m) if s is None else s for m, s in zip(maps, slopes, strict=True)]
    return [(p, m.detach(), s.detach()) for p, m, s in zip(parts, maps, slopes, strict=True)]


def _last(inputs: dict[str, Tensor]) -> Tensor:
    mask = inputs.get("decoder_attention_mask", torch.ones_like(inputs["decoder_input_ids"]))
    return mask.sum(1) - 1


def real(name: str, row: int) -> tuple[int, int]:
    """Source and target tokens of one input; both stand at the start of their rows."""
    inputs = CASES[name].inputs()
    source = inputs.get("attention_mask", torch.ones_like(inputs["input_ids"]))
    return int(source[row].sum()), int(_last(inputs)[row]) + 1


def cut(name: str, row: int, part: str, attention: Tensor) -> np.ndarray:
    n, m = real(name, row)
    rows, columns = {"encoder": (n, n), "decoder": (m, m), "cross": (m, n)}[part]
    return attention[row, :, :rows, :columns].double().numpy()


@pytest.mark.parametrize("name", NAMES)
def test_parts_are_named(name: str) -> None:
    model, inputs = model_of(name), CASES[name].inputs()
    importance = [head_importance(model, inputs, kind=kind) for kind in ("gradient", "relevance")]
    results = [roles(model, inputs), layer_profile(model, inputs), *importance]
    for result in results:
        assert result.parts == PARTS
        assert all(("EncDec" in path or "encoder_attn" in path) == (part == "cross")
                   for path, part in zip(result.paths, PARTS, strict=True))  # fmt: skip
        frame = result.to_frame()
        places = set(zip(frame["layer"], frame["part"], frame["depth"], strict=True))
        assert places == set(zip(range(6), PARTS, (0, 1, 0, 0, 1, 1), strict=True))
    assert importance[0].part("cross").shape == (2, 4)
    with pytest.raises(BadInput, match="'encoder', 'decoder' or 'cross'"):
        importance[0].part("crossing")
    assert head_importance(model_of("bert"), CASES["bert"].inputs()).parts is None


@pytest.mark.parametrize("name", NAMES)
def test_entropy_and_positions(name: str) -> None:
    """Means over the real rows of whoever asks, of the maps that the model itself reports."""
    profile, looks = (measure(model_of(name), CASES[name].inputs()) for measure in (layer_profile, roles))
    first, asked = np.zeros_like(looks.first), np.zeros(6)
    for layer, (part, attention, _) in enumerate(maps_of(name)):
        for row in range(2):
            rows_HQK = cut(name, row, part, attention)
            want = -(rows_HQK * np.log(rows_HQK.clip(1e-30))).sum(-1).mean()
            assert profile.samples[row, 1, layer] == pytest.approx(want, rel=1e-3)
            ordinary = _ordinary(name, row, part)
            first[layer] += rows_HQK[:, ordinary, 0].sum(1)
            asked[layer] += len(ordinary)
    close(looks.first, first / asked[:, None], 1e-4)


def _ordinary(name: str, row: int, part: str) -> list[int]:
    """Rows that are no special tokens, as an explanation of the same input has them."""
    units = wf.explain(model_of(name), CASES[name].inputs(), method="raw_attention")[row].units
    stream = "source" if part == "encoder" else "target"
    special = [s for s, of in zip(units.special, units.stream, strict=True) if of == stream]
    return [i for i, s in enumerate(special) if not s] or list(range(len(special)))


def hand_relevance(name: str, row: int) -> np.ndarray:
    """(L, H) relevance through each head, the normalisations of eqs. 8 and 9 held as they are."""
    layers = [(p, cut(name, row, p, a), cut(name, row, p, g)) for p, a, g in maps_of(name, grad=True)]
    raised = [(p, np.clip(a * g, 0, None) / a.shape[0]) for p, a, g in layers]
    n, m = real(name, row)
    r_ss = np.eye(n)
    for a in (maps.sum(0) for p, maps in raised if p == "encoder"):
        r_ss = r_ss + a @ r_ss
    sums = (r_ss - np.eye(n)).sum(1)
    inverse = np.divide(1, sums, out=np.zeros_like(sums), where=sums != 0)
    # The decoder: rows of R_tt and R_ts before each of its layers.
    states, r_tt = [], np.eye(m)
    for part, maps in raised:
        states.append(r_tt)
        if part == "decoder":
            r_tt = r_tt + maps.sum(0) @ r_tt
    own = np.eye(m)[-1]
    added = np.zeros((len(raised), raised[0][1].shape[0]))
    towards_own, towards_source, source = own.copy(), own.copy(), np.zeros(n)
    for layer in reversed(range(len(raised))):
        part, maps = raised[layer]
        if part == "cross":
            through = np.einsum("q,pq,hpk->hk", towards_source, normalized(states[layer]), maps)
            source = source + through.sum(0) * inverse
        elif part == "decoder":
            through = np.einsum("q,hqk->hk", towards_own, maps)
            towards_own = towards_own + through.sum(0)
            towards_source = towards_source + towards_source @ maps.sum(0)
        else:
            through = np.einsum("q,hqk->hk", source, maps)
            source = source + through.sum(0)
        added[layer] = through.sum(1)
    return added


@pytest.mark.parametrize("name", NAMES)
def test_generic_relevance(name: str) -> None:
    model, inputs = model_of(name), CASES[name].inputs()
    with passing_through(model, inputs, target=TARGET) as session:
        added = torch.stack(stream_relevance(session.run([0, 1])), 1).double().numpy()
    shares = head_importance(model, inputs, kind="relevance", rule="generic", target=TARGET).samples
    explained = wf.explain(model, inputs, method="generic_attention", target=TARGET)
    for row in range(2):
        want = hand_relevance(name, row)
        close(added[row], want, 1e-3)
        # What all heads add, and the row that is read, is the whole of generic attention.
        assert added[row].sum() + 1 == pytest.approx(explained[row].scores.sum(), rel=1e-4)
        whole = want.sum(1, keepdims=True)
        close(shares[row], np.divide(want, whole, out=np.zeros_like(want), where=whole != 0), 1e-3)


def test_relevance_where_streams_ask_each_other() -> None:
    """LXMERT: both streams ask, and what is added still sums to generic attention."""
    model, inputs = model_of("lxmert"), CASES["lxmert"].inputs()
    with passing_through(model, inputs) as session:
        run = session.run([0])
        added = sum(float(layer.sum()) for layer in stream_relevance(run))
        read = float(run.readout_BN.sum())
    (explained, *_) = wf.explain(model, inputs, method="generic_attention")
    assert added + read == pytest.approx(float(explained.scores.sum()), rel=1e-4)
    parts = head_importance(model, inputs, kind="confidence").parts
    assert parts is not None and {"text", "image", "text → image", "image → text"} == set(parts)


def test_batches_are_nothing() -> None:
    model, inputs = model_of("t5"), CASES["t5"].inputs()
    for how in ({"kind": "confidence"}, {"kind": "gradient", "per": "token"}):
        many, one = (head_importance(model, inputs, batch_size=size, **how) for size in (2, 1))  # type: ignore[arg-type]
        close(many.scores, one.scores, 1e-4)
    close(roles(model, inputs).first, roles(model, inputs, batch_size=1).first)


# Heads that look where they are told: encoder and decoder to the token before, cross to the aligned one


class Reverser(nn.Module):
    """Source and target of one length; word t of the target is word n - 1 - t of the source."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table, self.out = nn.Embedding(30, 8), nn.Linear(8, 30)
        self.encoder, self.decoder, self.cross = (nn.Linear(8, 8) for _ in range(3))

    def attend(self, asking: Tensor, heard: Tensor, wanted_QK: Tensor, layer: nn.Linear) -> Tensor:
        query, key, value = (x.unflatten(-1, (2, 4)).transpose(1, 2) for x in (asking, heard, layer(heard)))
        scores = 1e-3 * query @ key.transpose(-1, -2) + 40.0 * wanted_QK.to(asking.dtype)
        return asking + (scores.softmax(-1) @ value).transpose(1, 2).flatten(2)

    def forward(self, input_ids: Tensor, decoder_input_ids: Tensor) -> Tensor:
        n = torch.arange(input_ids.shape[1])
        source, target = self.table(input_ids), self.table(decoder_input_ids)
        source = self.attend(source, source, n[:, None] - 1 == n, self.encoder)
        target = self.attend(target, target, n[:, None] == n, self.decoder)
        target = self.attend(target, source, n[:, None] == len(n) - 1 - n, self.cross)
        return self.out(target)[:, -1]


def test_heads_that_look_where_they_are_told() -> None:
    ids = torch.randint(3, 30, (4, 6), generator=torch.Generator().manual_seed(0))
    alignments = [[(5 - t, t) for t in range(6)]] * 4
    inputs = {"input_ids": ids, "decoder_input_ids": ids.flip(1)}
    found = roles(Reverser().eval(), inputs, alignments=alignments)
    assert found.parts == ("encoder", "decoder", "cross")
    # The first word has none before it: five of six rows look there.
    assert found.offset[0][0] == (-1,) and found.positional[0, 0] >= 5 / 6 - 1e-6
    names = {found.parts[layer]: name for (layer, _), name in found.named().items()}
    assert (names["decoder"], names["cross"]) == ("positional +0", "alignment")
    assert found.aligned is not None and (found.aligned[2] == 1).all() and np.isnan(found.aligned[:2]).all()
    assert found.aligned_chance == pytest.approx(1 / 6)
    found = roles(Reverser().eval(), inputs, alignments=[[(t, t) for t in range(6)]] * 4)  # wrong ones
    assert found.aligned is not None and not found.aligned[2].any()


def test_wrong_alignments_are_refused() -> None:
    ids = torch.randint(3, 30, (2, 6))
    inputs = {"input_ids": ids, "decoder_input_ids": ids}
    for alignments, says in (([[(0, 0)]], "1 alignments for 2 inputs"), ([[(9, 0)], []], "source token 9")):
        with pytest.raises(BadInput, match=says):
            roles(Reverser().eval(), inputs, alignments=alignments)
    with pytest.raises(BadInput, match="cross-attention"):
        roles(model_of("bert"), CASES["bert"].inputs(), alignments=[[], []])


# A translator that was trained, a little


@pytest.fixture(scope="module")
def translator() -> tuple[nn.Module, Any]:
    return translation.train(steps=12, width=16, layers=1, heads=2, batch=16)


def test_texts_and_their_translations(translator: tuple[nn.Module, Any]) -> None:
    model, tokenizer = translator
    test = translation.sentences(4, seed=5)
    pairs = [s.pair for s in test]
    found = roles(model, pairs, processor=tokenizer, alignments=[s.alignment for s in test], batch_size=2)
    assert found.inputs == 4 and found.parts == ("encoder", "decoder", "cross")
    # The same from tensors: the decoder reads its start and the translation without its end.
    sources = tokenizer([source for source, _ in pairs], return_tensors="pt", padding=True)
    written = tokenizer([target for _, target in pairs], return_tensors="pt", padding=True)
    start = torch.full((4, 1), tokenizer.pad_token_id)
    tensors = dict(sources) | {
        "decoder_input_ids": torch.cat([start, written["input_ids"][:, :-1]], 1),
        "decoder_attention_mask": written["attention_mask"],
    }
    sure = head_importance(model, pairs, processor=tokenizer, kind="confidence")
    same = head_importance(model, tensors, processor=tokenizer, kind="confidence")
    close(sure.scores, same.scores, 1e-4)
    # One row for each token that is written, beginning and end among them.
    matter = head_importance(model, pairs, processor=tokenizer)
    assert len(matter.samples) == sum(len(s.target) + 2 for s in test)
    assert layer_profile(model, pairs[:2], processor=tokenizer).inputs == 2
    assert roles(model, [source for source, _ in pairs], processor=tokenizer).inputs == 4  # its own translations
    with pytest.raises(BadInput, match="omit labels"):
        head_importance(model, pairs, processor=tokenizer, labels=[0] * 4)


def test_pictures(translator: tuple[nn.Module, Any], tmp_path: Path) -> None:
    model, tokenizer = translator
    pairs = [s.pair for s in translation.sentences(3, seed=6)]
    found = head_importance(model, pairs, processor=tokenizer, kind="confidence")
    assert [panel.title for panel in found.view().panels] == ["encoder", "decoder", "cross"]
    again = wf.load(found.save(tmp_path / "heads.npz"))
    assert again.parts == found.parts and again.to_html() == found.to_html()  # type: ignore[attr-defined]
    profile = layer_profile(model, pairs, processor=tokenizer)
    assert [line.name for line in profile.view().panels[0].marks[0].lines] == ["encoder", "decoder", "cross"]
