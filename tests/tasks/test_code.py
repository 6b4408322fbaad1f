"""Programs: an interpreter of our own re-derives every label; splits, seeds, tokens, JSONL."""

import dataclasses
import json
import re

import numpy as np
import pytest

from chacal.tasks import IGNORE, Code, Labelled
from chacal.tasks.code import PIECES, UPDATES, execute


def value_of(text, scope):
    return int(text) if text.isdigit() else scope[text]


def blocks(lines):
    """Top-level lines, each with the indented ones below it."""
    out = []
    for line in lines:
        if line.startswith("    "):
            out[-1][1].append(line[4:])
        else:
            out.append((line, []))
    return out


def run_line(line, scope, function):
    if match := re.fullmatch(r"(\w), (\w) = (\w), (\w)", line):
        a, b, c, d = match.groups()
        scope[a], scope[b] = scope[c], scope[d]
    elif match := re.fullmatch(r"(\w) ([+-])= (\d)", line):
        name, sign, digit = match.groups()
        scope[name] = scope[name] + (int(digit) if sign == "+" else -int(digit))
    elif match := re.fullmatch(r"(\w) = f\((\w)\)", line):
        scope[match[1]] = call(function, scope[match[2]])
    elif match := re.fullmatch(r"(\w) = (\w)", line):
        scope[match[1]] = value_of(match[2], scope)
    else:
        raise AssertionError(line)


def call(function, argument):
    parameter, body = function
    scope = {parameter: argument}
    for line in body[:-1]:
        run_line(line, scope, None)
    return scope[body[-1].removeprefix("return ")]


def interpret(text):
    """The asked value, worked out line by line without Python's own interpreter."""
    *lines, question = text.split("\n")
    scope, function, then = {}, None, True
    for head, body in blocks(line for line in lines if not line.startswith("#")):
        if head.startswith("def "):
            function = (head[6], body)
        elif match := re.fullmatch(r"if (\w) (>|<|==) (\w):", head):
            a, b = scope[match[1]], scope[match[3]]
            then = {">": a > b, "<": a < b, "==": a == b}[match[2]]
            if then:
                run_line(body[0], scope, function)
        elif head == "else:":
            if not then:
                run_line(body[0], scope, function)
        elif match := re.fullmatch(r"for i in range\((\d)\):", head):
            for _ in range(int(match[1])):
                run_line(body[0], scope, function)
        else:
            run_line(head, scope, function)
    return scope[re.fullmatch(r"# value of (\w) at the end:", question)[1]]


def test_an_independent_interpreter_finds_every_label():
    task = Code(variables=5, updates=12, curriculum_steps=0)
    seen = set()
    for split in ("train", "valid", "test"):
        for text, label, updates in task.programs(split, 3, 0, 200):
            assert interpret(text) == label
            assert 0 <= label <= 9
            *lines, _ = text.split("\n")
            heads = [line for line in lines if line[0] != " " and line != "else:"]
            assert len(heads) - heads[0].startswith("def ") - 5 == updates
            seen |= {
                kind for kind, mark in {
                    "set": r"\n\w = \d\n", "alias": r"\n\w = [a-k]\n", "swap": r"\n\w, \w = ",
                    "augment": r"\n\w \+= ", "branch": r"\nif ", "loop": r"\nfor ",
                    "call": r"= f\(",
                }.items() if re.search(mark, text)
            }  # fmt: skip
    assert seen == set(UPDATES)


def test_scopes_by_hand():
    text = "def f(b):\n    a = b\n    a += 2\n    return a\na = 3\nb = 7\na, b = b, a\nb = f(a)"
    assert execute(text) == {"a": 7, "b": 9}
    assert interpret(text + "\n# value of b at the end:") == 9
    assert interpret(text + "\n# value of a at the end:") == 7


def test_a_program_gets_no_builtins():
    with pytest.raises(NameError):
        execute("a = open")
    with pytest.raises(ImportError):
        execute("import os")


def test_one_seed_the_same_bytes_and_another_others():
    task = Code(curriculum_steps=0)
    first = task.batch("train", 0, 5, 16)
    again = Code(curriculum_steps=0).batch("train", 0, 5, 16)
    assert (first.tokens == again.tokens).all()
    assert (first.targets == again.targets).all()
    other = task.batch("train", 1, 5, 16)
    assert first.tokens.shape != other.tokens.shape or (first.tokens != other.tokens).any()
    # pinned: the same program on any machine, in any version
    text, label, updates = Code(variables=2, updates=2).programs("test", 0, 0, 1)[0]
    assert (text, label, updates) == PINNED


PINNED = ("a = 5\nb = 8\na, b = b, a\na, b = b, a\n# value of a at the end:", 5, 2)


