"""Views on a terminal, in colour or without.

``page.py`` the page · ``runs.py`` highlighted text · ``blocks.py`` pictures and matrices · ``charts_terminal.py``
tables, curves and points.
"""
