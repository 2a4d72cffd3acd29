"""The directive ``first-look``: the cells of the example notebook, with what was stored of their outputs."""

from __future__ import annotations

import re
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from docs import notebook


class FirstLook(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(notebook.NOTEBOOK))
        self.env.note_dependency(str(notebook.STORED))
        store = notebook.stored()
        made: list[nodes.Node] = []
        here: list[nodes.Node] | nodes.section = made  # where what follows belongs: the page, or a section of it
        title, count = "A first look", 0
        for cell in notebook.cells():
            if cell["kind"] == "markdown":
                heading, text = headed(cell["text"])
                if heading:
                    title = heading
                    here = nodes.section("", nodes.title(title, title), ids=[nodes.make_id(title)], names=[title])
                    made.append(here)
                here += self.parse_text_to_nodes(text)
            else:
                count += 1
                here += self.shown(cell["text"], store, f"{title}, cell {count}")  # frames have names of their own
        return made

    def shown(self, code: str, store: dict[str, Any], title: str) -> list[nodes.Node]:
        block = nodes.literal_block(code, code, language="python")
        output = store["shown"].get(notebook.digest(code), {})
        if "page" in output:
            return [block, nodes.raw("", notebook.frame(output["page"], store["shared"], title), format="html")]
        if "picture" in output:
            image = f'<img alt="{title}: the figure" src="data:image/png;base64,{output["picture"]}">'
            return [block, nodes.raw("", image, format="html")]
        return [block]


def headed(text: str) -> tuple[str, str]:
    """A cell's heading, if it begins with one, and the rest; the page has a title of its own."""
    match = re.match(r"(#+) (.+)\n?", text)
    if match is None:
        return "", text
    return (match.group(2) if match.group(1) == "##" else ""), text[match.end() :]


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("first-look", FirstLook)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