def test_splits_share_no_program():
    task = Code(variables=2, updates=1, curriculum_steps=0)
    told = {s: {t for t, _, _ in task.programs(s, 0, 0, 2000)} for s in ("train", "valid", "test")}
    assert not told["train"] & told["test"]
    assert not told["train"] & told["valid"]
    assert not told["valid"] & told["test"]


def test_tokens_spell_the_text_and_ask_at_its_end():
    task = Code(updates=6)
    told, batch = task.programs("valid", 0, 2, 32), task.batch("valid", 0, 2, 32)
    assert batch.tokens.shape[1] <= task.length
    for (text, label, _), tokens, targets in zip(told, batch.tokens, batch.targets, strict=True):
        end = int(np.flatnonzero(targets != IGNORE)[0])
        assert "".join(task.show(tokens[: end + 1])) == text
        assert targets[end] == label
        assert (targets != IGNORE).sum() == 1
        assert (tokens[end + 1 :] == PIECES.index("<pad>")).all()


def test_the_longest_program_fits():
    task = Code(variables=2, updates=3, min_updates=3, trace=False)
    longest = (
        "def f(a):\n    b = a\n    a, b = b, a\n    return a\na = 1\nb = 2"
        + "\nif a > b:\n    a = b\nelse:\n    b = 3" * 3
        + "\n# value of a at the end:"
    )
    # the line ends before the question are counted with what they end
    assert len(task.encode(longest)[0]) == task.length
    more = dataclasses.replace(task, trace=True)
    assert len(task.encode(longest + "\n# value of b at the end:")[0]) == more.length


def test_difficulty_is_counted_and_a_curriculum_raises_it():
    task = Code(updates=6, curriculum_hold=20, curriculum_steps=10)
    most = [max(task.batch("train", 0, s, 64).info["updates"]) for s in (0, 20, 30, 45, 1000)]
    assert most == [0, 0, 1, 2, 6]
    batch = task.batch("valid", 0, 0, 200)
    assert set(batch.info["updates"]) == set(range(1, 7))
    guesses = batch.targets.copy()
    hard = batch.info["updates"] == 6
    guesses[hard] = (guesses[hard] + 1) % 10
    metrics = task.summarise(task.count(guesses, np.zeros(batch.targets.shape), batch))
    assert metrics["accuracy"] == pytest.approx(1 - hard.mean())
    assert metrics["accuracy/updates=06"] == 0
    assert metrics["accuracy/updates=05"] == 1


def test_another_tokenizer_spells_the_same_text(byte_tokenizer):
    task = Code(updates=3, tokenizer=byte_tokenizer)
    (text, label, _), batch = task.programs("test", 0, 0, 1)[0], task.batch("test", 0, 0, 1)
    assert "".join(task.show(batch.tokens[0])) == text
    assert batch.targets[0, -1] == label
    assert task.num_classes == 10
    assert task.vocab_size >= 256
    with pytest.raises(ValueError, match=r"max_tokens=20: a program has \d+"):
        Code(tokenizer=byte_tokenizer, max_tokens=20).batch("test", 0, 0, 1)


def test_wrong_fields_are_named():
    for field, value in (("variables", 1), ("variables", 9), ("updates", 0), ("min_updates", 9),
                         ("curriculum_hold", -1), ("curriculum_steps", -1)):  # fmt: skip
        with pytest.raises(ValueError, match=f"{field}={value}"):
            Code(**{field: value})
    with pytest.raises(ValueError, match=r"tokenizer='\./none.json': expected the path"):
        Code(tokenizer="./none.json").batch("test", 0, 0, 1)


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_jsonl_of_your_own(tmp_path):
    rows = [{"text": "ab", "label": 7}, {"text": "cde", "label": "x"}, {"text": "f", "label": 7}]
    train = write(tmp_path / "train.jsonl", rows)
    valid = write(tmp_path / "valid.jsonl", rows[:2])
    task = Labelled(train_file=train, valid_file=valid, max_tokens=2)
    assert task.classes == ("7", "x")
    assert (task.num_classes, task.length) == (2, 2)
    batch = task.batch("valid", 0, 0, 2)
    assert batch.tokens.tolist() == [[97, 98], [100, 101]]  # of "cde" the end is kept
    assert batch.targets.tolist() == [[IGNORE, 0], [IGNORE, 1]]
    assert task.batches("valid", 1) == 2
    drawn = {tuple(row) for s in range(20) for row in task.batch("train", 0, s, 4).tokens.tolist()}
    assert len(drawn) >= 3
    guesses = np.zeros_like(batch.targets)
    assert task.summarise(task.count(guesses, guesses, batch))["accuracy"] == 0.5


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"text": "a"}', r"valid.jsonl, line 1: expected an object with a 'text'"),
        ('{"text": "a", "label": 1.5}', "'label' that is a string or a whole number"),
        ("[1]", "expected a JSON object"),
        ("{", "valid.jsonl, line 1 is not JSON"),
        ('{"text": "a", "label": "new"}', "the label 'new' is in no line of"),
        ("", "the file is empty"),
    ],
)
def test_jsonl_that_cannot_be_read(tmp_path, line, message):
    train = write(tmp_path / "train.jsonl", [{"text": "a", "label": "x"}])
    (tmp_path / "valid.jsonl").write_text(line)
    task = Labelled(train_file=train, valid_file=str(tmp_path / "valid.jsonl"))
    with pytest.raises(ValueError, match=message):
        task.batch("valid", 0, 0, 1)


