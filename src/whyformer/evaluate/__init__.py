"""Is the explanation to be believed? Metrics, comparison, choice of a method, checks."""
