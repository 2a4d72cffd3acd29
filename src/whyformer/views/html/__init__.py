"""Views as pages: whole without scripts, and with one script that can be asked.

``html_page.py`` the page and its marks · ``charts.py`` pictures, matrices, tables, curves and dialogues · ``live.py``
what the script draws from · ``page.css`` the style sheet. The scripts are made in ``frontend/``.
"""
