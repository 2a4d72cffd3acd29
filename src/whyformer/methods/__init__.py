"""One method per file; file name = registry name = test = docs page = command-line value."""
