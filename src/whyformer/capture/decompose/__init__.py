"""The decomposing role: hidden states carried as shares over the input positions."""
