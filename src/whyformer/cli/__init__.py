"""The command line: commands of one subject share a file, and main.py lists them."""
