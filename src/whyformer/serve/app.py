"""The routes of the server, its page and uploads, and how it is started and stopped."""

from __future__ import annotations

import asyncio
import json
import os
import pathlib
import socket
import sys
import threading
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from types import FrameType
from typing import Annotated, Any, TypeVar

from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from fastapi.routing import APIRoute
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as AnyHTTPException

from whyformer.errors import BadInput, WhyformerError, require
from whyformer.registry import SUFFIX, get_method
from whyformer.serve import messages, safety
from whyformer.serve.drawn import FORMATS, drawn, exported, subject_of
from whyformer.serve.explaining import compared, explained, heads, methods_compared, predicted, side_by_side_of
from whyformer.serve.jobs import ENDS, Busy, Job, Jobs, Work
from whyformer.serve.models import PICTURES, Models, ServedModel
from whyformer.serve.store import Store
from whyformer.serve.trust import trust, trust_units
from whyformer.version import __version__
from whyformer.views.html.html_page import STYLE
from whyformer.views.html.live import drawing

HERE = pathlib.Path(__file__).parent
# The page that the browser opens. Its script, made by frontend/build.py, draws everything.
PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>whyformer</title>
<link rel="icon" href="data:,">
<link rel="stylesheet" href="/static/style.css">
</head>
<body class="wf-body">
<div class="wf" id="serve"><noscript>This page needs JavaScript. Without it, use the HTTP API: \
POST /api/explain.</noscript></div>
<script type="module" src="/static/serve.js"></script>
</body>
</html>
"""
HEARTBEAT = 15.0  # seconds: proxies close what is silent for longer
PREDICTED_WITHIN = 60.0
LONGEST_SIDE = 1024  # of a picture that a page shows
Identity = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,40}$")]
UPLOAD, RESULT = "unknown upload.", "unknown result."  # in answers with 404
JOB = "unknown job, or it ended long ago."
Item = TypeVar("Item")


@dataclass(eq=False)
class Served:
    """The state that all routes share."""

    models: Models
    store: Store
    jobs: Jobs
    host: str = "127.0.0.1"
    token: str | None = None


def existing(value: Item | None, words: str) -> Item:
    """Return the value, or answer 404 if there is none."""
    if value is None:
        raise HTTPException(404, words)
    return value


def _add_uploads(app: FastAPI, models: Models, store: Store) -> None:
    """Serve images and sounds that come from a client or belong to a model; files are re-encoded."""

    @app.get("/api/samples", **messages.file("image/png", "audio/wav"))
    def sample(
        model: Annotated[str, Query(max_length=200)], number: Annotated[int, Query(ge=0, le=10_000)]
    ) -> Response:
        chosen = models[model]
        if chosen.kind not in (*PICTURES, "sound") or number >= len(chosen.samples):
            raise HTTPException(404, "unknown image or sound.")
        one = chosen.samples[number]
        if chosen.kind == "sound":
            return Response(safety.written_sound(*one), media_type="audio/wav")
        return Response(_png(one[0] if isinstance(one, tuple) else one), media_type="image/png")

    @app.post("/api/images", response_model=messages.IMAGE, openapi_extra=messages.UPLOAD)
    async def upload_image(request: Request) -> Response:
        data = await request.body()
        image = await run_in_threadpool(safety.opened_picture, data)
        identity = await run_in_threadpool(store.add_upload, data)
        return JSONResponse({"image": identity, "width": image.width, "height": image.height})

    @app.post("/api/sounds", response_model=messages.SOUND, openapi_extra=messages.UPLOAD)
    async def upload_sound(request: Request) -> Response:
        data = await request.body()
        samples, rate = await run_in_threadpool(safety.opened_sound, data)
        identity = await run_in_threadpool(store.add_upload, data)
        return JSONResponse({"sound": identity, "seconds": len(samples) / rate, "rate": rate})

    @app.get("/api/images/{identity}", **messages.file("image/png"))
    def picture(identity: Identity) -> Response:
        return Response(_png(safety.opened_picture(existing(store.upload(identity), UPLOAD))), media_type="image/png")

    @app.get("/api/sounds/{identity}", **messages.file("audio/wav"))
    def sound(identity: Identity) -> Response:
        return Response(
            safety.written_sound(*safety.opened_sound(existing(store.upload(identity), UPLOAD))), media_type="audio/wav"
        )


def _png(image: Any) -> bytes:
    written, small = BytesIO(), image.copy()
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    small.save(written, "PNG")
    return written.getvalue()


def answer(data: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """Return JSON in ASCII, where lone surrogates, which inputs may hold, are escaped."""
    return Response(json.dumps(data, allow_nan=False), status, headers, "application/json")


def application(served: Served) -> Any:
    """Return the ASGI application behind its guard. It tries out methods while idle, and stops its jobs at the end."""

    @asynccontextmanager
    async def life(_: FastAPI) -> AsyncIterator[None]:
        for model in served.models.by_name.values():
            rehearse(served, model)
        yield
        await run_in_threadpool(served.jobs.close)
        served.store.close()

    app = FastAPI(
        title="whyformer",
        version=__version__,
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        generate_unique_id_function=lambda route: route.name,  # names of a generated client's functions
        responses=messages.FAILURES,
        lifespan=life,
    )
    _add_words(app)
    _add_pages(app)
    _add_models(app, served)
    _add_uploads(app, served.models, served.store)
    _add_questions(app, served)
    _add_jobs(app, served)
    _add_results(app, served)
    return safety.RequestGuard(app, served.host, served.token)


def _add_words(app: FastAPI) -> None:
    """Return errors as messages without the request's content."""

    @app.exception_handler(RequestValidationError)
    async def misfit(_: Request, error: RequestValidationError) -> Response:
        words = []
        for each in error.errors()[:5]:
            at = ".".join(map(str, each["loc"][1:])) if each["type"] != "json_invalid" else ""
            words.append(f"{at or each['loc'][0]}: {each['msg']}")  # of an empty body, "body"
        return answer({"error": "; ".join(words)[:1000]}, 422)

    @app.exception_handler(Busy)
    async def busy(_: Request, error: Busy) -> Response:
        return answer({"error": str(error)}, 429, {"retry-after": "2"})

    @app.exception_handler(WhyformerError)
    async def refused(_: Request, error: WhyformerError) -> Response:
        return answer({"error": str(error)}, 422)

    @app.exception_handler(AnyHTTPException)
    async def other(request: Request, error: AnyHTTPException) -> Response:
        headers = dict(error.headers or {})
        if error.status_code == 405:  # each route of an address knows its own methods only
            at = [route for route in app.routes if isinstance(route, APIRoute)]
            here = [route for route in at if route.path_regex.match(request.url.path)]
            headers["Allow"] = ", ".join(sorted({name for route in here for name in route.methods or ()}))
        return answer({"error": str(error.detail)}, error.status_code, headers)


