"""Nonsense for what only language models are asked, for servers, and for the training of twins (bench/fuzz.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from bench.fuzz_nonsense import INF, NAN, NO_NUMBER, NONSENSE, Call, Thing, shown, thing, with_nonsense

PROMPT, ANSWER = "the capital of france is", "paris . it was big"
DOCUMENTS = {"cats": "The cat sat on the mat . He said yes .", "dogs": "The big red dog ran home ."}
QUESTION = "who ran home ?"

NO_RANGES: tuple[Any, ...] = (
    "nonsense", "words", "", 3, NAN, True, None, b"word", {}, [], Thing(), thing, 1j, (0, 3), [3], [None], [()], [(0,)],
    [(0, 1, 2)], [(0, 999)], [(3, 1)], [(1, 1)], [(-3, 3)], [(0, 8), (4, 12)], [("a", "b")], [(0, 1.5)],
    [(False, True)], [(0, NAN)], [[0, 3]], {(0, 3): "a"},
)  # fmt: skip
NO_SPAN: tuple[Any, ...] = (
    "True", "", 0, 1, 0.5, NAN, None, [], {}, Thing(), thing, (), (0,), (0, 1, 2), (0, 0), (3, 1), (-1, 3), (0, 999),
    (0.5, 2), ("a", "b"), (True, False), (0, NAN), [0, 3], (0, 2**70),
)  # fmt: skip
NO_CHOICES: tuple[Any, ...] = (
    "yes", "", 3, NAN, True, b"yes", {}, {"yes": 1}, [], (), [""], [" "], ["yes", ""], ["yes", 3], [None], [NAN],
    [["yes", "no"]], ["yes", "yes"], ["the cat", "the dog"], Thing(), thing, 1j,
)  # fmt: skip
NO_WRITING: tuple[Any, ...] = (
    *(value for value in NO_NUMBER if value != {}), 0, -1, 1.7, INF, 2**70, 10**5, thing, {1: 2}, {"nonsense": 1},
    {"max_new_tokens": 0}, {"max_new_tokens": -1}, {"max_new_tokens": "3"}, {"max_new_tokens": NAN},
    {"max_new_tokens": 1.5}, {"max_new_tokens": True}, {"max_new_tokens": 10**5}, {"max_length": 1}, {"num_beams": 0},
    {"num_beams": "a"}, {"do_sample": True, "temperature": -1.0}, {"do_sample": True, "temperature": "hot"},
    {"do_sample": True, "top_k": -1}, {"input_ids": 3}, {"attention_mask": 3}, {"return_dict_in_generate": True},
    {"pad_token_id": "x"}, {"streamer": 3}, {"stopping_criteria": 3}, {"logits_processor": Thing()},
)  # fmt: skip
NO_ANSWERS: tuple[Any, ...] = (
    (PROMPT, ""), ("", ANSWER), ("", ""), (PROMPT, 3), (PROMPT, None), (PROMPT, NAN), (PROMPT, b"paris"), (3, ANSWER),
    (PROMPT, ANSWER, ANSWER), [(PROMPT, ANSWER), PROMPT], [(PROMPT, "")], (PROMPT, " "), (PROMPT, [ANSWER]),
    [{"role": "user"}], [{"content": "x"}], [{"role": 3, "content": "x"}], [{"role": "user", "content": 3}], [{}],
    [{"role": "user", "content": None}], [{"role": "user", "content": [3]}],
)  # fmt: skip
NO_CONTRAST: tuple[Any, ...] = (
    ("the cat", "the cat"), ("the cat", ""), ("", "the cat"), ("the cat", 3), ("the cat", None), ("the cat", NAN),
    ("the cat", "a dog", "he"), ("the cat", ["a dog"]), ["the cat", "a dog"],
)  # fmt: skip
NO_URL: tuple[Any, ...] = (
    "", " ", "nonsense", "localhost:8000", "ftp://localhost", "http://", "http://a b", "http://me:secret@localhost",
    "http://localhost:99999", "http://localhost:0", "http://[::1", "http://ü", "http://a\nb", "file:///tmp", 3, NAN,
    None, True, b"http://localhost", [], {}, Thing(), thing, 1j,
)  # fmt: skip
NO_PAIR: tuple[Any, ...] = (
    "", "a b", (), ("a",), ("a", "b", "c"), ("a", ""), ("", "a"), (3, "a"), ("a", None), [("a", "b"), "c"], None, 3,
    NAN, {}, [], Thing(), {"prompt": "a"},
)  # fmt: skip


def language(stage: Any) -> Iterator[Call]:
    """Of a stage (bench/fuzz.py): its language model, its server and its classifier."""
    yield from _explained(stage)
    yield from _elsewhere(stage)
    yield from _cited(stage)
    yield from _asked(stage)
    yield from _trained(stage)


def _calls(name: str, call: Any, parameter: str, values: Sequence[Any], **usual: Any) -> Iterator[Call]:
    for value in values:
        rest = "".join(f", {key}={shown(other)}" for key, other in usual.items())
        yield Call(
            "language", f"{name}({parameter}={shown(value)}{rest})", partial(call, **usual, **{parameter: value})
        )


def _explained(stage: Any) -> Iterator[Call]:
    import whyformer as wf

    of_model = partial(wf.explain, stage.writer, processor=stage.words)
    prompted, answered = partial(of_model, PROMPT), partial(of_model, (PROMPT, ANSWER))
    for name, call in (("explain prompt", prompted), ("explain answer", answered)):
        yield from _calls(name, call, "units", NO_RANGES)
        yield from _calls(name, call, "one_pass", NONSENSE["truth"])
        yield from _calls(name, call, "first_token", NONSENSE["truth"])
        yield from _calls(name, call, "choices", NO_CHOICES)
    yield from _calls("explain answer", answered, "span", NO_SPAN)
    yield from _calls("explain prompt", prompted, "span", (True, (0, 3)))
    yield from _calls("explain prompt", prompted, "generate", NO_WRITING)
    yield from _calls("explain prompt", prompted, "generate", NO_WRITING, span=True)
    yield from _calls("explain prompt", prompted, "target", NO_CONTRAST)
    yield from _calls("explain prompt", prompted, "target", NO_CONTRAST, method="occlusion")
    yield from _calls("explain prompt", prompted, "target", [wf.Target(0, position=at) for at in _NO_POSITION])
    wrong = ("nonsense", "", 9999, -5, 1.5, True, NAN, [], {}, Thing(), ["paris", "it"], (0, 1, 2))
    yield from _calls("explain answer", answered, "target", wrong)
    yield from _calls("explain answer", answered, "target", ("paris", 0, wf.Target(0)), span=True)
    for how in (
        {"choices": ["yes", "no"], "generate": 2},
        {"choices": ["yes", "no"], "generate": 2, "span": True},
        {"choices": ["yes", "no"], "target": "paris"},
        {"choices": ["yes", "no"], "target": 2},
        {"target": ("the cat", "a dog"), "generate": 2},
        {"target": ("the cat", "a dog"), "choices": ["yes", "no"]},
    ):
        yield Call("language", f"explain prompt({shown(how)})", partial(prompted, **how))
    for how in ({"choices": ["yes", "no"]}, {"generate": 2}, {"choices": ["yes", "no"], "span": True}):
        yield Call("language", f"explain answer({shown(how)})", partial(answered, **how))
    for value in NO_ANSWERS:
        for method in ("generic_attention", "occlusion"):
            words = f"explain({shown(value)}, method={method})"
            yield Call("language", words, partial(of_model, value, method=method))
        yield Call("language", f"explain({shown(value)}, span=True)", partial(of_model, value, span=True))


_NO_POSITION: tuple[Any, ...] = (99, -99, 1.5, "first", True, NAN, (), [0], Thing())


def _elsewhere(stage: Any) -> Iterator[Call]:
    """What is asked of language models, asked of others."""
    for name, call in (
        ("text", partial(stage.text.explain, stage.texts[0])),
        ("image", partial(stage.image.explain, stage.picture)),
        ("row", partial(stage.columns.explain, stage.rows[0])),
        ("sound", partial(stage.audio.explain, stage.sound)),
    ):
        how: list[dict[str, Any]] = [{"generate": 2}, {"span": True}, {"choices": ["yes"]}, {"one_pass": True}]
        how += [{"generate": {"max_new_tokens": 2}}, {"span": (0, 2)}, {"first_token": False}]
        if name != "text":
            how += [{"units": "word"}, {"units": "sentence"}, {"units": [(0, 2)]}]
        for wish in how:
            yield Call("language", f"explain {name}({shown(wish)})", partial(call, **wish))


def _cited(stage: Any) -> Iterator[Call]:
    import whyformer as wf

    def cited(model: Any = stage.writer, question: Any = QUESTION, documents: Any = DOCUMENTS, **how: Any) -> Any:
        return wf.cite(model, question, documents, **{"processor": stage.words, "answer": "He ran .", "top": 1, **how})

    skip = ("model", "question", "documents", "processor", "answer")
    yield from with_nonsense("language", "cite", cited, wf.cite, skip)
    yield from _calls("cite", cited, "question", ("", 3, NAN, None, True, [], {}, b"who", Thing(), thing))
    yield from _calls(
        "cite", cited, "documents",
        ("", "a text .", 3, NAN, None, True, [], {}, [""], [" "], [3], [None], {"a": 3}, {"a": ""}, ["a .", 3], Thing(),
         [["a ."]], b"a", {"a": None}),
    )  # fmt: skip
    yield from _calls("cite", cited, "answer", ("", " ", "\n", 3, NAN, True, [], {}, b"x", Thing()))
    others = (None, 3, "no such model", Thing(), [], stage.bert, stage.vit, thing)
    yield from _calls("cite", cited, "model", others, answer=None)
    yield from _calls("cite", cited, "processor", (None, 3, "gpt2", Thing(), stage.processor))
    yield from _calls("cite", cited, "generate", (10**5,), answer=None)
    for how in ({"steps": 0}, {"method": "integrated_gradients", "steps": 0}, {"span": True}, {"units": "word"}):
        yield Call("language", f"cite({shown(how)})", partial(cited, **how))


def _asked(stage: Any) -> Iterator[Call]:
    import whyformer as wf

    url = stage.server.url
    yield from with_nonsense(
        "language", "CompletionServer", partial(wf.CompletionServer, url), wf.CompletionServer.__init__,
        ("self", "url", "model", "key", "start"),
    )  # fmt: skip
    yield from with_nonsense(
        "language", "ChatServer", partial(wf.ChatServer, url), wf.ChatServer.__init__,
        ("self", "url", "model", "key", "system"),
    )  # fmt: skip
    yield from _calls("CompletionServer", wf.CompletionServer, "url", NO_URL)
    for parameter, values in {
        "model": (3, NAN, True, [], {}, b"x", Thing()),
        "key": ("", " x", "a\nb", "ü", "\0", 3, NAN, True, [], b"x", Thing()),
        "start": ("", 3, NAN, None, True, [], b"x", Thing()),
        "retries": (-1, 101),
        "parallel": (1025,),
        "timeout": (0, 0.0),
    }.items():
        yield from _calls("CompletionServer", partial(wf.CompletionServer, url), parameter, values)
    server = wf.CompletionServer(url, "tiny")
    yield from _calls("CompletionServer.generate", partial(server.generate, "a"), "max_tokens", NONSENSE["count"])
    yield from _calls("CompletionServer.generate", server.generate, "prompt", (3, None, NAN, True, [], b"x", Thing()))
    gone = wf.CompletionServer("http://127.0.0.1:1", retries=0)
    yield Call("language", "explain(server that is not there)", partial(wf.explain, gone, ("a b", " c")))
    pair = ("The capital of France is", " Paris")
    asked = partial(wf.explain, server, pair, method="occlusion")
    yield from _calls("explain server", asked, "generate", (2,))
    yield from _calls("explain server", asked, "one_pass", (True,))
    yield from _calls("explain server", asked, "first_token", (False,))
    yield from _calls("explain server", asked, "units", tuple(v for v in NO_RANGES if v != ""))
    yield from _calls("explain server", asked, "target", ("nonsense", 1, -1, 1.5, True, NAN, (0, 1), [0, 0], Thing()))
    yield from _calls("explain server", asked, "choices", NO_CHOICES)
    yield from _calls("explain server", asked, "span", tuple(v for v in NO_SPAN if v is not None))
    yield from _calls("explain server", asked, "processor", (stage.words, 3, "x", Thing()))
    yield from _calls("explain server", asked, "attention_at", NONSENSE["map"])
    yield from _calls("explain server", asked, "replace", (3, "", True, NAN, "mask", "pad", [], Thing()))
    yield from _calls("explain server", asked, "method", ("generic_attention", "saliency", "attn_lrp", "value_zeroing"))
    yield from _calls(
        "explain server", partial(wf.explain, server, "a b"), "generate", (0, -1, 1.5, "2", True, NAN, {})
    )
    for value in NO_PAIR:
        yield Call("language", f"explain(server, {shown(value)})", partial(wf.explain, server, value))
    for name, reply in {
        "nan": [NAN], "inf": [-INF], "positive": [2.0], "none": [], "two": [-1.0, -1.0], "text": ["-1.0x"],
        "no list": 3, "None": None, "nested": [[-1.0, -2.0]], "objects": [Thing()], "complex": [1j],
    }.items():  # fmt: skip
        function = partial(_replying, reply)
        yield Call("language", f"explain(function that says {name})", partial(wf.explain, function, pair))
    yield Call("language", "explain(function that raises)", partial(wf.explain, _raising, pair))
    yield Call("language", "explain(function of three)", partial(wf.explain, lambda a, b, c: [-1.0], pair))


def _replying(reply: Any, prompts: Sequence[str], answers: Sequence[str]) -> Any:
    return reply * len(prompts) if isinstance(reply, list) and len(reply) == 1 else reply


def _raising(prompts: Sequence[str], answers: Sequence[str]) -> list[float]:
    raise KeyError("nothing is here")


def _trained(stage: Any) -> Iterator[Call]:
    import whyformer as wf

    texts, labels = stage.texts * 2, [0, 1] * 5

    def trained(model: Any = stage.bert, inputs: Any = texts, labels: Any = labels, **how: Any) -> Any:
        brief = {"processor": stage.tokenizer, "epochs": 1, "guide_epochs": 1, "lambdas": (0.1,)}
        return wf.retrained_attention(model, inputs, labels, **(brief | how))

    skip = ("model", "inputs", "labels", "processor", "lambdas", "validation")
    yield from with_nonsense("language", "retrained_attention", trained, wf.retrained_attention, skip)
    for parameter, values in {
        "lambdas": ("nonsense", 3, NAN, True, None, {}, [], (), [-1], [NAN], [INF], [None], ["a"], [[1]], [True],
                    Thing()),
        "validation": (0, 1, 0.95, -0.1, NAN, "0.2", None, True, [], (), (texts,), (texts, labels, 3), (texts, [0]),
                       (texts, None), ([], []), ("a", 0), (texts, ["nonsense"] * 10), (3, 3), {}, Thing()),
        "labels": (None, 3, NAN, "positive", [], [0], [0] * 10, [0, 9] * 5, [0, -9] * 5, [0, NAN] * 5, [0, 1.5] * 5,
                   [0, None] * 5, [0, "nonsense"] * 5, [[0, 1]] * 10, {}, Thing(), [0, True] * 5),
        "inputs": (None, 3, NAN, "i like it", [], texts[:9], [*texts[:9], 3], [*texts[:9], ""], {}, Thing(), True),
        "model": (None, 3, "bert", Thing(), [], thing, stage.vit, stage.writer, stage.table_model),
        "processor": (None, 3, "bert", Thing(), stage.processor),
    }.items():  # fmt: skip
        yield from _calls("retrained_attention", trained, parameter, values)
