"""whyformer serve: models behind a web page. ``app.py`` has the routes; docs/guide/serve.md is the guide."""

from __future__ import annotations

from whyformer.errors import require

require("fastapi", "uvicorn", why="the server")
