"""What the server replies, for openapi.json: the fields that each JSON object has at least, and kinds of files."""

from __future__ import annotations

from typing import Any, Literal

from fastapi.responses import Response
from pydantic import BaseModel, ConfigDict, create_model

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
