"""whyformer serve: models behind a page in the browser. ``app.py`` has the routes, docs/guide/serve.md the words."""
