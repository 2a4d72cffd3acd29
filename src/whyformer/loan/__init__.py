"""What a loan of a model rests on: whose turn it is, and what the model was like."""
