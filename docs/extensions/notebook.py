"""The directive ``first-look``: the cells of the example notebook, with what was stored of their outputs."""

from __future__ import annotations

from typing import Any

from docutils import nodes
from sphinx.application import Sphinx
from sphinx.util.docutils import SphinxDirective

from docs import notebook


class FirstLook(SphinxDirective):
    def run(self) -> list[nodes.Node]:
        self.env.note_dependency(str(notebook.NOTEBOOK))
        self.env.note_dependency(str(notebook.STORED))
        kept = notebook.stored()
        made: list[nodes.Node] = []
        title = "A first look"
        for cell in notebook.cells():
            text = cell["text"]
            if cell["kind"] == "markdown":
                if text.startswith("# "):  # the page has a title of its own
                    text = text.partition("\n")[2]
                title = next((line.strip("# ") for line in text.splitlines() if line.startswith("## ")), title)
                made += self.parse_text_to_nodes(text, allow_section_headings=True)
                continue
            made.append(nodes.literal_block(text, text, language="python"))
            shown = kept["shown"].get(notebook.digest(text), {})
            if "page" in shown:
                made.append(nodes.raw("", notebook.frame(shown["page"], kept["shared"], title), format="html"))
            elif "picture" in shown:
                image = f'<img alt="{title}: the figure" src="data:image/png;base64,{shown["picture"]}">'
                made.append(nodes.raw("", image, format="html"))
        return nested(made)


def nested(made: list[nodes.Node]) -> list[nodes.Node]:
    """What follows a heading belongs into its section."""
    out: list[nodes.Node] = []
    section: nodes.section | None = None
    for node in made:
        if isinstance(node, nodes.section):
            section = node
            out.append(node)
        elif section is not None:
            section += node
        else:
            out.append(node)
    return out


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_directive("first-look", FirstLook)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
