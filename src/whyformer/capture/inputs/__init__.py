"""Where an input enters: embeddings, the first block's vectors, features, and what a graph keeps of them."""
