"""Count the functions that a call runs through.

    python -m bench.call_path [--method M]   # one explanation of the tiny BERT of the tests
    python -m bench.call_path --verbs        # and of compare, cite, a request to the server, and a job

Each is called twice, on tiny models of the tests. Printed are the distinct functions of whyformer that ran (those with
a name: no lambdas or comprehensions) and their files; all calls, and how often a call went from one file to another;
how many frames of whyformer were on the stack at most, and how many of them were between the caller and the model.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import threading
import warnings
from collections.abc import Callable
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from PIL import Image

import whyformer as wf
from tests.models import CASES
from tests.serve.served import asked, client, explainer, served
from tests.support import language
from whyformer.demo.pictures import face

PACKAGE = str(Path(wf.__file__).parent)
TEXTS = ["the cat sat on the mat", "bob works in rome", "anna lives in paris", "who is anna"]


def walked(call: Callable[[], object], model: str) -> dict[str, int]:
    """Count while ``call`` runs, in threads that it starts as well."""
    functions: set[tuple[str, str]] = set()
    calls = changes = deepest = before_model = 0
    last = ""

    def depth(frame: FrameType | None) -> int:
        total = 0
        while frame is not None:
            total += frame.f_code.co_filename.startswith(PACKAGE)
            frame = frame.f_back
        return total

    def watch(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal calls, changes, last, deepest, before_model
        code = frame.f_code
        if event != "call":
            return
        if code.co_filename.startswith(PACKAGE):
            calls += 1
            changes += code.co_filename != last
            last = code.co_filename
            deepest = max(deepest, depth(frame))
            if not code.co_name.startswith("<"):
                functions.add((code.co_filename, code.co_qualname))
        elif code.co_qualname == f"{model}.forward":
            before_model = max(before_model, depth(frame))

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        call()
    finally:
        sys.setprofile(None)
        threading.setprofile(None)  # type: ignore[arg-type]
    files = len({file for file, _ in functions})
    sizes = {"functions": len(functions), "files": files, "calls": calls, "changes of file": changes}
    return sizes | {"deepest": deepest, "frames to the model": before_model}


def explained(method: str | None) -> tuple[Callable[[], object], str]:
    case = CASES["bert"]
    model, inputs = case.build(case.implementations[0]), case.inputs()
    return lambda: wf.explain(model, inputs, method=method), type(model).__name__


def limited() -> dict[str, dict[str, int]]:
    """Warm explanations that bench.house holds to a limit: the tiny BERT by two methods, a photo by the default."""
    model, processor = wf.demo.load_pets()
    photo = Image.fromarray(face("cat"))
    calls = {f"{method}, text": explained(method) for method in ("generic_attention", "attn_lrp")}
    calls["default, photo"] = (lambda: wf.explain(model, photo, processor=processor)), type(model).__name__
    for call, _ in calls.values():
        call()
    return {name: walked(call, named) for name, (call, named) in calls.items()}


def other_verbs(folder: Path) -> dict[str, tuple[Callable[[], object], str]]:
    writer = language.model("gpt2")
    model, tokenizer = explainer("text").model, explainer("text").processor
    number = count()
    documents = ["the cat sat on a mat .", "paris is the capital of france ."]

    def request() -> object:
        # A new server each time: its threads have to begin where they are counted.
        return client(served("text")).post("/api/explain", json=asked(seed=next(number))).raise_for_status()

    def job() -> object:
        return wf.explain_dataset(model, TEXTS, out=folder / str(next(number)), processor=tokenizer, progress=False)

    def compared() -> object:
        methods = ["generic_attention", "occlusion"]
        return wf.compare(model, TEXTS, processor=tokenizer, method=methods, progress=False)

    def cited() -> object:
        answer = "paris ."
        return wf.cite(
            writer, "what is the capital of france ?", documents, processor=language.tokenizer(), answer=answer
        )

    named, other = type(model).__name__, type(writer).__name__
    return {
        "compare": (compared, named),
        "cite": (cited, other),
        "request": (request, named),
        "job": (job, named),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--method")
    parser.add_argument("--verbs", action="store_true", help="more than explain")
    parser.add_argument("--limited", action="store_true", help="what bench.house holds to a limit, as JSON")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    wf.list_methods()  # imported once per process, whatever is explained
    if options.limited:
        print(json.dumps(limited()))
        return
    with tempfile.TemporaryDirectory() as folder:
        calls = {"explain": explained(options.method)} | (other_verbs(Path(folder)) if options.verbs else {})
        for verb, (call, model) in calls.items():
            for state in ("cold", "warm"):
                counts = walked(call, model)
                name = state if len(calls) == 1 else f"{verb}, {state}"
                print(f"{name}:" if options.verbs else name, ", ".join(f"{what} {n}" for what, n in counts.items()))


if __name__ == "__main__":
    main()
