"""What is on disk is used for the same precision only, and only if every byte is right."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.evaluate.games import together
from whyformer.engines.perturbation.game import VariantStore
from whyformer.loan.digests import circumstances
from whyformer.results.codec import is_whole, read_piece, write_piece


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
    write = Path.write_bytes

    def watched(self: Path, data: bytes) -> int:
        written.append(self.name)
        return write(self, data)

    monkeypatch.setattr(Path, "write_bytes", watched)
    piece = tmp_path / "x.check.json"
    threads = [threading.Thread(target=write_piece, args=(1.0, piece)) for _ in range(2)]
    for thread in threads:
        thread.start()
    write_piece(2.0, piece)
    for thread in threads:
        thread.join()
    assert len(written) == 3 and len(set(written)) > 1 and all(name.endswith(".part") for name in written)
    assert is_whole(piece) and [p.name for p in tmp_path.iterdir()] == ["x.check.json"]