def _add_pages(app: FastAPI) -> None:
    script = drawing() + (HERE / "serve.js").read_text(encoding="utf-8")
    style = STYLE + (HERE / "serve.css").read_text(encoding="utf-8")

    @app.get("/", **messages.file("text/html"))
    def page() -> Response:
        return Response(PAGE, media_type="text/html; charset=utf-8")

    @app.get("/r/{identity}", **messages.file("text/html"))
    def linked(identity: Identity) -> Response:
        """The page, which opens the result that its address names."""
        return page()

    @app.get("/static/serve.js", include_in_schema=False)
    def page_script() -> Response:
        return Response(script, media_type="text/javascript; charset=utf-8")

    @app.get("/static/style.css", include_in_schema=False)
    def page_style() -> Response:
        return Response(style, media_type="text/css; charset=utf-8")


def rehearse(served: Served, model: ServedModel) -> Job:
    """Queue, at the lowest priority, a trial of all methods on a model."""
    return served.jobs.add(model.name, "rehearsal", model.rehearsal, len(model.methods()), "idle")


def _add_models(app: FastAPI, served: Served) -> None:
    @app.get("/api/models", response_model=messages.MODELS)
    def models() -> Response:
        listed = [model.described() for model in list(served.models.by_name.values())]
        return answer({"models": listed, "may_load": served.models.loader is not None})

    @app.post("/api/models", response_model=messages.MODEL)
    async def load(asked: messages.Load) -> Response:
        known = asked.name in served.models.by_name
        model = await run_in_threadpool(served.models.load, asked.name)
        if not known:
            rehearse(served, model)
        return answer(model.described())

    @app.get("/api/methods", response_model=messages.METHODS)
    async def methods(
        model: Annotated[str, Query(max_length=200)], wait: Annotated[float, Query(ge=0, le=60)] = 0
    ) -> Response:
        chosen = served.models[model]
        until = asyncio.get_running_loop().time() + wait
        while chosen.troubles is None and not served.jobs.closed and asyncio.get_running_loop().time() < until:
            await asyncio.sleep(0.05)
        return answer({"model": model, "methods": chosen.methods(), "trouble": chosen.trouble or None})


