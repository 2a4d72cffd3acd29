"""The small trained models that whyformer's demo, examples and tests explain: files, and no code.

A folder each: sentiment, pets, textures, adult; MODEL_CARD.md in it says what it learned from and how well.
``whyformer.demo`` loads them.
"""

__version__ = "0.1.0"
