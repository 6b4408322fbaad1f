"""Words about boxes, and what a few of them in a row name: a box, a thing, several things.

Every word keeps its place in the text, so that what is not understood can be marked there.
"""

import difflib
import re
from collections.abc import Collection
from typing import NamedTuple

from chacal.tasks.stories import LETTERS


class Span(NamedTuple):
    """Something read, and where it stands."""

    start: int
    end: int
    word: str


class Unread(ValueError):
    """A word that cannot be read, and what would be."""

    def __init__(self, start: int, end: int, what: str) -> None:
        super().__init__(what)
        self.start, self.end, self.what = start, end, what


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text)


PUT = set(
    _words(
        "put puts putting place places placed add adds added insert inserts inserted drop drops "
        "dropped set sets lay lays laid store stores stored goes go hide hides hid hidden"
    )
)
REMOVE = set(
    _words(
        "remove removes removed take takes took taken pull pulls pulled grab grabs grabbed get "
        "gets got delete deletes deleted discard discards discarded throw throws threw thrown"
    )
)
MOVE = set(
    _words(
        "move moves moved moving shift shifts shifted transfer transfers transferred carry carries "
        "carried bring brings brought transport pour pours poured"
    )
)
CLEAR = set(_words("empty empties emptied clear clears cleared"))
VERBS = PUT | REMOVE | MOVE | CLEAR
BE = {"is", "are", "was", "were", "lies", "lie", "sits", "be"}
HOLD = {"contains", "contain", "holds", "hold", "has", "have", "includes"}
INTO = {"in", "into", "inside", "to", "within", "onto", "on"}
FROM = {"from", "out", "of", "in", "inside"}
ARTICLES = {"the", "a", "an", "my", "your", "his", "her", "our", "their", "some", "all", "that"}
FILLERS = {
    "and", "then", "now", "next", "finally", "first", "also", "so", "please", "after", "afterwards",
    "i", "we", "you", "he", "she", "they", "initially", "but", "later", "again", "still", "just",
}  # fmt: skip
CONTENTS = {"contents", "content", "everything", "all"}
ASKING = {"where", "what", "which", "who", "whose", "how", "why", "when", "does", "is", "are"}
IT = {"it", "them", "this"}
NOTHING = {"nothing", "empty"}
NUMBERS = _words("zero one two three four five six seven eight nine ten eleven twelve")
COUNTS = {*NUMBERS[1:], "several", "many", "few"}
ORDINALS = _words("zeroth first second third fourth fifth sixth seventh eighth ninth tenth")
ENDS = (
    {"box", "boxes", "contains", "and", "there", "nothing", "number", "then", "what"}
    | BE | HOLD | INTO | FROM | VERBS
)  # fmt: skip
"""Words that no thing's name goes on with."""

LONGEST_NAME = 3
"""Words in the name of a thing."""

EXPECTED = (
    "expected Put, Remove, Move, or where something is, as in 'The key is in Box A', "
    "'Put the key into Box A', 'Move the contents of Box A to Box B'"
)


