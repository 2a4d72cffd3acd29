"""Draw views on a terminal, with or without colour.

``terminal_page.py`` the page · ``blocks.py`` text, pictures, matrices, tables and curves.
"""
