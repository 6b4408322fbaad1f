"""A story as someone typed it -> the sentences that models know, or what is wrong and where.

    take the camera out of box 6   ->   Remove the camera from Box F.

What is left out is filled in from the story so far ("move it to Box B" names neither the thing nor
where it was). Things may have any names: a model never sees "unicorn", it sees a thing of its own
that stands in for it, and whoever shows the answer puts the name back (`Reading.names`).
"""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass

from chacal.tasks.grammar import Said, clauses
from chacal.tasks.stories import LETTERS, Sentence, carry_out, contradiction
from chacal.tasks.wording import Span, Unread

MOST_SENTENCES = 40
"""Sentences of a story, at most: four times what the bundled models were trained on."""

TYPO = 0.88
"""How like a known word an unknown one is that was hardly meant as a name of its own."""


@dataclass(frozen=True)
class Fault:
    """What cannot be read: the characters start..end of the text, and what would be understood."""

    start: int
    end: int
    what: str


@dataclass(frozen=True)
class Clause:
    """A piece of the text: the sentences it was read as (none if it says nothing new), or not."""

    start: int
    end: int
    told: tuple[Sentence, ...] = ()
    fault: Fault | None = None


@dataclass(frozen=True)
class Reading:
    """A text as it was read.

    Attributes:
        text: as typed.
        clauses: its pieces, in order.
        names: known thing -> the name that the story gives to it.
    """

    text: str
    clauses: tuple[Clause, ...]
    names: dict[str, str]

    @property
    def told(self) -> tuple[Sentence, ...]:
        """The sentences, with things by their own names."""
        return tuple(sentence for clause in self.clauses for sentence in clause.told)

    @property
    def story(self) -> tuple[Sentence, ...]:
        """The sentences as a model reads them."""
        known = {own: thing for thing, own in self.names.items()}
        return tuple(s._replace(item=known[s.item] if s.item else "") for s in self.told)

    @property
    def plain(self) -> str:
        """The text that a model reads."""
        return " ".join(sentence.text for sentence in self.story)

    @property
    def faults(self) -> tuple[Fault, ...]:
        """All that cannot be read."""
        return tuple(clause.fault for clause in self.clauses if clause.fault)

    def require(self) -> None:
        """Raise unless there is a story and all of it was read."""
        if not self.clauses:
            raise ValueError(
                "the story is empty: expected sentences such as 'The key is in Box A.'"
            )
        for number, clause in enumerate(self.clauses, 1):
            if clause.fault:
                text = " ".join(self.text[clause.start : clause.end].split())
                word = self.text[clause.fault.start : clause.fault.end]
                at = "" if word == self.text[clause.start : clause.end] else f" at {word!r}"
                raise ValueError(f"sentence {number}, {text!r}{at}: {clause.fault.what}")


def read_story(text: str, boxes: int, objects: Sequence[str], max_items: int) -> Reading:
    """Read a story in free English.

    Args:
        text: as typed.
        boxes: how many there are.
        objects: the things that the model knows.
        max_items: how many of them a box holds.
    """
    reader = _Reader(boxes, objects, max_items)
    found: list[Clause] = []
    for start, end, said in clauses(text, boxes):
        if len(found) == MOST_SENTENCES:
            what = f"the story is too long: at most {MOST_SENTENCES} sentences"
            found.append(Clause(start, len(text), fault=Fault(start, end, what)))
            break
        found.append(reader.clause(start, end, said))
    return Reading(text, tuple(found), reader.names())


