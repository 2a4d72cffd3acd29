"""Slow, paper-literal twins of the checks."""
