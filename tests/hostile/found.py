"""What once went wrong, as `make fuzz` printed it; the suite tries all of it, always."""

from damage import Edit
from lines import Line
from special import Case

LINES = [
    Line(("track", "--run", "a\nb")),
    Line(("train", "boxes-files", "\n")),
    Line(("bench", "ops", "-n", "16", "--rounds", "1", "routed@2,routes=" + "9" * 30)),
    # trained, and then could not read its own checkpoint
    Line(
        (
            "train",
            "boxes-forms",
            "--boxes",
            "3",
            "--width",
            "8",
            "--heads",
            "2",
            "--steps",
            "1",
            "--batch-size",
            "2",
            "--eval-examples",
            "2",
            "--test-examples",
            "2",
            "--out",
            "\udcff",
            "--operations",
            "2",
        )
    ),
    Line(("play", "--host", "\x80")),
    # Ctrl-C waited for the processes to end by themselves
    Line(("bench", "context", "--heads", "2", "--width", "8", "--rounds", "1")),
]

FILES = [
    Edit("finished", "result.json", "line gone", 263),
    Edit(house="report", file="scale.json", how="value", where=20045, value="a word of 3,000"),
    Edit(house="hf", file="model/config.json", how="value", where=1048575, value="chacal"),
    Edit(house="finished", file="result.json", how="value", where=1406, value=-1),
    Edit(house="resume", file="best.safetensors", how="folder", where=723, value=1000000),
]

TENSORS = [
    # PyTorch's kernel ended the process
    Case("block@4", (0,), 9, d=3, d_v=3, calls=(4,)),
]