class _Reader:
    """The story so far: where everything is, and what it is called."""

    def __init__(self, boxes: int, objects: Sequence[str], max_items: int) -> None:
        self.objects, self.max_items = objects, max_items
        self.state: dict[str, list[str]] = {box: [] for box in LETTERS[:boxes]}
        self.things: list[str] = []
        self.it = ""
        self.begun = False

    def names(self) -> dict[str, str]:
        """Known thing -> own name: a known one is itself, others take the first that are left."""
        free = iter([thing for thing in self.objects if thing not in self.things])
        return {own if own in self.objects else next(free): own for own in self.things}

    def clause(self, start: int, end: int, said: Said | Unread) -> Clause:
        """One more clause, carried out if it can be."""
        try:
            if isinstance(said, Unread):
                raise said
            told = self._sentences(said)
        except Unread as unread:
            return Clause(start, end, fault=Fault(unread.start, unread.end, unread.what))
        return Clause(start, end, told)

    def _sentences(self, said: Said) -> tuple[Sentence, ...]:
        before = {box: list(items) for box, items in self.state.items()}, list(self.things)
        told = []
        try:
            for sentence, spans in self._meant(said):
                told += self._carry_out(sentence, spans)
        except Unread:
            self.state, self.things = before
            raise
        if told:
            self.it = told[-1].item or self.it
            self.begun = self.begun or told[-1].kind != "is"
        return tuple(told)

    def _meant(self, said: Said) -> list[tuple[Sentence, dict[str, Span]]]:
        """Sentences of the known kinds, and where their words stand."""
        kind, items, source, target = said
        spans = {"source": source, "target": target}
        at = {name: span for name, span in spans.items() if span is not None}
        boxes = {name: span.word for name, span in at.items()}
        if kind == "contents":
            return [(Sentence("contents", **boxes), at)]
        if kind in ("empty", "clear") and source is not None:
            held = self.state[source.word]
            if kind == "empty" and held:
                names = " and the ".join(held)
                raise Unread(*source[:2], f"Box {source.word} holds the {names} by now")
            if kind == "clear" and not held:
                raise Unread(*source[:2], f"Box {source.word} is empty already")
            whole = "remove" if kind == "clear" else ""
            return [(Sentence(whole, item, source.word), at) for item in held if whole]
        found = []
        for span in items:
            item = self._thing(span, new=kind in ("is", "put"))
            own = dict(boxes)
            if kind in ("remove", "move") and source is None:
                own["source"] = self._where(item, span)
            found.append((Sentence(kind, item, **own), {**at, "item": span}))
        return found

    def _carry_out(self, sentence: Sentence, spans: dict[str, Span]) -> list[Sentence]:
        if sentence.kind == "is" and self.begun:
            if sentence.item in self.state[sentence.target]:
                return []  # true, and nothing new
            sentence = sentence._replace(kind="put")
        elif sentence.kind == "put" and sentence.item not in self.state[sentence.target]:
            # what is put somewhere comes from where it is
            where = [box for box, items in self.state.items() if sentence.item in items]
            if where:
                sentence = sentence._replace(kind="move", source=where[0])
        found = contradiction(self.state, sentence, self.max_items)
        if found:
            field, what = found
            span = spans.get(field) or next(iter(spans.values()))
            raise Unread(span.start, span.end, what)
        carry_out(self.state, sentence)
        return [sentence]

    def _where(self, item: str, span: Span) -> str:
        for box, items in self.state.items():
            if item in items:
                return box
        raise Unread(*span[:2], f"the {item} is in no box")

    def _thing(self, span: Span, new: bool) -> str:
        """The thing that a word means: known, a plural of one, named before, or a new name."""
        name = span.word
        if name == "it":
            if not self.it:
                raise Unread(*span[:2], "nothing was named before; expected the name of a thing")
            return self.it
        named = [*self.things, *self.objects]
        singular = next((form for form in _singulars(name) if form in named), None)
        if singular is None:
            singular = next((own for own in self.things if name in _singulars(own)), None)
        if singular is None:
            close = difflib.get_close_matches(name, named, 1, TYPO)
            if close:
                raise Unread(*span[:2], f"unknown; did you mean {close[0]}?")
            if not new:
                here = ", ".join(sorted({thing for box in self.state.values() for thing in box}))
                raise Unread(*span[:2], f"the {name} is in no box; expected one of: {here or '-'}")
            singular = name
        if singular not in self.things:
            if len(self.things) >= len(self.objects):
                count = len(self.objects)
                what = f"the model knows {count} things; this is one more than that"
                raise Unread(*span[:2], what)
            self.things.append(singular)
        return singular


def _singulars(name: str) -> list[str]:
    """The name, and what it may be the plural of."""
    forms = [name]
    for ending, instead in (("ies", "y"), ("ves", "f"), ("ves", "fe"), ("es", ""), ("s", "")):
        if name.endswith(ending):
            forms.append(name.removesuffix(ending) + instead)
    return forms
