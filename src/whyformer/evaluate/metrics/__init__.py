"""One metric per file; file name = registry name = test = docs row."""
