"""Slow, paper-literal twins: one per method, plain loops, float64, readable next to the paper."""
