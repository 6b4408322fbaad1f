"""English about boxes as people type it -> what each clause says, word by word.

`stories.py` has the five sentences that models are trained on. People write "take the camera out
of box 6" and forget the period. This file finds what such words say, without knowing what lies in
which box; `reading.py` then makes sentences of the five kinds of it.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from chacal.tasks.wording import (
    ARTICLES,
    ASKING,
    BE,
    CLEAR,
    CONTENTS,
    EXPECTED,
    FILLERS,
    FROM,
    HOLD,
    INTO,
    MOVE,
    NOTHING,
    PUT,
    REMOVE,
    VERBS,
    Span,
    Unread,
    Words,
    guess,
)

_TOKEN = re.compile(r"[^\W_]+(?:[-'’][^\W_]+)*|[.!?;\n]+|[^\s]")
_IN = re.compile(r"\s+(now |still )?(in|inside|within|on)\b", re.IGNORECASE)
_SILENT = set(",:\"'“”‘’()-–—`*")


class Said(NamedTuple):
    """What one clause says; `kind` also has "clear" (empty a box) and "empty" (it is empty)."""

    kind: str
    items: tuple[Span, ...] = ()
    source: Span | None = None
    target: Span | None = None


def clauses(text: str, boxes: int) -> Iterator[tuple[int, int, Said | Unread]]:
    """Every clause of a text: where it stands, and what it says or which word is not understood.

    Args:
        text: as it was typed.
        boxes: how many there are.
    """
    from_zero = re.search(r"\bbox\s*#?\s*(0|zero)\b", text, re.IGNORECASE) is not None
    for part in _parts(text):
        words = Words(part, boxes, from_zero)
        last = ""
        while words:
            begin = words.at
            # "first" may be a box's: "the first box"
            while not words.is_box() and words.take(FILLERS):
                pass
            if not words:
                break
            start = words.words[words.at].start
            try:
                said = _clause(words, words.at, last)
                if words and not _starts_anew(words):
                    raise words.fail("not understood here; expected a period or a new sentence")
                last = said.kind
                yield start, words.words[words.at - 1].end, said
            except Unread as unread:
                # where the next clause begins is not known: the rest of the part goes with it
                yield part[begin].start, part[-1].end, unread
                break


def _parts(text: str) -> Iterator[list[Span]]:
    """The words between periods and line ends, in small letters."""
    part: list[Span] = []
    for match in _TOKEN.finditer(text):
        token = match.group().lower().replace("’", "'")
        if token[0] in ".!?;\n":
            if part:
                yield part
            part = []
        elif token.endswith("'s") and _IN.match(text, match.end()):
            # "the camera's in box f": the verb is a word of its own
            part.append(Span(match.start(), match.end() - 2, token[:-2]))
            part.append(Span(match.end() - 2, match.end(), "is"))
        elif token not in _SILENT:
            part.append(Span(match.start(), match.end(), token))
    if part:
        yield part


def _starts_anew(words: Words) -> bool:
    word = words.word
    return word in FILLERS | {"there", "in"} | ARTICLES | VERBS or words.is_box()


def _clause(words: Words, begin: int, last: str) -> Said:
    word = words.word
    if words.is_box():
        return _of_box(words, begin)
    if word == "there" or (word == "in" and words.after(1)):
        return _there(words, begin)
    if word in VERBS:
        words.at += 1
        return _by_verb(words, begin, word, None)
    if word in CONTENTS or (word in ARTICLES and words.after(1) in CONTENTS):
        source = _contents(words, begin)
        words.skip(BE | {"all"})
        words.take(VERBS)
        return Said("contents", (), source, _target(words, begin))
    if word in ASKING:
        raise words.fail(f"a story only tells; {EXPECTED}")
    return _of_thing(words, begin, last)


def _of_box(words: Words, begin: int) -> Said:
    box = words.box(begin, "expected a box")
    holds = words.take(HOLD) or words.take(BE)
    if words.take(NOTHING):
        return Said("empty", (), box)
    if not words:
        raise words.fail("expected what is in it, as in 'Box A contains the key'", begin)
    if not holds and words.words[words.at].word not in ARTICLES:
        raise words.fail("expected contains, or is empty")
    return Said("is", words.items(begin), None, box)


def _there(words: Words, begin: int) -> Said:
    if words.take({"in"}):
        box = words.box(begin, "expected a box")
        words.take({"there"})
        words.take(BE)
        return Said("is", words.items(begin), None, box)
    words.take({"there"})
    if not words.take(BE):
        raise words.fail("expected is, as in 'There is a key in Box A'", begin)
    if words.take(NOTHING):
        return Said("empty", (), _target(words, begin))
    items = words.items(begin)
    return Said("is", items, None, _target(words, begin))


def _of_thing(words: Words, begin: int, last: str) -> Said:
    """ "The key is in Box A", "the key is moved to Box B", "the lamp into Box B"."""
    first = words.words[words.at]
    items = words.items(begin)
    be = words.take(BE)
    words.skip({"now", "then", "all"})
    if words.word in VERBS:
        verb = words.take(VERBS)
        # "John puts the key into Box A": the thing comes after the verb, and he is none
        told = be or not words or words.word in INTO | FROM
        return _by_verb(words, begin, verb, items if told else None)
    if not words or words.word not in INTO:
        if be:
            raise words.fail("expected in Box X, as in 'The key is in Box A'", begin)
        raise Unread(first.start, first.end, guess(first.word) + EXPECTED)
    target = _target(words, begin)
    return Said("put" if last == "put" and not be else "is", items, None, target)


def _by_verb(words: Words, begin: int, verb: str, items: tuple[Span, ...] | None) -> Said:
    """What follows a verb, whose things may stand before it: "the key is taken out of Box A"."""
    bare = len(words.word) == 1 and words.after(1) in INTO  # "move A to B"
    if verb in CLEAR or (verb in MOVE and items is None and (bare or words.is_box())):
        return _emptied(words, begin, words.box(begin, "expected a box, as in 'Empty Box A'"), verb)
    words.take({"out", "away", "off"})
    if items is None and _contents_follow(words):
        return _emptied(words, begin, _contents(words, begin), verb)
    if items is None:
        items = words.items(begin)
    if verb in PUT:
        return Said("put", items, None, _target(words, begin))
    source: Span | None = None
    target: Span | None = None
    if words.word in FROM and (words.word != "in" or verb in REMOVE):
        words.skip(FROM)
        if words:  # "take the key out" is clear without
            source = words.box(begin, "expected a box, as in 'from Box A'")
    if words and words.word in INTO:
        target = _target(words, begin)
    if verb in MOVE or target:
        if target is None:
            raise words.fail("expected to Box X, where it goes", begin)
        return Said("move", items, source, target)
    return Said("remove", items, source)


def _emptied(words: Words, begin: int, box: Span, verb: str) -> Said:
    """All that is in a box goes to another, or away."""
    if verb in MOVE or words.word in INTO:
        return Said("contents", (), box, _target(words, begin))
    return Said("clear", (), box)


def _contents_follow(words: Words) -> bool:
    at = 0
    while words.after(at) in ARTICLES:
        at += 1
    at -= at > 0 and words.after(at - 1) == "all" and words.after(at) not in CONTENTS
    return words.after(at) in CONTENTS or words.after(at) == "what"


def _contents(words: Words, begin: int) -> Span:
    """ "the contents of Box A", "everything in Box A", "what is in Box A" -> the box."""
    words.skip(ARTICLES | CONTENTS | {"what", "that"} | BE)
    words.skip(FROM)
    return words.box(begin, "expected a box, as in 'the contents of Box A'")


def _target(words: Words, begin: int) -> Span:
    wanted = "expected a box here, as in 'into Box X'"
    if not words.take(INTO):
        raise words.fail("expected into Box X" if words else "expected to Box X", begin)
    words.skip(INTO | {"of"})
    return words.box(begin, wanted)
