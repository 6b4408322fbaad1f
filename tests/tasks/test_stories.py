"""The language of Boxes on stories small enough to solve by hand."""

import pytest

from chacal.tasks import OBJECTS, Boxes, needed_positions, parse_answer, parse_story, simulate
from chacal.tasks.base import stream, uniforms
from chacal.tasks.stories import answer_pieces


def needed(text: str, boxes: int = 3, max_items: int = 1) -> dict[str, list[str]]:
    """`needed_positions` as (position, phrase) in the tokens of the whole text."""
    story = parse_story(text, boxes)
    state = simulate(story, boxes)
    task = Boxes(boxes=boxes)
    phrases = [piece for sentence in story for piece in sentence.pieces] + answer_pieces(state)
    assert task.tokenizer.decode(task.tokenizer.encode(text)) == text
    found = needed_positions(story, boxes, max_items)
    return {box: [(at, phrases[at]) for at in positions] for box, positions in found.items()}


def test_chain_of_contents_moves_is_followed_to_its_root():
    got = needed(
        "The key is in Box A. "  # 0-2
        "Move the contents of Box A to Box B. "  # 3-5
        "Move the contents of Box B to Box C."  # 6-8, the answer from 9
    )
    assert got == {
        "A": [(9, " Box A"), (4, " A")],
        "B": [(11, ". Box B"), (7, " B")],
        "C": [(13, ". Box C"), (8, " to Box C."), (5, " to Box B."), (2, " is in Box A.")],
    }


def test_puts_removals_and_moves_are_roots_for_single_items():
    got = needed(
        "The key is in Box A. "  # 0-2
        "Put the lamp into Box B. "  # 3-5
        "Remove the key from Box A. "  # 6-8
        "Move the lamp from Box B to Box A."  # 9-12, the answer from 13
    )
    assert got == {
        "A": [(13, " Box A"), (12, " to Box A.")],
        "B": [(16, ". Box B"), (11, " from Box B")],
        "C": [(18, ". Box C")],
    }


def test_emptied_box_that_is_filled_again_and_moved_on():
    got = needed(
        "The key is in Box A. "  # 0-2
        "Remove the key from Box A. "  # 3-5
        "Put the cup into Box A. "  # 6-8
        "Move the contents of Box A to Box C."  # 9-11, the answer from 12
    )
    assert got["C"] == [(16, ". Box C"), (11, " to Box C."), (8, " into Box A.")]
    assert got["A"] == [(12, " Box A"), (10, " A")]


def test_boxes_of_several_items_need_their_earlier_mentions_too():
    text = (
        "The key is in Box A. "  # 0-2
        "The cup is in Box B. "  # 3-5
        "Put the pan into Box A. "  # 6-8
        "Move the contents of Box A to Box B. "  # 9-11
        "Remove the key from Box B."  # 12-14, the answer from 15
    )
    got = needed(text, max_items=3)
    assert [at for at, _ in got["B"]] == [17, 14, 11, 8, 5, 2]
    assert [at for at, _ in got["A"]] == [15, 10]
    assert [at for at, _ in got["C"]] == [22]


def test_in_generated_stories_the_root_names_what_the_box_holds():
    task = Boxes(updates=31, min_updates=31)
    deepest = 0
    for seed in range(20):
        story, state = task.story(uniforms(stream(seed)), "train", 31)
        owner = [sentence for sentence in story for _ in sentence.pieces]
        for box, positions in needed_positions(story, 7).items():
            assert positions == sorted(positions, reverse=True)
            root = owner[positions[-1]] if len(positions) > 1 else None
            if state[box]:
                assert state[box] == [root.item]
            else:
                assert root is None or (box == root.source and len(positions) == 2)
            deepest = max(deepest, len(positions) - 2)
    assert deepest > 8


def test_items_are_told_in_order_of_arrival():
    story = parse_story(
        "The key is in Box B. The cup is in Box A. Put the pan into Box A. "
        "Move the contents of Box A to Box B. Remove the key from Box B. Put the key into Box B.",
        2,
    )
    state = simulate(story, 2)
    assert state == {"A": [], "B": ["cup", "pan", "key"]}
    text = "".join(answer_pieces(state))[1:]
    assert text == "Box A is empty. Box B contains the cup and the pan and the key."
    assert parse_answer(text) == state


def test_free_spaces_and_line_ends_are_read():
    story = parse_story("  The key is in Box A.\nPut the  cup into\nBox B. ", 2)
    assert [s.text for s in story] == ["The key is in Box A.", "Put the cup into Box B."]
    task = Boxes(boxes=2)
    assert task.encode_story("The key is in Box A.\n") == task.tokenizer.encode(story[0].text)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "the story is empty"),
        ("The key is in Box A. Put the kee into Box B.", "sentence 2, 'Put the kee into Box B.'"),
        ("Put the kee into Box B.", "unknown object 'kee'; did you mean 'key'"),
        ("The key is in Box Q.", "unknown box 'Q'; expected A to G"),
        ("The key is in Box AB.", "unknown box 'AB'"),
        ("Put key in Box B.", "expected 'Put the OBJECT into Box X.'"),
        ("Move key.", "expected 'Move the contents of Box X to Box Y.' or 'Move the OBJECT"),
        ("Throw the key.", "unknown opening 'Throw'; expected one of 'The OBJECT is in Box X.'"),
        ("The key is in Box A. .", "sentence 2, '.': expected one of"),
        ("The key is in Box A", "expected a period at the end"),
        ("Put the key into Box A. The cup is in Box B.", "sentence 2, 'The cup is in Box B.': the"),
    ],
)
def test_malformed_stories_are_pointed_at(text, told):
    with pytest.raises(ValueError, match=r"expected|must come|unknown") as caught:
        parse_story(text, 7)
    assert told in str(caught.value)


def test_objects_beyond_the_known_ones_are_unknown():
    assert parse_story("The key is in Box A.", 2, OBJECTS[:2])
    with pytest.raises(ValueError, match="unknown object 'lamp'"):
        parse_story("The lamp is in Box A.", 2, OBJECTS[:2])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("The key is in Box A. The key is in Box B.", "the key is already in Box A"),
        ("The key is in Box A. Put the key into Box A.", "the key is already in Box A"),
        ("The key is in Box A. Remove the key from Box B.", "not in Box B, it is in Box A"),
        ("The key is in Box A. Remove the cup from Box A.", "not in Box A, it is in no box"),
        ("The key is in Box A. Move the cup from Box A to Box B.", "the cup is not in Box A"),
        ("The key is in Box A. Move the key from Box A to Box A.", "two different boxes"),
        ("The key is in Box A. Move the contents of Box A to Box A.", "two different boxes"),
        ("The key is in Box A. Move the contents of Box B to Box A.", "Box B is empty"),
        ("The key is in Box A. Put the cup into Box A.", "Box A has no room: it holds at most 1"),
    ],
)
def test_inconsistent_stories_are_pointed_at(text, told):
    with pytest.raises(ValueError, match="sentence 2") as caught:
        simulate(parse_story(text, 2), 2, max_items=1)
    assert told in str(caught.value)


@pytest.mark.parametrize(
    "text", ["Box A is", "Box A contains key.", "Box A is empty. Box A is empty.", "A cup."]
)
def test_answers_that_tell_no_state_are_refused(text):
    with pytest.raises(ValueError, match="sentence"):
        parse_answer(text)


def test_there_are_a_hundred_different_objects_in_plain_letters():
    assert len(set(OBJECTS)) == len(OBJECTS) >= 100
    assert all(name.replace(" ", "").isalpha() and name.islower() for name in OBJECTS)
