"""The command line: one file per command, named after it; main.py finds them."""
