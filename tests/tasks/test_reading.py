"""The forgiving reader: what is meant is read, what is not is marked under its word."""

import pytest

from chacal.tasks import OBJECTS, Boxes, parse_story
from chacal.tasks.base import stream, uniforms
from chacal.tasks.reading import MOST_SENTENCES, read_story


def read(text, boxes=7, objects=OBJECTS, max_items=1):
    return read_story(text, boxes, objects, max_items)


def told(text, **options):
    """The sentences as they were read, or the first fault."""
    reading = read(text, **options)
    assert not reading.faults, reading.faults
    return [sentence.text for sentence in reading.told]


def fault(text, **options):
    """What is underlined, and what is said about it."""
    (first, *_) = read(text, **options).faults
    return text[first.start : first.end], first.what


CAMERA = "The camera is in Box F."


@pytest.mark.parametrize(
    "text",
    [
        CAMERA,
        "the camera is in box f",
        "camera in box F!",
        "THE CAMERA IS INSIDE BOX F;",
        "A camera is in box 6.",
        "the cameras are in Box six",
        "Box 6 contains the camera.",
        "Box F holds a camera",
        "box f: the camera",
        "There is a camera in Box F.",
        "In box F there is the camera",
        "The sixth box has the camera.",
        "Box #6 contains the camera",
        "The camera’s in box F.",
    ],
)
def test_a_state_told_in_many_ways_is_one_sentence(text):
    assert told(text) == [CAMERA]


@pytest.mark.parametrize(
    ("update", "meant"),
    [
        ("take the camera out of box f", "Remove the camera from Box F."),
        ("take out the camera from box f", "Remove the camera from Box F."),
        ("Remove the camera", "Remove the camera from Box F."),
        ("The camera is removed from Box F", "Remove the camera from Box F."),
        ("empty box F", "Remove the camera from Box F."),
        ("put the keys in box b", "Put the key into Box B."),
        ("Then she places a key inside the box B", "Put the key into Box B."),
        ("the key is put into Box 2", "Put the key into Box B."),
        ("move camera from f to b", "Move the camera from Box F to Box B."),
        ("Move the camera to Box B", "Move the camera from Box F to Box B."),
        ("move it to box b", "Move the camera from Box F to Box B."),
        ("take the camera from Box F into Box B", "Move the camera from Box F to Box B."),
        ("move everything in box f to box b", "Move the contents of Box F to Box B."),
        ("Move all the contents from Box F into Box B", "Move the contents of Box F to Box B."),
        ("empty Box F into Box B", "Move the contents of Box F to Box B."),
        ("the contents of box f are moved to box b", "Move the contents of Box F to Box B."),
        ("Move F to B", "Move the contents of Box F to Box B."),
        ("take the camera out", "Remove the camera from Box F."),
        ("throw away the camera", "Remove the camera from Box F."),
        ("Put the camera into Box B", "Move the camera from Box F to Box B."),
        ("The camera goes to box B", "Move the camera from Box F to Box B."),
        ("John moves two cameras to box B", "Move the camera from Box F to Box B."),
        ("Move what is in Box F to Box B", "Move the contents of Box F to Box B."),
    ],
)
def test_an_update_told_in_many_ways_is_one_sentence(update, meant):
    assert told(f"{CAMERA} {update}") == [CAMERA, meant]


@pytest.mark.parametrize(
    "text",
    [
        "the camera is in box f move the contents of box f to box b",
        "the camera is in box f, then move the contents of box f to box b and stop"[:-9],
        "the camera is in box f\nmove the contents of box f to box b",
    ],
)
def test_periods_may_be_missing(text):
    assert told(text) == [CAMERA, "Move the contents of Box F to Box B."]


def test_a_state_told_after_an_update_is_one_more_put_or_nothing_new():
    begun = f"{CAMERA} Remove the camera from Box F."
    assert told(f"{begun} The key is in Box B.")[-1] == "Put the key into Box B."
    assert told(f"{begun} Put the key into Box B. The key is in Box B. Box C is empty.") == [
        CAMERA,
        "Remove the camera from Box F.",
        "Put the key into Box B.",
    ]


def test_names_of_people_and_plurals_of_ones_own():
    assert told("John puts the apple in box 1. There is nothing in box 2.") == [
        "Put the apple into Box A."
    ]
    assert told("Mary's ring is in box A. Move Mary's ring to box B.") == [
        "The mary's ring is in Box A.",
        "Move the mary's ring from Box A to Box B.",
    ]
    assert told("The owls are in box A. Remove the owl.")[-1] == "Remove the owls from Box A."


def test_several_things_in_one_sentence():
    assert told("Put the key into Box A and the lamp into Box B") == [
        "Put the key into Box A.",
        "Put the lamp into Box B.",
    ]
    assert told("Box A contains the key and the lamp.", max_items=2) == [
        "The key is in Box A.",
        "The lamp is in Box A.",
    ]


