"""Suggest the nearest known word."""

import difflib
from collections.abc import Iterable


def nearest(word: str, known: Iterable[str]) -> str | None:
    """Return the known word that `word` most likely means, or None.

    A word that differs only in case, spaces and punctuation wins: `South Central US` finds `southcentralus`, and
    `allow_ssh_from` finds `allowSshFrom`.
    """
    choices = list(known)
    by_plain = {plain(choice): choice for choice in choices}
    if not (wanted := plain(word)):
        return None
    if wanted in by_plain:
        return by_plain[wanted]
    # difflib is quadratic in the word's length, and no known word is this long.
    if len(wanted) > 100:
        return None
    found = difflib.get_close_matches(wanted, by_plain, n=5, cutoff=0.7)
    # Among equals, prefer the same first letter.
    found.sort(key=lambda choice: (-_likeness(wanted, choice), choice[0] != wanted[0]))
    return by_plain[found[0]] if found else None


def did_you_mean(word: str, known: Iterable[str]) -> str | None:
    """Return the help line for a misspelt word, or None without a suggestion."""
    found = nearest(word, known)
    return f"did you mean `{found}`?" if found else None


def listed(words: Iterable[str], joint: str = "or") -> str:
    """Return words as `a`, `b` or `c`."""
    quoted = [f"`{word}`" for word in words]
    if len(quoted) < 2:
        return "".join(quoted)
    return f"{', '.join(quoted[:-1])} {joint} {quoted[-1]}"


def _likeness(word: str, other: str) -> float:
    return difflib.SequenceMatcher(None, word, other).ratio()


def plain(word: str) -> str:
    """Return the letters and digits of a word, in lower case."""
    return "".join(character for character in word.casefold() if character.isalnum())
