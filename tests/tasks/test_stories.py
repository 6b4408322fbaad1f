"""The language of Boxes on stories small enough to solve by hand."""

import itertools

import pytest

from chacal.tasks import OBJECTS, Boxes, needed_positions, parse_answer, parse_story, simulate
from chacal.tasks.base import stream, uniforms
from chacal.tasks.stories import Sentence, answer_pieces, vocabulary


def needed(text: str, boxes: int = 3, max_items: int = 1) -> dict[str, list[tuple[int, str]]]:
    """`needed_positions` as (position, phrase) in the tokens of the whole sequence."""
    story = parse_story(text, boxes)
    state = simulate(story, boxes)
    task = Boxes(boxes=boxes)
    phrases = ["<start>", *(piece for sentence in story for piece in sentence.pieces)]
    assert task.show(task.encode_story(text)) == phrases
    assert task.tokenizer.decode(task.tokenizer.encode(text)) == text
    phrases += answer_pieces(state)
    found = needed_positions(story, boxes, max_items)
    return {box: [(at, phrases[at]) for at in positions] for box, positions in found.items()}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("The key is in Box F.", [" The", " key", " is in Box", " F."]),
        ("Put the key into Box F.", [" Put the", " key", " into Box", " F."]),
        ("Remove the key from Box F.", [" Remove the", " key", " from Box", " F."]),
        ("Move the key from Box B to Box F.", [" Move the", " key", " from Box B to Box", " F."]),
        (
            "Move the contents of Box H to Box F.",
            [" Move the contents of Box", " H", " to Box", " F."],
        ),
    ],
)
def test_every_sentence_is_four_tokens_that_end_in_the_same_letter_token(text, told):
    task = Boxes(boxes=8)
    (sentence,) = parse_story(text, 8)
    assert sentence.pieces == told
    assert sentence.text == text
    assert task.show(task.tokenizer.encode(text)) == told
    assert task.show(task.encode_story(text)) == ["<start>", *told]
    assert task.encode_story(text)[4] == task.tokenizer.ids[" F."]


def test_each_thing_of_the_answer_is_one_token():
    pieces = answer_pieces({"A": ["camera", "key"], "B": [], "C": ["lamp"], "D": []})
    assert pieces == [
        *(" Box A", " contains the camera", " and the key", ". Box B", " is empty"),
        *(". Box C", " contains the lamp", ". Box D", " is empty", "."),
    ]
    told = "Box A contains the camera and the key. Box B is empty. Box C contains the lamp."
    tool = vocabulary(4, 3)
    assert [tool.phrases[i] for i in tool.encode(f"{told} Box D is empty.")] == pieces


@pytest.mark.parametrize(("boxes", "objects"), [(2, 2), (3, 4), (26, 12)])
def test_the_vocabulary_is_what_stories_and_answers_use(boxes, objects):
    letters, names = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"[:boxes], OBJECTS[:objects]
    pairs = list(itertools.permutations(letters, 2))
    story = [Sentence("contents", "", a, b) for a, b in pairs]
    story += [Sentence("move", name, a, b) for a, b in pairs for name in names]
    for name, box in itertools.product(names, letters):
        story += [Sentence(kind, name, "", box) for kind in ("is", "put")]
        story.append(Sentence("remove", name, box))
    tool = vocabulary(boxes, objects)
    used = set()
    for pieces in [
        *(sentence.pieces for sentence in story),
        answer_pieces({box: [] for box in letters}),
        *(answer_pieces({box: [n] for box in letters}) for n in names),
        *(answer_pieces({"A": [names[0], n], "B": []}) for n in names),
    ]:
        assert [tool.phrases[i] for i in tool.encode("".join(pieces)[1:])] == pieces
        used.update(pieces)
    assert used == set(tool.phrases) - {"<pad>", "<start>"}
    assert len(tool) == 2 + 12 + (4 * boxes - 1) + 3 * objects


def test_chain_of_contents_moves_is_followed_to_its_root():
    got = needed(
        "The key is in Box A. "  # 1-4, after the start
        "Move the contents of Box A to Box B. "  # 5-8
        "Move the contents of Box B to Box C."  # 9-12, the answer from 13
    )
    assert got == {
        "A": [(13, " Box A"), (6, " A")],
        "B": [(15, ". Box B"), (10, " B")],
        "C": [(17, ". Box C"), (12, " C."), (8, " B."), (4, " A.")],
    }


def test_puts_removals_and_moves_are_roots_for_single_items():
    got = needed(
        "The key is in Box A. "  # 1-4
        "Put the lamp into Box B. "  # 5-8
        "Remove the key from Box A. "  # 9-12
        "Move the lamp from Box B to Box A."  # 13-16, the answer from 17
    )
    assert got == {
        "A": [(17, " Box A"), (16, " A.")],
        "B": [(19, ". Box B"), (15, " from Box B to Box")],
        "C": [(21, ". Box C")],
    }


