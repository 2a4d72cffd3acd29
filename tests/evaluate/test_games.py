"""Variants of inputs: what the model says of them is what it says of tensors made by hand; each is run once."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import whyformer as wf
from tests.evaluate.games import sentiment, together
from tests.models import CASES
from tests.support import folders
from whyformer.engines.perturbation.game import VariantStore
from whyformer.errors import NotOffered
from whyformer.evaluate.candidate import greedy
from whyformer.evaluate.games import games_of
from whyformer.files import UNFINISHED
from whyformer.loan.digests import circumstances
from whyformer.results.codec import is_whole, read_piece, write_piece

TEXTS = ["a witty, seductive movie", "This is so boring"]


@torch.no_grad()
def probability(ids: list[int], target: int) -> float:
    return float(sentiment().model(input_ids=torch.tensor([ids])).logits.softmax(-1)[0, target])


def masks(parts: int, seed: int = 0, count: int = 9) -> Any:
    return np.random.default_rng(seed).random((count, parts)) < 0.5


# By hand


@pytest.mark.parametrize("replace", ["mask", "delete", 7])
def test_texts_are_changed_as_by_hand(replace: str | int) -> None:
    tokenizer = sentiment().processor
    with games_of(sentiment(), TEXTS, replace=replace) as games:
        for number, text in enumerate(TEXTS):
            ids, parts = tokenizer(text)["input_ids"], games.parts[number]
            assert parts.tolist() == list(range(1, len(ids) - 1))
            filler = replace if isinstance(replace, int) else getattr(tokenizer, f"{replace}_token_id", None)
            present = masks(len(parts))
            found = games.game(number).values(present)
            for row, value in zip(present, found, strict=True):
                gone = set((parts[~row]).tolist())
                changed = [i if p not in gone else filler for p, i in enumerate(ids)]
                changed = [i for i in changed if i is not None]
                assert value == pytest.approx(probability(changed, games.targets[number].index), abs=1e-6)


@pytest.mark.parametrize("replace", ["mean", "zero", "resample"])
def test_images_are_changed_as_by_hand(replace: str) -> None:
    case = CASES["vit"]
    model, inputs = case.build(None), case.inputs()
    pixels: Any = inputs["pixel_values"] if isinstance(inputs, dict) else inputs[0]
    with games_of(wf.Explainer(model), inputs, replace=replace) as games:
        game, units = games.game(1), games.units[1]
        rows, columns = units.grid or (0, 0)
        assert game.parts == rows * columns
        present = masks(game.parts, count=3)
        found = game.values(present, "logit")
        if replace == "resample":
            assert len(set(found.tolist())) == 3 and game.draws == 4
            return
        height, width = pixels.shape[-2] // rows, pixels.shape[-1] // columns
        for row, value in zip(present, found, strict=True):
            image = pixels[1].clone()
            for patch in np.flatnonzero(~row):
                r, c = divmod(int(patch), columns)
                where = (slice(None), slice(r * height, (r + 1) * height), slice(c * width, (c + 1) * width))
                mean = pixels[1].mean((1, 2), keepdim=True).expand(image[where].shape)
                image[where] = mean if replace == "mean" else 0.0
            with torch.no_grad():
                logit = model(pixel_values=image[None]).logits[0, games.targets[1].index]
            assert value == pytest.approx(float(logit), abs=1e-5)


def test_black_is_what_the_processor_makes_of_black_and_needs_one() -> None:
    model, processor = folders.vit(), folders.image_processor()
    photo = Image.fromarray(np.random.default_rng(0).integers(0, 255, (40, 60, 3)).astype(np.uint8))
    black = Image.new("RGB", (60, 40))
    with games_of(wf.Explainer(model, processor), photo, replace="black", target=1) as games, torch.no_grad():
        logit = model(**processor(images=black, return_tensors="pt")).logits[0, 1]
        assert games.game(0).empty("logit") == pytest.approx(float(logit), abs=1e-5)
    pixels = dict(processor(images=photo, return_tensors="pt"))
    with games_of(wf.Explainer(model), pixels, replace="black") as games, pytest.raises(NotOffered, match="proces"):
        games.game(0)


def test_deleting_everything_leaves_a_token_of_the_config_or_is_refused() -> None:
    model, ids = CASES["gpt2"].build(None), torch.tensor([[5, 6, 7, 8]])
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    model.config.bos_token_id, model.config.eos_token_id = None, [3, 4]
    with games_of(wf.Explainer(model), inputs, replace="delete", target=1) as games, torch.no_grad():
        logit = model(input_ids=torch.tensor([[3]])).logits[0, -1, 1]
        assert games.game(0).empty("logit") == pytest.approx(float(logit), abs=1e-5)
        assert [doubt for doubt in games.warnings() if "token 3 as the only token" in doubt]
    model.config.eos_token_id = model.config.pad_token_id = None
    opened = games_of(wf.Explainer(model), inputs, replace="delete")
    with opened as games, pytest.raises(NotOffered, match="the model's config has no bos, eos or pad token"):
        games.game(0)


# Once


def test_a_variant_is_run_once_and_in_full_batches() -> None:
    calls: list[int] = []
    handle = sentiment().model.register_forward_hook(lambda m, a, out: calls.append(len(out.logits)))
    try:
        with games_of(sentiment(), [TEXTS[0]]) as games:
            games.game(0).drops()  # whether inputs change each other's answers is tried once per model
        with games_of(sentiment(), [TEXTS[0]], batch_size=4) as games:
            game = games.game(0)
            before = len(calls)
            game.drops()
            assert game.forwards == game.parts + 1 == sum(calls[before:])
            assert all(n == 4 for n in calls[before:-1])
            game.drops("logit"), game.whole(), game.stays(~np.eye(game.parts, dtype=bool))
            assert game.forwards == game.parts + 1
    finally:
        handle.remove()


# On disk


def test_a_stopped_job_goes_on_where_it_was(tmp_path: Path) -> None:
    path, present = tmp_path / "x.variants", masks(10, count=40)
    present = np.unique(present, axis=0)
    whole = together(10, 0).ask(present)

    class Stopped(KeyboardInterrupt):
        pass

    game = together(10, 0, VariantStore(path, 10), batch=7)
    say, done = game._say, []

    def stop_after_three(part: Any) -> Any:
        if len(done) == 3:
            raise Stopped
        done.append(len(part))
        return say(part)

    game._say = stop_after_three
    with pytest.raises(Stopped):
        game.ask(present)
    with path.open("ab") as file:
        file.write(b"half a rec")  # killed while writing
    again = together(10, 0, VariantStore(path, 10), batch=7)
    assert np.array_equal(again.ask(present), whole)
    assert again.forwards == len(present) - 21
    third = together(10, 0, VariantStore(path, 10))
    assert np.array_equal(third.ask(present), whole)
    assert third.forwards == 0


# Greedy search


@pytest.mark.parametrize("search", ["remove", "keep"])
def test_greedy_takes_the_best_at_every_step(search: str) -> None:
    game = together(8, 3)
    order = np.argsort(-greedy(game, search))
    present = np.full(8, search == "remove")
    for part in order:
        left = np.flatnonzero(present if search == "remove" else ~present)
        values = []
        for candidate in left:
            variant = present.copy()
            variant[candidate] = search != "remove"
            values.append(game.values(variant[None])[0])
        best = left[int(np.argmin(values) if search == "remove" else np.argmax(values))]
        assert best == part
        present[part] = search != "remove"


def test_greedy_search_of_many_parts_takes_several_at_a_time() -> None:
    for parts in (50, 200):
        game = together(parts, 3)
        scores = greedy(game, "remove")
        assert len(set(scores.tolist())) == parts
        assert game.forwards < 600


# Odd inputs


@pytest.mark.parametrize("replace", [3, "delete"])
def test_left_padding_changes_nothing(replace: int | str) -> None:
    model, ids = CASES["llama"].build(None), torch.tensor([[11, 12, 13, 14, 15, 16]])
    model.config.bos_token_id = 11  # one special token stays
    bare = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "position_ids": torch.arange(6)[None]}
    padded = {key: torch.nn.functional.pad(value, (3, 0)) for key, value in bare.items()}
    found = []
    for inputs in (bare, padded):
        with games_of(wf.Explainer(model), inputs, target=1, replace=replace) as games:
            assert games.game(0).parts == 5
            found.append(games.game(0).ask(masks(5)))
    np.testing.assert_allclose(found[0], found[1], atol=1e-5)


def test_one_token_and_no_token() -> None:
    explainer, tokenizer = sentiment(), sentiment().processor
    result = explainer.compare(["good"], method=["raw_attention", "occlusion"])
    assert all(np.isfinite(s.mean) for r in result.rows for s in r.scores.values())
    ids = torch.tensor([tokenizer("So boring")["input_ids"], [tokenizer.cls_token_id, tokenizer.sep_token_id, 0, 0]])
    inputs = {"input_ids": ids, "attention_mask": (ids != 0).long()}
    mixed = explainer.compare(inputs, method=["raw_attention"], metric=["aopc"])
    assert any("special tokens only" in w for w in mixed.warnings)
    assert np.isnan(mixed.values["aopc"]["raw_attention"][1]) and np.isfinite(mixed.values["aopc"]["raw_attention"][0])
    assert explainer.recommend(inputs, method=[], spaces=["attention"], scope="instance").chosen_on == 1


# What is on disk is used for the same precision only, and only if every byte is right.


@pytest.mark.skipif(not hasattr(torch.backends.cuda.matmul, "fp32_precision"), reason="torch 2.6 has one setting")
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_default_precision_of_products_gives_one_key_however_it_was_set(device: str) -> None:
    """torch says "none" before ``set_float32_matmul_precision`` is called for the first time, and "ieee" after."""
    torch.backends.cuda.matmul.fp32_precision = torch.backends.mkldnn.matmul.fp32_precision = "none"
    default = circumstances(device)
    torch.set_float32_matmul_precision("highest")
    assert circumstances(device) == default
    try:
        torch.set_float32_matmul_precision("high")
        assert circumstances(device) != default
    finally:
        torch.set_float32_matmul_precision("highest")


def test_flipped_bytes_are_asked_anew(tmp_path: Path) -> None:
    path = tmp_path / "x.variants"
    present = np.eye(10, dtype=bool)
    whole = together(10, 0, VariantStore(path, 10)).ask(present)
    data = bytearray(path.read_bytes())
    size = len(data) // len(present)
    data[3 * size + 7] ^= 0x40
    path.write_bytes(bytes(data[: 5 * size] + b"half" + data[5 * size :]))
    again = together(10, 0, VariantStore(path, 10))
    assert again.forwards == 0
    assert np.array_equal(again.ask(present), whole)
    assert again.forwards == 1
    third = together(10, 0, VariantStore(path, 10))
    assert np.array_equal(third.ask(present), whole) and third.forwards == 0
    piece = tmp_path / "x.check.json"
    write_piece((1.0, 2.0), piece)
    assert is_whole(piece) and read_piece(tuple[float, float], piece) == (1.0, 2.0)
    piece.write_bytes(piece.read_bytes().replace(b"2.0", b"2.5"))
    assert not is_whole(piece)


def test_several_writers_of_one_piece_do_not_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[str] = []
    replace = Path.replace

    def watched(self: Path, target: Path) -> Path:
        written.append(self.name)
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", watched)
    piece = tmp_path / "x.check.json"
    threads = [threading.Thread(target=write_piece, args=(1.0, piece)) for _ in range(2)]
    for thread in threads:
        thread.start()
    write_piece(2.0, piece)
    for thread in threads:
        thread.join()
    assert len(written) == len(set(written)) == 3 and all(name.endswith(UNFINISHED) for name in written)
    assert is_whole(piece) and [p.name for p in tmp_path.iterdir()] == ["x.check.json"]
