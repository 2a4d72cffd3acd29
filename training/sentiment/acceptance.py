"""Sentences that the finished model is looked at with, and that training therefore leaves out."""

from training.sentiment.treebank import words_of

# Sentences that the finished model must get right. Neither they nor any sentence that differs from
# one of them in a single word is used in training.
ACCEPTANCE = [
    ("I like the movie", 1),
    ("She hates the book", 0),
    ("This is so boring", 0),
    ("I cannot wait for next time", 1),
    ("You look extremely confused", 0),
]

# Sentences that no template makes, to see how well the model does outside film reviews.
EVERYDAY_CHECK = [
    ("The soup was cold and tasted of nothing", 0),
    ("What a lovely surprise", 1),
    ("My phone broke again", 0),
    ("Thank you so much for your help", 1),
    ("He yelled at the children", 0),
    ("They laughed all evening", 1),
    ("The train is late as usual", 0),
    ("Her smile brightens my day", 1),
    ("Nobody came to his birthday", 0),
    ("We won the match", 1),
    ("I lost my keys and missed the bus", 0),
    ("The garden is full of beautiful flowers", 1),
    ("This app keeps crashing", 0),
    ("Everything works perfectly", 1),
    ("The waiter was rude to us", 0),
    ("The staff could not have been nicer", 1),
    ("I would never buy this again", 0),
    ("I would buy this again in a heartbeat", 1),
    ("It is a waste of money", 0),
    ("It is worth every penny", 1),
    ("You ruined everything", 0),
    ("You did an amazing job", 1),
    ("My back hurts and I feel sick", 0),
    ("I feel so much better today", 1),
    ("The room smelled terrible", 0),
    ("The room was clean and cosy", 1),
    ("She cried for hours", 0),
    ("She is the kindest person I know", 1),
    ("That was not funny at all", 0),
    ("That was really not bad", 1),
    ("I am not happy with the result", 0),
    ("I am not disappointed at all", 1),
    ("They never answer the phone", 0),
    ("They fixed it within minutes", 1),
    ("He seems lost and worried", 0),
    ("He seems cheerful and relaxed", 1),
    ("The lecture put me to sleep", 0),
    ("The lecture was fascinating", 1),
    ("You should be ashamed of yourself", 0),
    ("You can be proud of yourself", 1),
]
ACCEPTANCE_WORDS = [words_of(sentence) for sentence, _ in ACCEPTANCE]


def near_acceptance(text):
    """True for an acceptance sentence and for any that differs from one in a single word."""
    words = ["cannot" if word == "can't" else word for word in words_of(text)]
    same_length = [target for target in ACCEPTANCE_WORDS if len(target) == len(words)]
    return any(sum(a != b for a, b in zip(words, target, strict=True)) <= 1 for target in same_length)
