"""Citations against known sources: precision, recall and F1 by method, beside ContextCite and AT2."""
