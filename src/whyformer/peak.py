"""The most memory a call took: of the device's allocator, or of the whole process where the model is on the CPU."""

from __future__ import annotations

from pathlib import Path

import torch

STATUS, CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Peak:
    """Bytes above what was in use when it was made, at the highest moment since; 0 where the system does not tell.

    On the CPU this is resident memory as the system sees it: what the process had free already is not seen, and what
    other threads take is. On a GPU it is what torch's allocator handed out.
    """

    def __init__(self, device: torch.device) -> None:
        self.device = device
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
            self.start: int | None = torch.cuda.memory_allocated(device)
        else:
            self.start = _resident("VmRSS") if _forgotten() else None

    @property
    def bytes(self) -> int:
        if self.start is None:
            return 0
        if self.device.type == "cuda":
            highest = torch.cuda.max_memory_allocated(self.device)
        else:
            highest = _resident("VmHWM")
        return max(0, highest - self.start)


def _forgotten() -> bool:
    """Whether the highest resident size so far could be set back to the present one (Linux)."""
    try:
        CLEAR.write_text("5")
    except OSError:
        return False
    return True


def _resident(field: str) -> int:
    try:
        lines = STATUS.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(field)), 0)