def test_boxes_counted_from_zero_are_the_same_boxes():
    # as in Kim and Schuster's stories
    story = "Box 0 contains the key, Box 1 contains the lamp, Box 2 is empty. "
    story += "Move the key from Box 0 to Box 2."
    assert told(story) == [
        "The key is in Box A.",
        "The lamp is in Box B.",
        "Move the key from Box A to Box C.",
    ]


def test_a_thing_of_any_name_stands_in_for_a_known_one():
    reading = read("My red unicorn is in box A. The camera is in Box B. Move it to box c.")
    assert [s.text for s in reading.told] == [
        "The red unicorn is in Box A.",
        "The camera is in Box B.",
        "Move the camera from Box B to Box C.",
    ]
    # the camera is itself, so the unicorn is the next that the story does not name
    assert reading.names == {"key": "red unicorn", "camera": "camera"}
    assert [s.text for s in reading.story] == [
        "The key is in Box A.",
        "The camera is in Box B.",
        "Move the camera from Box B to Box C.",
    ]
    assert parse_story(reading.plain, 7) == list(reading.story)


def test_no_more_things_than_the_model_knows():
    text = "The cat is in box a. The dog is in box b. The owl is in box c."
    assert told(text, objects=OBJECTS[:3])
    assert fault(text, objects=OBJECTS[:2]) == (
        "owl",
        "the model knows 2 things; this is one more than that",
    )


@pytest.mark.parametrize(
    ("text", "word", "says"),
    [
        ("Fold the key.", "Fold", "expected Put, Remove, Move"),
        ("The key is in Box Z.", "Z", "boxes are A to G"),
        ("The key is in Box 8.", "8", "1 to 7"),
        ("The camra is in Box F.", "camra", "did you mean camera?"),
        ("The key is in Box A. Put it down.", "down", "into Box X"),
        ("The key is in Box A. Move the key from Box A", "Move the key from Box A", "to Box X"),
        ("The key is in Box A. Remove the cup from Box A.", "cup", "is in no box"),
        ("The key is in Box A. Move the contents of Box B to Box C.", "Box B", "Box B is empty"),
        ("The key is in Box A. Move the key from Box A to Box A.", "Box A", "two different"),
        ("The key is in Box A. The cup is in Box A.", "Box A", "holds at most 1"),
        ("The key is in Box A. Move it to B. The key is in Box A.", "key", "already in Box B"),
        ("The key is in Box A tomorrow.", "tomorrow", "a new sentence"),
        ("The is in Box A.", "is", "of a thing"),
        ("Where is the key?", "Where", "expected"),
        ("The key is in Box A. Move it to Box B. Box B is empty.", "Box B", "holds the key"),
        ("The key is in Box A. $", "$", "expected"),
    ],
)
def test_what_cannot_be_read_is_marked_under_its_word(text, word, says):
    marked, what = fault(text)
    assert marked == word
    assert says in what


def test_the_rest_of_the_story_is_read_around_a_fault():
    reading = read("The key is in Box A. Fold it. Move it to Box B.")
    assert [s.text for s in reading.told] == [
        "The key is in Box A.",
        "Move the key from Box A to Box B.",
    ]
    assert [clause.fault is not None for clause in reading.clauses] == [False, True, False]
    with pytest.raises(ValueError, match=r"sentence 2, 'Fold it' at 'Fold': expected Put"):
        reading.require()


def test_an_empty_story_has_no_sentences_and_is_refused_where_one_is_needed():
    reading = read(" \n ")
    assert not reading.clauses
    with pytest.raises(ValueError, match="the story is empty"):
        reading.require()


def test_a_story_has_an_end():
    text = "The key is in Box A. " + "Move it to Box B. Move it to Box A. " * MOST_SENTENCES
    reading = read(text)
    assert len(reading.told) == MOST_SENTENCES
    assert "at most" in reading.faults[0].what


@pytest.mark.parametrize("max_items", [1, 3])
def test_every_story_of_the_grammar_is_read_as_it_stands(max_items):
    task = Boxes(boxes=7, max_items=max_items, updates=12)
    uniform = uniforms(stream("reading", max_items))
    for i in range(100):
        sentences, _ = task.story(uniform, "test", i % 13)
        text = " ".join(s.text for s in sentences)
        reading = read(text, max_items=max_items)
        assert list(reading.story) == list(reading.told) == sentences
        assert reading.plain == text


def test_any_text_at_all_is_answered_without_an_error():
    alphabet = [
        "box", "Box A", "the", "key", "move", "from", "to", "put", "in", "is", "contents", "of",
        ".", "and", "7", "0", "é", "🎈", "#", "'", "it", "empty", "take", "out", "\n", "-", "are",
    ]  # fmt: skip
    uniform = uniforms(stream("any text"))
    for _ in range(2000):
        words = [alphabet[int(uniform() * len(alphabet))] for _ in range(int(uniform() * 14))]
        text = " ".join(words)
        reading = read(text)
        for clause in reading.clauses:
            assert 0 <= clause.start < clause.end <= len(text)
        for mark in reading.faults:
            assert 0 <= mark.start < mark.end <= len(text)
            assert mark.what
        if reading.story:
            parse_story(reading.plain, 7)
