"""The page's figures: answers against token-by-token decoding, paths against the model's own S."""

import json

import pytest

from chacal._plain import to_plain
from chacal.nn.views import view_layers
from chacal.play.answers import REMEMBERED, Answers
from chacal.play.models import BOXES, BoxesModel
from chacal.play.player import Player
from chacal.tasks.base import stream, uniforms
from chacal.tasks.stories import needed_positions
from chacal.training.tracker import Tracker

STORY = """The unicorn is in box 6. The key is in Box A.
Move the contents of Box F to Box B. Empty box A into box F. Move the contents of Box B to Box D.
put the lamp in box b. Move the contents of Box D to Box C"""
EVERY = [model.name for model in BOXES]


@pytest.fixture(scope="module")
def player():
    return Player()


@pytest.mark.parametrize("name", EVERY)
def test_answers_are_what_a_model_says_token_by_token(player, name):
    answers = player.answers(name)
    model = answers.model
    uniform = uniforms(stream("play answers", name))
    letters = "ABCDEFG"
    for i in range(4):
        story, _ = model.task.story(uniform, "test", 3 * i)
        for count, answer in enumerate(answers.after_each(story), 1):
            said = []
            for _ in letters:  # each box behind the answers before it
                row = answers.sequence(story[:count], (said + [""] * 7)[:7])
                asked = len(row) - 14 + 2 * len(said)
                scores = model.scores(model.padded([row]))[0, asked, model.contents]
                said.append(("", *model.objects)[int(scores.argmax())])
            assert answer.items == tuple(said)
            assert all(0 < share <= 1 for share in answer.sure)


def test_the_exact_model_answers_as_chacal_track_does(player):
    tracker = Tracker()
    figures = player.story(STORY, ["boxes"])
    told = tracker.answer(player.read(STORY).plain)
    assert [items[0] if items else "" for items in told.values()] == [
        {"unicorn": "camera"}.get(item, item) for item in figures.told[0].told[-1]
    ]


def test_a_story_is_told_sentence_by_sentence_in_its_own_names(player):
    figures = player.story(STORY, ["boxes", "boxes-dense"])
    assert figures.sentences[0] == "The unicorn is in Box F."
    assert figures.sentences[3] == "Move the contents of Box A to Box F."
    assert figures.truth[0] == ("", "", "", "", "", "unicorn", "")
    assert figures.truth[-1] == ("", "lamp", "unicorn", "", "", "key", "")
    exact, dense = figures.told
    assert exact.told == figures.truth
    assert exact.wrong == (0,) * 7
    assert dense.wrong == tuple(
        sum(a != b for a, b in zip(said, true, strict=True))
        for said, true in zip(dense.told, figures.truth, strict=True)
    )
    assert figures.updates == 5
    assert figures.trained == 10


def test_one_more_sentence_costs_one_pass_over_one_sequence():
    answers = Answers(BoxesModel(BOXES[0]))
    story = list(Player().read(STORY).story)
    answers.after_each(story[:-1])
    assert (answers.model.calls, answers.model.rows) == (1, len(story) - 1)
    answers.after_each(story)
    assert (answers.model.calls, answers.model.rows) == (2, len(story))
    answers.after_each(story)
    answers.after_each(story[:3])
    assert answers.model.calls == 2


def test_the_memory_of_answers_has_an_end(monkeypatch):
    assert REMEMBERED <= 4096
    monkeypatch.setattr("chacal.play.answers.REMEMBERED", 5)
    answers = Answers(BoxesModel(BOXES[0]))
    story = list(Player().read(STORY).story)
    assert len(answers.after_each(story)) == len(story)
    assert len(answers.known) == 5


