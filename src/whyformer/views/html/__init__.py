"""Views as pages: whole without scripts, and with one script that can be asked.

``page.py`` the page · ``svg.py``, ``charts.py`` pictures, matrices, tables and curves · ``dialogue.py`` what a language
model read and said · ``live.py`` what the script draws from · ``style.py`` the style sheet. The scripts are made in
``frontend/``.
"""