async def _queued(served: Served, model: ServedModel, what: str, work: Work, units: int, wait: float) -> Response:
    """Return the answer if it is ready in time, else the job."""
    job = served.jobs.add(model.name, what, work, units)
    if not wait or not await job.ended(wait):
        return answer(served.jobs.told(job), 202, {"location": f"/api/jobs/{job.id}"})
    return await _shown(served, job.answer) if job.state == "done" else _failed(job)


async def _shown(served: Served, identity: str) -> Response:
    entry = existing(await run_in_threadpool(served.store.get, identity), "the result was deleted.")
    return answer(await run_in_threadpool(drawn, entry))


def _failed(job: Job) -> Response:
    return answer({"error": job.error, "job": job.id}, 409 if job.state == "cancelled" else 422)


def _named(*values: Any) -> Any:
    """The first value; raise for files of learned methods: a client does not choose what is read from this disk."""
    if any(isinstance(value, str) and SUFFIX in value for value in values):
        raise BadInput("files of learned methods are named when the server is started: whyformer serve --learned FILE.")
    return values[0] if values else None


def _add_questions(app: FastAPI, served: Served) -> None:
    @app.post("/api/predict", response_model=messages.PREDICTION)
    async def predict(asked: messages.Predict) -> Response:
        model = served.models[asked.model]
        job = served.jobs.add(model.name, "predict", partial(predicted, model, asked, served.store), 1, "quick")
        if not await job.ended(PREDICTED_WITHIN):
            served.jobs.cancel(job)
            raise Busy("the model is busy with a long job: try again in a moment.")
        return answer(job.answer) if job.state == "done" else _failed(job)

    @app.post("/api/explain", **messages.QUEUED)
    async def explain(asked: messages.Explain) -> Response:
        model = served.models[asked.model]
        for method in asked.methods:
            if method is not None:
                get_method(_named(method))
        _named(*asked.options.values())
        work = partial(explained, model, asked, served.store)
        return await _queued(served, model, "explain", work, len(asked.methods), asked.wait)

    @app.post("/api/compare", **messages.QUEUED)
    async def compare(asked: messages.Compare) -> Response:
        if asked.results:
            return await _shown(served, await run_in_threadpool(side_by_side_of, asked, served.store))
        model = served.models[asked.model or ""]
        for method in asked.methods or []:
            get_method(_named(method))
        units = len(methods_compared(model, asked)) + 1
        work = partial(compared, model, asked, served.store)
        return await _queued(served, model, "compare", work, units, asked.wait)

    @app.post("/api/heads", **messages.QUEUED)
    async def heads_of(asked: messages.About) -> Response:
        return await about(asked, "heads")

    @app.post("/api/trust", **messages.QUEUED)
    async def trust_in(asked: messages.About) -> Response:
        return await about(asked, "trust")

    async def about(asked: messages.About, kind: str) -> Response:
        for identity in [] if asked.again else await run_in_threadpool(served.store.about, asked.result, kind):
            entry = await run_in_threadpool(served.store.get, identity)
            if entry is None or entry.question.get("item", 0) != asked.item:
                continue
            if entry.results[0].get("thorough", False) or not asked.thorough:  # an answer with at least these checks
                return answer(await run_in_threadpool(drawn, entry))
        subject = await run_in_threadpool(subject_of, served.store, asked.result, asked.item)
        model, identity = served.models[subject.entry.model], subject.entry.id
        if kind == "heads":
            work = partial(heads, model, identity, served.store, asked.item)
            return await _queued(served, model, kind, work, 2, asked.wait)
        work = partial(trust, model, identity, served.store, asked.thorough, asked.item)
        return await _queued(served, model, kind, work, trust_units(model, subject, asked.thorough), asked.wait)


def _add_jobs(app: FastAPI, served: Served) -> None:
    @app.get("/api/jobs", response_model=messages.JOBS)
    def jobs() -> Response:
        return answer({"jobs": served.jobs.listed()})

    @app.get("/api/jobs/{identity}", response_model=messages.JOB)
    def told(identity: Identity) -> Response:
        return answer(served.jobs.told(existing(served.jobs.get(identity), JOB)))

    @app.delete("/api/jobs/{identity}", response_model=messages.JOB)
    def cancel(identity: Identity) -> Response:
        job = existing(served.jobs.get(identity), JOB)
        served.jobs.cancel(job)
        return answer(served.jobs.told(job))

    @app.get("/api/jobs/{identity}/events", **messages.file("text/event-stream"))
    def events(identity: Identity) -> Response:
        job = existing(served.jobs.get(identity), JOB)
        return StreamingResponse(_events(served, job), media_type="text/event-stream")


