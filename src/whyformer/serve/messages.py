"""Messages as schemas: what a client may ask, with the limits of each field, and what the server replies."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi.responses import Response
from pydantic import (
    AliasChoices,
    BaseModel,
    ConfigDict,
    Field,
    StrictBool,
    StrictFloat,
    StrictInt,
    StrictStr,
    create_model,
    model_validator,
)

# What a client may ask: every field with its limits, checked before anything is done.

LONGEST_TEXT = 20_000  # characters
LARGEST_NUMBER = 10_000  # of an option: more steps or samples would keep a model busy for hours
Name = Annotated[str, Field(min_length=1, max_length=200)]
Identity = Annotated[str, Field(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
Number = Annotated[StrictInt, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER)]
Fraction = Annotated[StrictFloat, Field(ge=-LARGEST_NUMBER, le=LARGEST_NUMBER, allow_inf_nan=False)]
Word = Annotated[StrictStr, Field(max_length=200)]
Plain = StrictBool | Number | Fraction | Word | None
Cell = StrictBool | StrictInt | Annotated[StrictFloat, Field(allow_inf_nan=False)] | Word | None
Class = Annotated[StrictInt, Field(ge=0, le=10**7)] | Annotated[StrictStr, Field(min_length=1, max_length=300)]
Share = Annotated[StrictFloat, Field(ge=0, le=1, allow_inf_nan=False)]  # above which a detector's objects count
Words = Annotated[str, Field(max_length=LONGEST_TEXT)]
Wait = Annotated[float, Field(ge=0, le=60)]


class Asked(BaseModel):
    """A request body: unknown fields and values of another type raise an error."""

    model_config = ConfigDict(extra="forbid", strict=True)


WAYS = ("text", "prompt", "row", "image", "sound", "sample")
TOGETHER = ({"image", "text"}, {"sample", "text"})  # a picture and what is asked about it


class Input(Asked):
    """A text (or two), a prompt, a row by column names, an uploaded picture or sound, a sample of the model's; a
    picture or sample with a text."""

    text: Words | None = None
    second: Words | None = None  # the other text of a pair
    prompt: Words | None = None
    row: Annotated[dict[Name, Cell], Field(min_length=1, max_length=2000)] | None = None
    image: Identity | None = None
    sound: Identity | None = None
    sample: Annotated[int, Field(ge=0, le=10_000)] | None = None
    erased: Annotated[list[Annotated[int, Field(ge=0, le=100_000)]], Field(max_length=10_000)] = []  # patches
    answer: Words | None = None  # of a model that writes, instead of its own
    chat: bool = False  # the prompt is a message, put as the tokenizer's template says

    @property
    def ways(self) -> set[str]:
        return {name for name in WAYS if getattr(self, name) is not None}

    @model_validator(mode="after")
    def _one(self) -> Input:
        if len(self.ways) != 1 and self.ways not in TOGETHER:
            raise ValueError(f"give one of {', '.join(WAYS[:-1])} and sample, or an image with a text")
        if self.second is not None and self.ways != {"text"}:
            raise ValueError("second is for a pair of texts: give the first as text")
        if self.erased and not self.ways & {"image", "sample"}:
            raise ValueError("erased is for patches of an image")
        return self


class Predict(Asked):
    model: Name
    input: Input
    target: Share | None = None  # of a detector: above which probability its objects count


class Explain(Asked):
    model: Name
    input: Input
    method: Name | Annotated[list[Name], Field(min_length=1, max_length=40)] | None = None
    target: Class | Share | None = None
    versus: Class | None = None
    options: Annotated[dict[Name, Plain | Annotated[list[Plain], Field(max_length=100)]], Field(max_length=20)] = {}
    scalar: Literal["logit", "centred", "probability", "log_odds", "cosine"] = "centred"
    units: Literal["token", "word", "sentence"] = "token"
    generate: Annotated[int, Field(ge=1, le=256)] | None = None
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0
    edited_from: Identity | None = None
    wait: Wait = 0.0  # seconds for which the answer itself is waited for; then it is a job

    @property
    def methods(self) -> list[str | None]:
        return [*self.method] if isinstance(self.method, list) else [self.method]

    @property
    def aim(self) -> Any:
        """Return the target in the form that ``explain`` takes."""
        return self.target if self.versus is None else (self.target, self.versus)


class Compare(Asked):
    """Methods on some inputs, measured; or results that are there already, side by side."""

    model: Name | None = None
    inputs: Annotated[list[Input], Field(max_length=50)] = []
    methods: Annotated[
        Annotated[list[Name], Field(min_length=1, max_length=40)] | None,
        Field(validation_alias=AliasChoices("method", "methods")),  # "methods" is the old name
    ] = None
    results: Annotated[list[Identity], Field(max_length=12)] = []
    seed: Annotated[int, Field(ge=0, le=2**31)] = 0
    wait: Wait = 0.0

    @model_validator(mode="after")
    def _some(self) -> Compare:
        if bool(self.results) == bool(self.inputs):
            raise ValueError("give inputs to compare methods on, or results to show side by side")
        if self.inputs and self.model is None:
            raise ValueError("name the model that the inputs are for")
        return self


class About(Asked):
    """Further analysis of a result: its heads, or its evaluation."""

    result: Identity
    item: Annotated[int, Field(ge=0, le=1000)] = 0  # of several objects, which
    thorough: bool = False  # all checks, the slow ones too
    again: bool = False  # even where it is known
    wait: Wait = 0.0


class Load(Asked):
    name: Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,95}(/[A-Za-z0-9][A-Za-z0-9_.-]{0,95})?$")]


# Replies, for openapi.json: the fields that each JSON object has at least, and kinds of files.

Kind = Literal["explanation", "comparison", "trust", "heads"]
State = Literal["waiting", "running", "done", "failed", "cancelled"]


def _reply(name: str, /, **fields: Any) -> type[BaseModel]:
    required: Any = {field: (kind, ...) for field, kind in fields.items()}
    return create_model(name, __config__=ConfigDict(extra="allow"), **required)


FAILURE = _reply("Failure", error=str)
# ``answer`` of a job that is done is the id of a result; of a prediction, what POST /api/predict returns.
WORK = {"job": str, "model": str, "what": str, "state": State, "done": int, "of": int, "ahead": int}
JOB = _reply("Job", **WORK, error=str | None, answer=str | dict[str, Any] | None)
JOBS = _reply("Jobs", jobs=list[JOB])  # type: ignore[valid-type]
NAMES = {"name": str, "kind": str, "takes": list[str], "labels": list[str], "indices": list[int], "default": str}
MODEL = _reply("Model", **NAMES, trouble=str | None)
MODELS = _reply("Models", models=list[MODEL], may_load=bool)  # type: ignore[valid-type]
METHOD = _reply("Method", name=str, applies=bool | None, reason=str | None)
METHODS = _reply("Methods", model=str, methods=list[METHOD], trouble=str | None)  # type: ignore[valid-type]
IMAGE = _reply("UploadedImage", image=str, width=int, height=int)
SOUND = _reply("UploadedSound", sound=str, seconds=float, rate=int)
CHOICE = _reply("Choice", label=str, index=int | None, probability=float | None)
PREDICTION = _reply("Prediction", prediction=CHOICE, units=list[str], scalar=str, value=float)
FACTS = {"id": str, "made": float, "model": str, "kind": Kind, "method": str, "title": str, "said": str, "link": str}
ENTRY = _reply("ResultEntry", **FACTS)
RESULTS = _reply("Results", results=list[ENTRY])  # type: ignore[valid-type]
DRAWN = {"question": dict[str, Any], "failures": dict[str, str], "views": list[dict[str, Any]], "html": str | None}
RESULT = _reply("Result", **FACTS, **DRAWN)
DELETED = _reply("Deleted", deleted=str)
PIN = _reply("Pin", id=str, pinned=bool)

ERRORS = {  # of every route
    400: "HTTP that is not as it should be",
    401: "A token is required",
    403: "A request of another page, or for another host",
    404: "Unknown, or deleted",
    405: "Another HTTP method is allowed",
    409: "The job was cancelled",
    413: "Too large",
    422: "The request cannot be carried out; error has the reason",
    429: "Too many jobs or uploads at once; retry-after has the seconds",
}
FAILURES: dict[int | str, dict[str, Any]] = {
    status: {"model": FAILURE, "description": words} for status, words in ERRORS.items()
}
QUEUED: dict[str, Any] = {
    "response_model": RESULT,
    "responses": {202: {"model": JOB, "description": "Not ready within wait: a job"}},
}
BINARY = {"schema": {"type": "string", "format": "binary"}}
UPLOAD = {"requestBody": {"required": True, "content": {"application/octet-stream": BINARY}}}


def file(*kinds: str) -> dict[str, Any]:
    """Describe a route that replies with a file of one of these media types."""
    content = dict.fromkeys(kinds, BINARY)
    return {"response_class": Response, "responses": {200: {"content": content, "description": "The file"}}}