def test_a_text_without_tokens_cannot_be_asked_about(tmp_path):
    # its class would be asked at a place of another text's padding
    tokenizers = pytest.importorskip("tokenizers")
    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "?": 1}, unk_token="?"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    rows = [{"text": "a a", "label": "x"}, {"text": "  ", "label": "x"}]
    file = write(tmp_path / "rows.jsonl", rows)
    task = Labelled(train_file=file, valid_file=file, tokenizer=str(tmp_path / "words.json"))
    with pytest.raises(ValueError, match=r"rows.jsonl, line 2: the tokenizer leaves nothing"):
        task.batch("valid", 0, 0, 2)


def test_a_missing_jsonl_is_told_at_once(tmp_path):
    with pytest.raises(ValueError, match=r"train_file=.none\.jsonl.: expected the path of an"):
        Labelled(train_file="none.jsonl", valid_file="none.jsonl")


@pytest.mark.parametrize("own", [True, False])
def test_a_trace_asks_more_in_training_and_nothing_else(own, byte_tokenizer):
    """Every answer is what the other interpreter says of the program so far."""
    tokenizer = None if own else byte_tokenizer
    task = Code(variables=3, updates=6, curriculum_steps=0, tokenizer=tokenizer)
    plain = dataclasses.replace(task, trace=False)
    told, batch = task.programs("train", 0, 1, 32), task.batch("train", 0, 1, 32)
    assert batch.tokens.shape[1] <= task.length
    after_updates = 0
    for (text, label, _), tokens, targets in zip(told, batch.tokens, batch.targets, strict=True):
        questions, names = [], set()
        for place in np.flatnonzero(targets != IGNORE):
            so_far = "".join(task.show(tokens[: place + 1]))
            assert text.startswith(so_far) or so_far.startswith(text)
            statement = re.split(r"\n(?! |else:)", so_far)[-1]
            name = re.search(r"\b[abc]\b", statement)[0]
            assert interpret(f"{so_far}\n# value of {name} at the end:") == targets[place]
            if statement.startswith("#"):
                questions.append(int(targets[place]))
                names.add(name)
            else:
                after_updates += 1
        assert questions[0] == label
        assert names == {x for x, value in execute(text).items() if 0 <= value <= 9}
        assert len(names) == len(questions)
    # of 32 programs' updates, all but those that leave the digits
    assert after_updates > 0.8 * sum(updates for _, _, updates in told)
    assert (task.batch("valid", 0, 1, 32).targets == plain.batch("valid", 0, 1, 32).targets).all()
    assert ((plain.batch("train", 0, 1, 32).targets != IGNORE).sum(1) == 1).all()


def test_a_row_with_several_questions_is_right_when_all_answers_are():
    task = Code(curriculum_steps=0)
    batch = task.batch("train", 0, 0, 16)
    guesses = batch.targets.copy()
    last = [int(np.flatnonzero(row != IGNORE)[-1]) for row in batch.targets]
    for i in range(4):
        guesses[i, last[i]] = (guesses[i, last[i]] + 1) % 10
    metrics = task.summarise(task.count(guesses, np.zeros(batch.targets.shape), batch))
    assert metrics["accuracy"] == 0.75


def test_no_question_is_lost_to_a_tokenizer_that_joins_it_to_the_end_of_its_line(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    letters = {letter: i for i, letter in enumerate(sorted({*"".join(PIECES), "+", "-"}))}
    made = tokenizers.Tokenizer(
        tokenizers.models.BPE(letters | {":\n": len(letters), ")\n": len(letters) + 1},
                              [(":", "\n"), (")", "\n")])
    )  # fmt: skip
    made.save(str(tmp_path / "tokenizer.json"))
    joining = Code(updates=4, curriculum_steps=0, tokenizer=str(tmp_path / "tokenizer.json"))
    plain = dataclasses.replace(joining, tokenizer=None)
    ours, theirs = (task.batch("train", 0, 0, 32) for task in (plain, joining))
    assert any(":\n" in joining.show(row) for row in theirs.tokens)
    for a, b in zip(ours.targets, theirs.targets, strict=True):
        assert a[a != IGNORE].tolist() == b[b != IGNORE].tolist()