def test_a_removal_is_a_root_and_the_last_mention_counts():
    got = needed(
        "The key is in Box A. "  # 1-4
        "The cup is in Box B. "  # 5-8
        "Remove the key from Box A. "  # 9-12
        "Move the contents of Box B to Box A. "  # 13-16
        "Put the pan into Box B. "  # 17-20
        "Remove the cup from Box A."  # 21-24, the answer from 25
    )
    assert got == {
        "A": [(25, " Box A"), (24, " A.")],
        "B": [(27, ". Box B"), (20, " B.")],
        "C": [(29, ". Box C")],
    }


def test_emptied_box_that_is_filled_again_and_moved_on():
    got = needed(
        "The key is in Box A. "  # 1-4
        "Remove the key from Box A. "  # 5-8
        "Put the cup into Box A. "  # 9-12
        "Move the contents of Box A to Box C."  # 13-16, the answer from 17
    )
    assert got["C"] == [(21, ". Box C"), (16, " C."), (12, " A.")]
    assert got["B"] == [(19, ". Box B")]
    assert got["A"] == [(17, " Box A"), (14, " A")]


def test_boxes_of_several_items_need_their_earlier_mentions_too():
    text = (
        "The key is in Box A. "  # 1-4
        "The cup is in Box B. "  # 5-8
        "Put the pan into Box A. "  # 9-12
        "Move the contents of Box A to Box B. "  # 13-16
        "Remove the key from Box B."  # 17-20, the answer from 21: A, empty, B, cup, pan, C
    )
    got = needed(text, max_items=3)
    assert got["B"] == [
        *((23, ". Box B"), (20, " B."), (16, " B."), (12, " A."), (8, " B."), (4, " A."))
    ]
    assert got["A"] == [(21, " Box A"), (14, " A")]
    assert got["C"] == [(26, ". Box C")]


def test_a_single_move_keeps_the_rest_of_its_source_and_of_its_target():
    text = (
        "The key is in Box A. "  # 1-4
        "The cup is in Box A. "  # 5-8
        "The pan is in Box B. "  # 9-12
        "Move the key from Box A to Box B."  # 13-16, the answer from 17: A, cup, B, pan, key, C
    )
    assert needed(text, max_items=2) == {
        "A": [(17, " Box A"), (15, " from Box A to Box"), (8, " A."), (4, " A.")],
        "B": [(19, ". Box B"), (16, " B."), (12, " B.")],
        "C": [(22, ". Box C")],
    }


def test_in_generated_stories_the_root_names_what_the_box_holds():
    task = Boxes(updates=31, min_updates=31)
    deepest = 0
    for seed in range(20):
        story, state = task.story(uniforms(stream(seed)), "train", 31)
        owner = [None, *(sentence for sentence in story for _ in sentence.pieces)]
        for box, positions in needed_positions(story, 7).items():
            assert positions == sorted(positions, reverse=True)
            root = owner[positions[-1]] if len(positions) > 1 else None
            if state[box]:
                assert state[box] == [root.item]
            else:
                assert root is None or (box == root.source and len(positions) == 2)
            deepest = max(deepest, len(positions) - 2)
    assert deepest > 8


def read_back(phrases: list[str], box: str, at: int) -> list[int]:
    """The mentions that a box's state before `at` passes through, for one item per box.

    Reads nothing but the token strings, from the end to the start.
    """
    path = []
    while at := at - 1:
        if phrases[at] not in (f" {box}", f" {box}.", f" from Box {box} to Box"):
            continue
        path.append(at)
        if phrases[at] != f" {box}." or phrases[at - 3] != " Move the contents of Box":
            break
        box, at = phrases[at - 2][1:], at - 3
    return path


def test_needed_positions_are_what_reading_the_tokens_backwards_finds():
    task = Boxes()
    roots = set()
    for seed in range(30):
        story, state = task.story(uniforms(stream(seed)), "train", seed)
        phrases = task.show(task.encode_story(" ".join(s.text for s in story)))
        end = len(phrases)
        phrases += answer_pieces(state)
        found = needed_positions(story, 7)
        assert list(found) == list("ABCDEFG")
        for i, (box, positions) in enumerate(found.items()):
            # a box of at most one item takes two tokens of the answer
            assert positions == [end + 2 * i, *read_back(phrases, box, end)]
            assert phrases[positions[0]] == f"{'. Box' if i else ' Box'} {box}"
            roots.add(phrases[4 * ((positions[-1] - 1) // 4) + 1] if positions[1:] else "")
    kinds = {" The", " Put the", " Remove the", " Move the", " Move the contents of Box"}
    assert roots == {"", *kinds}


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
    told = [1, *task.tokenizer.encode(story[0].text)]
    assert task.encode_story("The key is in Box A.\n") == told
    assert task.tokenizer.decode(told) == story[0].text


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
