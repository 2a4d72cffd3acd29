"""One file per output: terminal, html, figure. Each turns every mark of view.py into its own medium."""
