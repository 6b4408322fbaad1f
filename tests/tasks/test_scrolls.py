"""SCROLLS' layout, written small: what is read, what is learned, how answers are scored."""

import json
import zipfile

import numpy as np
import pytest

from chacal.tasks import IGNORE, Scrolls
from chacal.tasks import scrolls as module

ROWS = [
    {"id": "1", "pid": "1_0", "input": "who?", "output": "the cat"},
    {"id": "1", "pid": "1_1", "input": "who?", "output": "a black cat"},
    {"id": "2", "pid": "2_0", "input": "where to?", "output": "home"},
]
BOS, PAD, EOS = 0, 1, 2


def write(folder, dataset, train=ROWS, validation=ROWS):
    (folder / dataset).mkdir()
    for name, rows in (("train", train), ("validation", validation)):
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        (folder / dataset / f"{name}.jsonl").write_text(lines)
    return str(folder)


def task(folder, dataset="narrative_qa", **more):
    data = write(folder, dataset)
    sizes = {"input_tokens": 8, "output_tokens": 12, **more}
    return Scrolls(dataset=dataset, data=data, **sizes)


def letters(text):
    return [byte + 3 for byte in text.encode()]


def test_a_row_is_the_input_and_then_the_output_shifted(tmp_path):
    batch = task(tmp_path).batch("valid", 0, 0, 2)
    assert batch.tokens.shape == (2, 20)
    assert batch.targets.shape == (2, 12)
    first, second = batch.tokens.tolist()
    assert first[:8] == [BOS, *letters("who?"), EOS, PAD, PAD]
    assert first[8:] == [EOS, BOS, *letters("the cat"), PAD, PAD, PAD]
    assert batch.targets[0].tolist() == [BOS, *letters("the cat"), EOS] + [IGNORE] * 3
    assert second[:8] == [BOS, *letters("where "), EOS]  # cut at its end


def test_rows_of_one_id_are_one_question_but_for_training(tmp_path):
    made = task(tmp_path)
    assert [q.outputs for q in made.questions("test")] == [("the cat", "a black cat"), ("home",)]
    assert made.train_rows == 3
    assert len(task(tmp_path / "..", "contract_nli", limit=1).questions("valid")) == 1


def test_an_epoch_sees_every_row_once(tmp_path):
    made = task(tmp_path)
    seen = [made.batch("train", 5, step, 1).info["question"].item() for step in range(24)]
    epochs = [seen[i : i + 3] for i in range(0, 24, 3)]
    assert all(sorted(epoch) == [0, 1, 2] for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) > 1
    # a batch may reach into the next epoch
    across = made.batch("train", 5, 1, 2).info["question"].tolist()
    assert across == [epochs[0][2], epochs[1][0]]
    longest = made.batch("train", 5, 0, 3)
    assert longest.targets.shape[1] == len("a black cat") + 2 - 1  # cut to 12 tokens


def answer(made, *texts):
    rows = [[BOS, *letters(text), EOS, *letters("more")] for text in texts]
    n = max(map(len, rows))
    return np.array([row + [PAD] * (n - len(row)) for row in rows])


def metrics(made, *texts):
    batch = made.batch("valid", 0, 0, 2)
    losses = np.where(batch.targets == IGNORE, 0.0, 0.5)
    return made.summarise(made.count(answer(made, *texts), losses, batch))


def test_answers_are_scored_up_to_their_end(tmp_path):
    told = metrics(task(tmp_path), "Black cat.", "house")
    assert told["f1"] == told["score"] == pytest.approx(50)
    assert told["loss"] == pytest.approx(0.5)


def test_answers_of_the_train_split_are_scored_against_their_own_references(tmp_path):
    made = task(tmp_path)
    batch = made.batch("train", 0, 0, 3)
    references = [made.questions("train")[i].outputs[0] for i in batch.info["question"]]
    losses = np.zeros(batch.targets.shape)
    assert made.summarise(made.count(answer(made, *references), losses, batch))["f1"] == 100