class Words:
    """The words of one part of a text, up to a period; read from left to right."""

    def __init__(self, words: list[Span], boxes: int, from_zero: bool) -> None:
        self.words, self.boxes, self.from_zero = words, boxes, from_zero
        self.at = 0

    def __bool__(self) -> bool:
        return self.at < len(self.words)

    @property
    def word(self) -> str:
        """The next word, or nothing at the end."""
        return self.words[self.at].word if self else ""

    def after(self, count: int) -> str:
        """The word that many behind the next one."""
        at = self.at + count
        return self.words[at].word if at < len(self.words) else ""

    def take(self, known: Collection[str]) -> str:
        """The next word if it is one of these, passed over."""
        word = self.word
        if word and word in known:
            self.at += 1
            return word
        return ""

    def skip(self, known: Collection[str]) -> None:
        """Pass over all of these that come next."""
        while self.take(known):
            pass

    def fail(self, what: str, begin: int = 0) -> Unread:
        """The next word is not understood; at the end, all since `begin` wants going on."""
        if self:
            span = self.words[self.at]
            return Unread(span.start, span.end, what)
        return Unread(self.words[begin].start, self.words[-1].end, what)

    def is_box(self) -> bool:
        """Whether a box is named next."""
        word = self.words[self.at].word if self else ""
        if word in ("the", "a") and self.after(1).startswith("box"):
            return True
        ordinal = self.after(1) if word == "the" else word
        follows = self.after(2) if word == "the" else self.after(1)
        return word.startswith("box") or (ordinal in ORDINALS and follows == "box")

    def box(self, begin: int, wanted: str) -> Span:
        """A box: "box f", "Box 6", "box number six", "the sixth box", "boxF", or "f" alone."""
        if not self:
            raise self.fail(wanted, begin)
        if self.word == "the" and (self.is_box() or self.after(1) in ORDINALS):
            self.at += 1
        first = self.words[self.at]
        if first.word in ORDINALS and self.after(1) == "box":
            self.at += 2
            return self._named(first, str(ORDINALS.index(first.word)), first.start)
        glued = re.fullmatch(r"box(\d+|[a-z])", first.word)
        if glued:
            self.at += 1
            return self._named(first, glued[1], first.start)
        if first.word in ("box", "boxes"):
            self.at += 1
            self.skip({"number", "#", "no", "called", "named"})
            if not self:
                raise Unread(first.start, first.end, "which box? " + self._known())
            name = self.words[self.at]
            self.at += 1
            return self._named(name, name.word, first.start)
        if len(first.word) == 1 or first.word.isdigit():
            self.at += 1
            return self._named(first, first.word, first.start)
        raise self.fail(wanted)

    def _named(self, span: Span, name: str, start: int) -> Span:
        number = NUMBERS.index(name) if name in NUMBERS else int(name) if name.isdecimal() else None
        known = LETTERS[: self.boxes]
        if number is not None:
            place = number if self.from_zero else number - 1
            if 0 <= place < self.boxes:
                return Span(start, span.end, known[place])
        elif len(name) == 1 and name.upper() in known:
            return Span(start, span.end, name.upper())
        raise Unread(span.start, span.end, f"there is no such box; {self._known()}")

    def _known(self) -> str:
        low = 0 if self.from_zero else 1
        return f"boxes are A to {LETTERS[self.boxes - 1]}, or {low} to {self.boxes - 1 + low}"

    def items(self, begin: int) -> tuple[Span, ...]:
        """Things: "the key", "a red ball and some soap"."""
        found = [self._item(begin)]
        while self.word == "and" and self._item_follows():
            self.at += 1
            found.append(self._item(begin))
        return tuple(found)

    def _item_follows(self) -> bool:
        """Whether the "and" that comes next joins things, not sentences."""
        rest = self.words[self.at + 1 :]
        if not rest or rest[0].word in VERBS or rest[0].word in FILLERS or rest[0].word == "box":
            return False
        ends = [span.word for span in rest if span.word in ENDS - {"and"}]
        # "Put the key into Box A and the lamp into Box B" has a box before the "and"
        return bool(ends) or all(span.word not in ENDS for span in rest)

    def _item(self, begin: int) -> Span:
        self.skip(ARTICLES | COUNTS)
        first = self.at
        if self.word in IT:
            self.at += 1
            return Span(*self.words[first][:2], "it")
        while self and self.word not in ENDS and re.match(r"[^\W_]", self.word):
            self.at += 1
        if self.at == first:
            raise self.fail("expected the name of a thing here, as in 'the key'", begin)
        words = self.words[first : self.at]
        if any(span.word in ARTICLES | IT | FILLERS for span in words):
            # "fold the key" is no name: its first word is a verb that is not known
            raise Unread(words[0].start, words[0].end, guess(words[0].word) + EXPECTED)
        name = " ".join(span.word for span in words)
        if len(words) > LONGEST_NAME or len(name) > 40:
            raise Unread(words[0].start, words[-1].end, "expected the name of one thing, as 'key'")
        return Span(words[0].start, words[-1].end, name)


def guess(word: str) -> str:
    """ "did you mean move? " for a word that is nearly a verb."""
    close = difflib.get_close_matches(word, sorted(VERBS), 1, 0.75)
    return f"did you mean {close[0]}? " if close else ""
