"""Other libraries beside whyformer: the same models, inputs and questions, each library in its own environment."""
