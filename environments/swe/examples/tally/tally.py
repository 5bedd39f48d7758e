"""Counts words."""


def tally(text):
    """The number of times that each word occurs, without case."""
    counts = {}
    for word in text.split():
        counts[word] = counts.get(word, 0) + 1
    return counts
