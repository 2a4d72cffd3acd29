"""Call tokenizers and processors, and wrap tokenizers of the tokenizers library."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from whyformer.errors import BadInput, reading
from whyformer.extras import require
from whyformer.inputs.batch import signature_of

# A Tokenizer of the tokenizers library as processor: wrapped in a class of transformers

# How special tokens are spelled between brackets and bars. The library itself does not record their roles.
SPELLINGS = {role: (role,) for role in ("pad", "mask", "unk", "cls", "sep")} | {
    "bos": ("bos", "s", "begin_of_text", "startoftext", "start_of_text"),
    "eos": ("eos", "/s", "endoftext", "end_of_text"),
}


def as_processor(processor: Any, model: nn.Module) -> Any:
    """Wrap a copy of a ``tokenizers.Tokenizer`` as a tokenizer of transformers; return other processors unchanged."""
    if type(processor).__module__.partition(".")[0] != "tokenizers":
        return processor
    rust = getattr(processor, "_tokenizer", processor)  # tokenizers.implementations hold one
    if not hasattr(rust, "post_processor"):
        raise BadInput(
            f"processor is a {type(processor).__name__} of the tokenizers library, a part of a tokenizer. Pass the "
            "whole tokenizers.Tokenizer."
        )
    require("transformers", why="a tokenizers.Tokenizer as processor")
    from transformers import PreTrainedTokenizerFast

    rust = copy.deepcopy(rust)
    roles, truncation, padding = _roles(rust), rust.truncation, rust.padding
    options: dict[str, Any] = {f"{role}_token": token for role, token in roles.items()}
    if truncation is not None:
        options |= {"model_max_length": truncation["max_length"], "truncation_side": truncation["direction"]}
    if padding is not None:
        options |= {"padding_side": padding["direction"], "pad_token_type_id": padding["pad_type_id"]}
    rust.no_padding()  # lengths of texts are read before they are padded
    rust.no_truncation()
    # GPT-2 looks types up among its words, so types of zeros are not the same as none: a table of types is needed.
    config = getattr(model, "config", None)
    types = getattr(config, "type_vocab_size", 2 if config is None else 0)
    typed = _distinguishes_types(rust) and "token_type_ids" in signature_of(model) and types > 1
    names = ["input_ids", *["token_type_ids"] * typed, "attention_mask"]
    if others := [token for token in _declared(rust) if token not in roles.values()]:
        options["additional_special_tokens"] = others
    return PreTrainedTokenizerFast(tokenizer_object=rust, model_input_names=names, **options)


def _roles(rust: Any) -> dict[str, str]:
    """Return special tokens by role, as settings and templates place them, else by their spelling."""
    roles: dict[str, str] = {}
    for processor in _processors(rust):
        if "cls" in processor and "sep" in processor:  # BertProcessing, RobertaProcessing
            roles |= {"cls": processor["cls"][0], "sep": processor["sep"][0]}
        first, last = _ends(processor)
        if first is not None:
            roles.setdefault("cls" if _spelled(first) == "cls" else "bos", first)
        if last is not None:
            roles.setdefault("sep" if _spelled(last) == "sep" else "eos", last)
    if rust.padding is not None:
        roles["pad"] = rust.padding["pad_token"]
    if (unknown := getattr(rust.model, "unk_token", None)) is not None:
        roles["unk"] = unknown
    for token in _declared(rust):
        if (role := _spelled(token)) is not None:
            roles.setdefault(role, token)
    # Padding may be switched on with a token that the vocabulary does not have: a new id would be none of the model's.
    return {role: token for role, token in roles.items() if rust.token_to_id(token) is not None}


def _declared(rust: Any) -> list[str]:
    return [token.content for token in rust.get_added_tokens_decoder().values() if token.special]


def _spelled(token: str) -> str | None:
    bare = token.strip("[]<>|").lower()
    return next((role for role, spellings in SPELLINGS.items() if bare in spellings and bare != token), None)


def _processors(rust: Any) -> Iterator[Mapping[str, Any]]:
    """Return the post-processors, which add tokens around texts, as plain data."""
    state = None if rust.post_processor is None else json.loads(rust.post_processor.__getstate__())
    yield from () if state is None else state.get("processors", [state])


def _ends(processor: Mapping[str, Any]) -> tuple[str | None, str | None]:
    """Return the special tokens at the start and end of a template."""
    pieces = processor.get("single", ())
    if len(pieces) < 2:
        return None, None
    contents = processor["special_tokens"]
    first, last = (
        contents[piece["SpecialToken"]["id"]]["tokens"][0] if "SpecialToken" in piece else None
        for piece in (pieces[0], pieces[-1])
    )
    return first, last


def _distinguishes_types(rust: Any) -> bool:
    """Return whether a template with special tokens gives the second text another type."""
    for processor in _processors(rust):
        pieces = [piece for each in processor.get("pair", ()) for piece in each.items()]
        written = any(kind == "SpecialToken" for kind, _ in pieces)
        if processor["type"] == "BertProcessing" or (written and any(piece["type_id"] for _, piece in pieces)):
            return True
    return False


def processed(processor: Any, *inputs: Any, **options: Any) -> Any:
    """Call a tokenizer, image processor or feature extractor; whatever it raises becomes a BadInput."""
    for text in (*inputs, options.get("text"), options.get("text_target")):
        _require_characters(text)
    advice = "Call it on the same input by yourself: if that fails too, change the input or the processor."
    with reading(f"{type(processor).__name__} could not encode the input", advice):
        return processor(*inputs, **options)


def _require_characters(text: str | Sequence[Any] | None) -> None:
    """Raise for half of a surrogate pair: tokenizers would raise a TypeError about something else."""
    if isinstance(text, (list, tuple)):
        for part in text:
            _require_characters(part)
    if not isinstance(text, str) or text.isascii():
        return
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise BadInput(
            f"the text has half a character at position {error.start} ({text[error.start]!r}, one half of a surrogate "
            "pair), which has no encoding: decode the text again from its bytes, or replace such halves, "
            "text.encode('utf-8', 'replace').decode()."
        ) from None
