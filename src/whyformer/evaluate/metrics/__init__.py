"""Metrics, a file for each question that they ask; function name = registry name = docs row."""
