"""A tokenizer for closed languages: tokens are phrases, which may span words and sentence ends.

How Boxes is cut decides how soon it is learned, and a grammar with a handful of templates needs no
statistics to find its phrases: the task lists them, and encoding takes the longest that matches.
Text has one virtual leading space, so a word is the same token at the start and inside. Padding
and the start of a sequence are tokens too, but no text: encoding never gives them.
"""

import difflib
import re
from collections.abc import Iterable, Sequence

from chacal._echo import shown

PAD = "<pad>"
START = "<start>"
SILENT = (PAD, START)
"""Tokens that stand for no text."""


class Phrases:
    """A closed vocabulary of phrases; `decode(encode(text)) == text` for any text it covers.

    Attributes:
        phrases: the token strings by id, `PAD` and `START` first.
        ids: the id of each token string.
    """

    def __init__(self, phrases: Sequence[str]) -> None:
        self.phrases = (*SILENT, *phrases)
        self.ids = {phrase: i for i, phrase in enumerate(self.phrases)}
        if len(self.ids) != len(self.phrases):
            raise ValueError("phrases: expected all different, and none equal to padding or start")
        longest_first = sorted(phrases, key=len, reverse=True)
        self._pattern = re.compile("|".join(map(re.escape, longest_first)))
        self._words = sorted({word for p in phrases for word in re.findall(r"[\w-]+", p)})

    def __len__(self) -> int:
        return len(self.phrases)

    def encode(self, text: str) -> list[int]:
        """Token ids by longest match; ValueError names the first word that is not covered."""
        if not text:
            return []
        padded = " " + text
        ids, at = [], 0
        while at < len(padded):
            match = self._pattern.match(padded, at)
            # a match that ends inside a word ("key" of "keys") did not read that word
            if match is None or re.match(r"\w\w", padded[match.end() - 1 : match.end() + 1]):
                raise ValueError(self._unknown(padded, at if match is None else match.end()))
            ids.append(self.ids[match.group()])
            at = match.end()
        return ids

    def decode(self, ids: Iterable[int]) -> str:
        """The text of token ids; padding and start are left out."""
        return "".join(self.phrases[i] for i in ids if i >= len(SILENT)).removeprefix(" ")

    def _unknown(self, padded: str, at: int) -> str:
        starts = [m for m in re.finditer(r"[\w-]+|[^\w\s]|\s+", padded) if m.end() > at]
        words = [m for m in starts if not m.group().isspace()]
        if not words:
            return f"unexpected space at the end of the text (character {at})"
        word = words[0].group()
        where = f"at character {words[0].start()}"
        if word in self._words or (starts[0].group().isspace() and len(starts[0].group()) > 1):
            return f"the word {shown(word)} {where} is known but not expected there"
        close = difflib.get_close_matches(word, self._words, n=3)
        hint = f"; did you mean {' or '.join(map(repr, close))}?" if close else ""
        return f"unknown word {shown(word)} {where}{hint}"