async def _events(served: Served, job: Job) -> AsyncIterator[str]:
    """Stream the state of a job until it ends. The job goes on if the client leaves."""
    event = job.listen()
    try:
        while True:
            over = job.state in ENDS
            told = json.dumps(served.jobs.told(job), allow_nan=False)
            yield f"event: {job.state if over else 'progress'}\ndata: {told}\n\n"
            if over:
                return
            while not event.is_set():
                with suppress(asyncio.TimeoutError):
                    await asyncio.wait_for(event.wait(), HEARTBEAT)
                if not event.is_set():
                    yield ": still here\n\n"
            event.clear()
    finally:
        job.leave(event)


def _add_results(app: FastAPI, served: Served) -> None:
    @app.get("/api/results", response_model=messages.RESULTS)
    def results(
        search: Annotated[str, Query(max_length=300)] = "",
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        before: Annotated[float | None, Query(ge=0, le=1e12, allow_inf_nan=False)] = None,
    ) -> Response:
        return answer({"results": served.store.listed(search, limit, before)})

    @app.get("/api/results/{identity}", response_model=messages.RESULT)
    def result(identity: Identity) -> Response:
        return answer(drawn(existing(served.store.get(identity), RESULT)))

    @app.delete("/api/results/{identity}", response_model=messages.DELETED)
    def delete(identity: Identity) -> Response:
        if not served.store.delete(identity):
            raise HTTPException(404, RESULT)
        return answer({"deleted": identity})

    @app.put("/api/results/{identity}/pin", response_model=messages.PIN)
    def pin(identity: Identity, pinned: bool = True) -> Response:
        """Keep a result when the oldest ones are deleted to make room, or no longer."""
        if not served.store.pin(identity, pinned):
            raise HTTPException(404, RESULT)
        return answer({"id": identity, "pinned": pinned})

    @app.get("/api/results/{identity}/export", **messages.file(*FORMATS.values()))
    def export(identity: Identity, form: Annotated[str, Query(alias="format", max_length=20)] = "html") -> Response:
        data = exported(existing(served.store.get(identity), RESULT), form)
        named = {"content-disposition": f'attachment; filename="whyformer-{identity}.{form}"'}
        return Response(data, headers=named, media_type=FORMATS[form])


# uvicorn with the application: an address, a token where others can reach it, and an end on Ctrl-C.

GRACE = 2  # seconds for answers that are on their way when the server closes: containers are killed after ten


def address(host: str, port: int, token: str | None) -> str:
    """Return the address to open."""
    name = "localhost" if host in ("127.0.0.1", "0.0.0.0", "::1", "::") else host
    name = f"[{name}]" if ":" in name else name
    return f"http://{name}:{port}/" + (f"?token={token}" if token else "")


def bound(host: str, port: int) -> socket.socket:
    """A socket at this address; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind((host, port))
        made.listen(128)  # from now on nobody else can
    except (OSError, OverflowError) as error:
        made.close()
        raise BadInput(f"host {host}, port {port} cannot be used ({error}): use another --host or --port.") from error
    return made


def run(served: Served, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; ``say`` is called with the address."""
    with bound(served.host, port) as listening:
        say(address(served.host, listening.getsockname()[1], served.token))
        if not safety.is_loopback(served.host):
            say(
                "From another machine, use this machine's name as the host. Everybody with the address can use the "
                "models and read all results. The connection is not encrypted."
            )
        serve_until_stopped(application(served), listening, served.jobs)


def serve_until_stopped(app: Any, listening: socket.socket, jobs: Jobs) -> None:
    """Run an application until Ctrl-C; its jobs are cancelled then."""
    require("uvicorn", why="the server")
    import uvicorn

    class Server(uvicorn.Server):
        def handle_exit(self, sig: int, frame: FrameType | None) -> None:
            """Cancel jobs first: open event streams would keep the server from closing."""
            threading.Thread(target=jobs.close, daemon=True).start()
            super().handle_exit(sig, frame)

    config = uvicorn.Config(
        app,
        http=safety.BoundedProtocol,
        ws="none",
        log_level="warning",
        access_log=False,  # addresses may hold the token
        timeout_graceful_shutdown=GRACE,
        limit_concurrency=2 * safety.MOST_CONNECTIONS,  # requests whose clients left count as well
        proxy_headers=False,
        server_header=False,
    )
    try:
        Server(config).run(sockets=[listening])
    except KeyboardInterrupt:  # raised again by uvicorn, once everything is closed
        pass
    if jobs.at_work:  # taking the interpreter down under a running model would crash it; everything is stored
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(0)
