"""whyformer serve: models behind a page in the browser. ``app.py`` has the routes, docs/guide/serve.md the words."""

from __future__ import annotations

from whyformer.extras import require

require("fastapi", "uvicorn", why="the server")