@pytest.mark.parametrize("name", EVERY)
def test_hops_are_the_models_own(player, name):
    figures = player.hops(STORY, name, "C")
    answers = player.answers(name)
    model = answers.model
    story = player.read(STORY).story
    items = answers.after_each(story)[-1].items
    row = answers.sequence(story, items)
    n, question = len(row), figures.question
    assert figures.tokens[question] == "Box C"
    assert len(figures.tokens) == len(figures.sentence) == n
    views = view_layers(model.net, model.padded([row]))
    rows = player.rows(STORY, name)
    for layer, its_rows, view in zip(figures.layers, rows.layers, views, strict=True):
        for number, (head, its) in enumerate(zip(layer.heads, its_rows, strict=True)):
            S = (view.A if view.S is None else view.S)[number, question, :n]
            # all hops together, and what came through summaries, are all that the head reads
            assert sum(head.hops) + head.summarised == pytest.approx(1, abs=2e-3)
            for source in head.sources:
                if not head.summarised:
                    assert source.share == pytest.approx(float(S[source.token]), abs=2e-3)
                assert sum(source.hops) == pytest.approx(1, abs=2e-3)
            for path in head.paths:
                assert path.tokens[0] == question
                hops = zip(path.tokens, path.tokens[1:], strict=False)
                for (a, b), weight in zip(hops, path.weights, strict=True):
                    assert weight == pytest.approx(float(view.hops[number, a, b]), abs=1e-4)
            for at, weight in its.A[question]:
                assert weight == pytest.approx(float(view.A[number, question, at]), abs=1e-4)
            for token, entries in enumerate(its.S):
                for at, weight in entries:
                    assert weight == pytest.approx(float(view.S[number, token, at]), abs=1e-4)
    assert json.loads(json.dumps(to_plain(figures)))["box"] == "C"


def test_the_strongest_path_is_the_chain_that_the_story_needs(player):
    figures = player.hops(STORY, "boxes", "C")
    assert (figures.answer, figures.truth) == ("unicorn", "unicorn")
    head = figures.layers[figures.layer].heads[figures.head]
    assert head.need > 1
    best = head.paths[0]
    assert figures.tokens[best.tokens[-1]] == "unicorn"
    needed = needed_positions(player.read(STORY).story, 7)["C"]
    assert len(set(needed) & set(best.tokens)) >= len(needed) - 1
    source = next(s for s in head.sources if s.token == best.tokens[-1])
    assert max(range(len(source.hops)), key=source.hops.__getitem__) == len(best.weights)


def test_without_gamma_there_is_one_hop_and_the_answer_fails(player):
    figures = player.hops(STORY, "boxes", "C", gamma=0.0)
    assert figures.answer != figures.truth
    for head in figures.layers[figures.layer].heads:
        assert sum(head.hops[:2]) == pytest.approx(1, abs=1e-3)
        assert max(len(path.weights) for path in head.paths) <= 1
    # and the model is itself again
    assert player.hops(STORY, "boxes", "C").answer == "unicorn"
    assert [str(op) for op in player.first.operators] == ["dense", "chacal"]


def test_an_earlier_step_is_the_same_as_a_shorter_story(player):
    short = " ".join(player.story(STORY, []).sentences[:3])
    assert player.hops(STORY, "boxes", "B", step=3) == player.hops(short, "boxes", "B")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"box": "H"}, "box is 'H'"),
        ({"box": "AB"}, "box is 'AB'"),
        ({"model": "gpt"}, "model is 'gpt'"),
        ({"step": 0}, "step is 0"),
        ({"step": 99}, "step is 99"),
        ({"gamma": 1.0}, "gamma is 1.0"),
        ({"text": "Fold."}, "no sentence"),
    ],
)
def test_what_cannot_be_asked_is_said(player, change, words):
    asked = {"text": STORY, "model": "boxes", "box": "C", **change}
    with pytest.raises(ValueError, match=words):
        player.hops(**asked)


def test_a_drawn_story_has_what_was_asked_for(player):
    text = player.draw(3, 4, 9)
    assert text == player.draw(3, 4, 9) != player.draw(4, 4, 9)
    figures = player.story(text, [])
    assert figures.updates == 9
    assert not any(c.fault for c in figures.clauses)
    assert not any(any(items[4:]) for items in figures.truth)
    with pytest.raises(ValueError, match="boxes is 9"):
        player.draw(0, 9, 3)


def test_the_grid_of_pointers(player):
    figures = player.chain(5)
    assert figures.told == figures.values
    for place in (8, 60, 127):
        route = figures.routes[place]
        assert len(route) == place // 8 + 1
        assert figures.symbols[route[-1]] == f"v{figures.values[place]}"
        assert figures.paths[place].tokens == route
    blind = player.chain(5, gamma=0.0)
    assert len(blind.paths[127].tokens) <= 2
    wrong = sum(a != b for a, b in zip(blind.told, blind.values, strict=True))
    assert wrong > 64
