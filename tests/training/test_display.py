"""What a person sees of an evaluation without a terminal: how far it is, how long it takes."""

from chacal.training import display
from chacal.training.display import Display


def test_an_evaluation_tells_how_far_it_is_and_what_is_left(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr(display.time, "monotonic", lambda: now[0])
    with Display("chacal", 10, "accuracy") as show:
        report = show.evaluation("test")
        report(0, 2000)  # an answer's first tokens, of which no time follows
        for done in (500, 1000, 1500, 2000):
            now[0] += 6
            report(done, 2000)
    lines = capsys.readouterr().err.splitlines()
    # one line in ten seconds at most, and none for what is done
    assert lines == ["chacal  test 1,000/2,000 examples  0:12 left"]


def test_a_quiet_run_says_nothing(capsys):
    with Display("chacal", 10, "accuracy", visible=False) as show:
        show.evaluation("valid")(1, 2)
    assert capsys.readouterr().err == ""
