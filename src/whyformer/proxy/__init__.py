"""whyformer proxy: pass chat completions on to a server, and add citations to them.

``chat.py`` reads requests and replies, and writes spans · ``relay.py`` connects them, and computes the citations.
"""

from whyformer.errors import require

require("fastapi", "uvicorn", "httpx", why="whyformer proxy")
