"""Settings of the documentation site: ``make docs`` builds it into build/site, ``make check`` with warnings as errors.

Nothing is fetched, neither when it is built nor when it is read: formulas become MathML, fonts and scripts are copied.
"""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT))

from whyformer.version import __version__  # noqa: E402

project = "whyformer"
author = "the whyformer authors"
copyright = "the whyformer authors"
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx_design",
    "sphinx_copybutton",
    "docs.extensions.math",
    "docs.extensions.links",
    "docs.extensions.docstrings",
    "docs.extensions.notebook",
]
root_doc = "index"
exclude_patterns = ["__pycache__", "templates", "images"]
nitpicky = True
# Bases from other packages: nothing is fetched to link to them.
nitpick_ignore_regex = [("py:.*", r"(?!whyformer).*"), ("py:.*", r"whyformer\.(result|brief|types|files|inputs)\..*")]

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence", "attrs_inline"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

autodoc_typehints = "none"  # names and defaults: annotations are for checkers
autodoc_member_order = "bysource"
autosummary_generate = True
add_module_names = False
python_maximum_signature_line_length = 88
python_display_short_literal_types = True

templates_path = ["templates"]
html_theme = "pydata_sphinx_theme"
html_title = "whyformer"
html_static_path = ["static"]
html_css_files = ["whyformer.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": "whyformer"},
    "icon_links": [
        {"name": "Source", "url": "https://github.com/whyformer/whyformer", "icon": "fa-brands fa-github"},
    ],
    "navbar_align": "left",
    "header_links_before_dropdown": 6,
    "show_toc_level": 2,
    "footer_start": ["copyright"],
    "footer_end": [],
    "secondary_sidebar_items": ["page-toc"],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}
html_sidebars = {"index": []}
copybutton_exclude = ".linenos, .gp, .go"
