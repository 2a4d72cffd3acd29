"""Pictures and sounds that come from a client or belong to a model, in and out. What is handed out is written anew."""

from __future__ import annotations

from io import BytesIO
from typing import Annotated, Any

from fastapi import FastAPI, HTTPException, Path, Query, Request
from fastapi.responses import JSONResponse, Response
from starlette.concurrency import run_in_threadpool

from whyformer.serve.models import Models
from whyformer.serve.safety import opened_picture, opened_sound, written_sound
from whyformer.serve.samples import PICTURES
from whyformer.serve.store import Store

LONGEST_SIDE = 1024  # of a picture that a page shows
Identity = Annotated[str, Path(pattern=r"^[A-Za-z0-9_-]{1,40}$")]


def add_uploads(app: FastAPI, models: Models, store: Store) -> None:
    @app.get("/api/samples")
    def sample(
        model: Annotated[str, Query(max_length=200)], number: Annotated[int, Query(ge=0, le=10_000)]
    ) -> Response:
        chosen = models[model]
        if chosen.kind not in (*PICTURES, "sound") or number >= len(chosen.samples):
            raise HTTPException(404, "there is no such picture or sound.")
        one = chosen.samples[number]
        if chosen.kind == "sound":
            return Response(written_sound(*one), media_type="audio/wav")
        return Response(_png(one[0] if isinstance(one, tuple) else one), media_type="image/png")

    @app.post("/api/images")
    async def upload_image(request: Request) -> Response:
        data = await request.body()
        image = await run_in_threadpool(opened_picture, data)
        identity = await run_in_threadpool(store.add_upload, data)
        return JSONResponse({"image": identity, "width": image.width, "height": image.height})

    @app.post("/api/sounds")
    async def upload_sound(request: Request) -> Response:
        data = await request.body()
        samples, rate = await run_in_threadpool(opened_sound, data)
        identity = await run_in_threadpool(store.add_upload, data)
        return JSONResponse({"sound": identity, "seconds": len(samples) / rate, "rate": rate})

    @app.get("/api/images/{identity}")
    def picture(identity: Identity) -> Response:
        return Response(_png(opened_picture(uploaded(identity))), media_type="image/png")

    @app.get("/api/sounds/{identity}")
    def sound(identity: Identity) -> Response:
        return Response(written_sound(*opened_sound(uploaded(identity))), media_type="audio/wav")

    def uploaded(identity: str) -> bytes:
        data = store.upload(identity)
        if data is None:
            raise HTTPException(404, "there is no such upload.")
        return data


def _png(image: Any) -> bytes:
    written, small = BytesIO(), image.copy()
    small.thumbnail((LONGEST_SIDE, LONGEST_SIDE))
    small.save(written, "PNG")
    return written.getvalue()
