"""Short everyday sentences, made from templates."""

from training.sentiment.acceptance import EVERYDAY_CHECK
from training.sentiment.treebank import key_of

SUBJECTS = [
    "i",
    "you",
    "we",
    "they",
    "he",
    "she",
    "my friend",
    "my brother",
    "my mother",
    "our neighbour",
    "the teacher",
    "everyone",
    "the kids",
    "my parents",
    "the boss",
    "people",
]
PLURAL = {"you", "we", "they", "the kids", "my parents", "people"}
THINGS = """movie film book song story show game food meal dinner coffee hotel room house city trip weather
    music concert party lesson job team car phone service idea plan place restaurant school class dress
    present dog website answer weekend holiday meeting""".split()
DEGREES = ["", "", "very ", "so ", "really ", "extremely ", "quite ", "too ", "absolutely ", "pretty "]
LOOKS = ["be", "be", "look", "seem", "feel", "sound"]
LIKING = {
    1: "like love enjoy adore admire appreciate recommend treasure praise".split(),
    0: "hate dislike despise detest loathe regret fear resent curse".split(),
}
FEELINGS = {
    1: """happy delighted glad excited proud relaxed cheerful thrilled grateful pleased calm confident amazed
        satisfied hopeful joyful comfortable inspired lucky impressed""".split(),
    0: """sad angry upset tired bored confused disappointed annoyed worried scared lonely miserable nervous
        ashamed frustrated embarrassed sick jealous lost puzzled exhausted unhappy""".split(),
}
QUALITIES = {
    1: """good great wonderful beautiful funny exciting interesting delicious lovely perfect fantastic nice
        brilliant amazing charming helpful clever fun pleasant excellent""".split(),
    0: """bad terrible awful boring ugly stupid dull horrible annoying disgusting useless tedious confusing
        disappointing poor broken dreadful unpleasant noisy slow""".split(),
}
IDIOMS = {  # {s}: a subject, {t}: a thing
    1: [
        "{s} cannot wait to see the {t}",
        "{s} cannot wait for the {t}",
        "{s} can't wait to come back",
        "{s} can hardly wait for the next {t}",
        "{s} cannot wait until tomorrow",
        "cannot wait for more",
        "can't wait to see you again",
        "{s} cannot get enough of the {t}",
        "looking forward to the next {t}",
        "the {t} could not be better",
        "{s} had a great time at the {t}",
        "the {t} made my day",
        "there is nothing better than this {t}",
        "{s} would love to do it again",
        "{s} never get tired of the {t}",
        "the {t} is not bad at all",
        "well done , what a {t}",
        "no problem with the {t} , it is just right",
        "{s} will come back next year",
        "hope to see the {t} again soon",
    ],
    0: [
        "{s} cannot stand the {t}",
        "{s} can't stand it any longer",
        "{s} cannot bear the {t}",
        "{s} cannot recommend the {t}",
        "{s} don't want to see the {t} again",
        "{s} had to wait for hours",
        "{s} cannot understand the {t}",
        "{s} don't get the {t} at all",
        "the {t} could not be worse",
        "{s} had a terrible time at the {t}",
        "the {t} ruined my day",
        "so fed up with the {t}",
        "there is nothing good about this {t}",
        "{s} would never do it again",
        "so sick of the {t}",
        "the {t} is not good at all",
        "too many problems with the {t}",
        "what a waste of time",
        "{s} will never come back",
        "{s} cannot use the {t} , it does not work",
    ],
}


def inflect(verb, subject):
    """The form of a verb of the lists above that goes with a subject."""
    if subject == "i":
        return "am" if verb == "be" else verb
    if subject in PLURAL:
        return "are" if verb == "be" else verb
    return "is" if verb == "be" else verb + "s"


def everyday_sentence(rng):
    """One short sentence from the templates and its label."""
    label = rng.randint(0, 1)
    subject, thing, degree = rng.choice(SUBJECTS), rng.choice(THINGS), rng.choice(DEGREES)
    kind = rng.randrange(6)
    if kind == 0:
        verb = inflect(rng.choice(LIKING[label]), subject)
        text = f"{subject} {verb} {rng.choice(['the', 'this', 'that', 'my', 'your', 'our'])} {thing}"
    elif kind == 1:
        look = inflect(rng.choice(LOOKS), subject)
        text = f"{subject} {look} {degree}{rng.choice(FEELINGS[label])}"
    elif kind == 2:
        opening = rng.choice(
            [
                f"the {thing} is",
                f"this {thing} is",
                "this is",
                "it is",
                "that was",
                "it was",
                f"the {thing} was",
                f"{subject} found the {thing}",
            ]
        )
        text = f"{opening} {degree}{rng.choice(QUALITIES[label])}"
    elif kind == 3:
        turn = rng.choice(["do not", "don't", "never", "did not", "didn't"])
        who = rng.choice(["i", "you", "we", "they", "people"])
        text = f"{who} {turn} {rng.choice(LIKING[1 - label])} the {thing}"
    elif kind == 4:
        text = f"the {thing} {rng.choice(['is', 'was'])} not {rng.choice(QUALITIES[1 - label])}"
    else:
        text = rng.choice(IDIOMS[label]).format(s=rng.choice(["i", "we", "you", "they", "people"]), t=thing)
    return text + rng.choice(["", "", " .", " !"]), label


def everyday_sentences(count, rng):
    check = {key_of(text) for text, _ in EVERYDAY_CHECK}
    made = dict(everyday_sentence(rng) for _ in range(count))
    return [(text, label) for text, label in made.items() if key_of(text) not in check]
