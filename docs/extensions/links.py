"""Links of pages to files of the repository that are no pages: in the site they go to the repository's address."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx import addnodes
from sphinx.application import Sphinx
from sphinx.transforms import SphinxTransform

ROOT = Path(__file__).parents[2]
HOME = "https://github.com/whyformer/whyformer/blob/main/"


class RepositoryLinks(SphinxTransform):
    """``[training](../../training/README.md)`` works in a checkout, on the repository's pages, and here."""

    default_priority = 5

    def apply(self, **_: Any) -> None:
        folder = Path(self.document["source"]).parent
        kinds = (addnodes.pending_xref, addnodes.download_reference)
        for node in [n for n in self.document.findall() if isinstance(n, kinds)]:
            target = node.get("reftarget", "").partition("#")[0]
            path = next(
                (p for p in ((folder / f"{target}{end}").resolve() for end in ("", ".md")) if p.is_file()), None
            )
            if path is None or not target or not path.is_relative_to(ROOT):
                continue
            if path.is_relative_to(ROOT / "docs") and path.suffix == ".md":
                continue
            address = HOME + path.relative_to(ROOT).as_posix()
            link = nodes.reference("", "", *node.children, refuri=address, internal=False)
            node.replace_self(link)


def list_methods(app: Sphinx, page: str, source: list[str]) -> None:
    """The pages of methods belong under their table, which the repository shows as well: no directive stands in it."""
    if page == "methods/README":
        source[0] += "\n```{toctree}\n:hidden:\n:glob:\n\n*\n```\n"


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_transform(RepositoryLinks)
    app.connect("source-read", list_methods)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
