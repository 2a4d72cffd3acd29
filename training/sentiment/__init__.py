"""The small BERT sentiment classifier: a teacher, its labels, a student."""
