"""whyformer proxy: pass chat completions on to a server, and add citations to them.

``chat.py`` reads requests and replies · ``citing.py`` computes the citations · ``telemetry.py`` writes spans ·
``relay.py`` connects them.
"""

from whyformer.extras import require

require("fastapi", "uvicorn", "httpx", why="whyformer proxy")
