"""Refusals without advice, unless a test asks for it (tests/support/advice.py)."""

from tests.support.advice import advised, unadvised

__all__ = ["advised", "unadvised"]