def test_choices_and_summaries(tmp_path):
    exact = metrics(task(tmp_path, "contract_nli"), "the cat", "Home")
    assert exact["em"] == exact["score"] == 100
    pytest.importorskip("rouge_score")
    told = metrics(task(tmp_path, "gov_report"), "the cat", "nowhere")
    assert told["rouge1"] == told["rouge2"] == told["rougeL"] == pytest.approx(50)
    assert told["rouge"] == told["score"] == pytest.approx(50)


def test_the_geometric_mean_is_of_the_means(tmp_path):
    pytest.importorskip("rouge_score")
    told = metrics(task(tmp_path, "gov_report"), "the cat", "home")
    # a summary of one word has no pair of words, so the mean of geometric means would be 50
    assert (told["rouge1"], told["rouge2"], told["rougeL"]) == pytest.approx((100, 50, 100))
    assert told["rouge"] == told["score"] == pytest.approx((100 * 50 * 100) ** (1 / 3))


def test_the_hubs_zip_file_is_read_as_a_folder_is(tmp_path, monkeypatch):
    folder = task(tmp_path)
    archive = tmp_path / "narrative_qa.zip"
    with zipfile.ZipFile(archive, "w") as file:
        for name in ("train", "validation"):
            inside = f"narrative_qa/{name}.jsonl"
            file.write(tmp_path / inside, inside)
    monkeypatch.setattr(module, "download", lambda repository, name: tmp_path / name)
    hub = Scrolls(dataset="narrative_qa", input_tokens=8, output_tokens=12)
    for split in ("train", "valid", "test"):
        assert hub.questions(split) == folder.questions(split)
    assert hub.train_rows == 55_003  # known without a download
    for content in (b"no zip file", b"PK\x05\x06" + bytes(18)):  # the second is an empty archive
        archive.write_bytes(content)
        broken = Scrolls(dataset="narrative_qa")
        with pytest.raises(ValueError, match=r"a zip file with narrative_qa/train\.jsonl in it"):
            broken.questions("train")


def test_another_tokenizer_needs_barts_special_tokens(tmp_path, byte_tokenizer):
    with pytest.raises(ValueError, match="lacks one of <s>, <pad>, </s>"):
        task(tmp_path, tokenizer=byte_tokenizer).batch("valid", 0, 0, 1)
    from tokenizers import Tokenizer

    made = Tokenizer.from_file(byte_tokenizer)
    made.add_special_tokens(["<s>", "<pad>", "</s>"])
    made.save(str(tmp_path / "bart.json"))
    bart = Scrolls(
        dataset="narrative_qa", data=str(tmp_path), tokenizer=str(tmp_path / "bart.json"),
        input_tokens=8, output_tokens=12,
    )  # fmt: skip
    targets = bart.batch("valid", 0, 0, 2).targets[0]
    assert bart.decode(targets[targets != IGNORE]) == "the cat"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": "qasper"}, "dataset='qasper': expected one of gov_report"),
        ({"data": "nowhere"}, r"data='nowhere': expected a folder with contract_nli/train.jsonl"),
        ({"output_tokens": 2}, "output_tokens=2"),
    ],
)
def test_wrong_fields_are_named(changes, message):
    with pytest.raises(ValueError, match=message):
        Scrolls(**{"data": "help", **changes})


def test_lines_that_are_none_are_named(tmp_path):
    data = write(tmp_path, "contract_nli", validation=[{"id": "1", "input": "x"}])
    (tmp_path / "contract_nli" / "train.jsonl").write_text("\n")
    with pytest.raises(ValueError, match=r"contract_nli/train.jsonl: the file is empty"):
        Scrolls(data=data).train_rows  # noqa: B018 - reading it raises
    with pytest.raises(ValueError, match=r"validation.jsonl, line 1: expected an object with id"):
        Scrolls(data=data).batch("valid", 0, 0, 1)
