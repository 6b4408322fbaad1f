"""The phrase tokenizer: longest match, exact round trip, errors that name the word."""

import pytest

from chacal.tasks import Phrases

PHRASES = Phrases([" Move the", " Move the contents", " key", " keyboard", " box", ".", ". Next"])


def strings(text: str) -> list[str]:
    return [PHRASES.phrases[i] for i in PHRASES.encode(text)]


def test_the_longest_phrase_wins():
    assert strings("Move the contents.") == [" Move the contents", "."]
    assert strings("Move the keyboard. Next key") == [" Move the", " keyboard", ". Next", " key"]
    assert strings("") == []


def test_round_trip_padding_and_start():
    text = "Move the key. Next box."
    ids = PHRASES.encode(text)
    assert PHRASES.decode(ids) == text
    assert PHRASES.decode([*ids, 0, 0]) == text
    assert PHRASES.decode([1, *ids, 0, 0]) == text
    assert PHRASES.decode([1, 0]) == ""


def test_padding_and_start_are_the_first_ids_and_no_text():
    assert PHRASES.phrases[:3] == ("<pad>", "<start>", " Move the")
    assert (PHRASES.ids["<pad>"], PHRASES.ids["<start>"], len(PHRASES)) == (0, 1, 9)
    for silent in ("<pad>", "<start>"):
        with pytest.raises(ValueError, match="unknown word '<'"):
            PHRASES.encode(silent)
        with pytest.raises(ValueError, match="none equal to padding or start"):
            Phrases([" a", silent])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("Move the keey.", "unknown word 'keey' at character 10; did you mean 'key'?"),
        ("Move the keys.", "unknown word 'keys' at character 10; did you mean 'key'"),
        ("xyzzy key", "unknown word 'xyzzy' at character 1"),
        ("Move key", "the word 'Move' at character 1 is known but not expected there"),
        ("key  box", "the word 'box' at character 6 is known but not expected there"),
        ("key ", "unexpected space at the end"),
        ("key!", "unknown word '!' at character 4"),
    ],
)
def test_unknown_words_are_quoted_with_their_place(text, told):
    with pytest.raises(ValueError, match=r"word|space") as caught:
        PHRASES.encode(text)
    assert told in str(caught.value)


def test_repeated_phrases_are_refused():
    with pytest.raises(ValueError, match="all different"):
        Phrases([" a", " a"])
