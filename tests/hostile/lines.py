"""Command lines that a hostile or careless user may type, from click's own parameters.

Commands, options and their kinds are read from the command itself, so a new option is tried as
soon as it exists. Every line begins with sizes that are small, where the command has such options;
then follow options with values of all kinds, as often sound as not.
"""

from dataclasses import dataclass

import click
from hypothesis import strategies as st

from chacal.commands.cli import cli

SMALL = {
    "steps": "1", "width": "8", "heads": "2", "batch_size": "2", "eval_examples": "2",
    "test_examples": "2", "examples": "2", "rounds": "1", "lengths": "16", "contexts": "16",
    "blocks": "3", "block_size": "4", "window": "16", "updates": "3", "boxes": "3",
    "max_tokens": "32", "scale": "smoke", "eval_tokens": "64",
}  # fmt: skip
"""What keeps a line that is not refused short."""

WHOLE = [
    "0", "1", "2", "3", "7", "16", "-1", "-0", "+5", "64", "1000", "100000", "2147483647",
    "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808",
    "99999999999999999999", "1" + "0" * 400, "1_0", "0x10", "1.0", "1e3", "٣", "",
]  # fmt: skip

REAL = [
    "0", "0.5", "-0.0", "1", "1e-300", "1e308", "1e400", "-1e400", "nan", "-nan", "inf",
    "-inf", "1e-3", "0,5", "none", "None", "5e-324", "",
]  # fmt: skip

TEXT = [
    "", " ", "none", "-", "--", "--help", "=", ",", "a", "ü", "箱", "🙂", "\u202e", "\x1b[31m",
    "\n", "a\nb", "\udcff", "%s", "%(x)s", "{}", "{0}", "[red]", "[/red]", "[link=x]", "\\", "'",
    '"', "../..", "x" * 300, "hub:", "hub::", "hub:a:b:c", "hub:a@b:train:5-", "hub:a:train:5",
    "bpe:", "bpe:0", "bpe:-1", "bpe:99999999999999999999", "bpe:x", "help", "gpt2", "cuda", "auto",
    "rotary", "learned", "factorised", "linear", "cosine", "contract_nli", "train", "tab:boxes",
]  # fmt: skip

PLACES = [
    "", ".", "..", "nowhere", "nowhere/deeper", "/dev/null/x", "/proc/self/nowhere/x", "empty",
    "file", "file/x", "folder", "folder/config.json", "x" * 300, "ü/箱", "\udcff", " ", "~", "~/x",
    "a\nb", "[red]", "-", "link", "config", "broken.gguf", "broken.json", "lines.jsonl",
]  # fmt: skip

OPERATORS = [
    "dense", "local", "local@3", "bigbird@2", "chacal", "block/3", "block@4", "window@4", "pooled",
    "pooled@2", "routed@2", "pattern", "t_post", "t_pre", "chacal,top_k=2", "formed", "stock",
]  # fmt: skip

WRONG = [
    "", ",", "@", "/", "block", "block/", "block@", "block/0", "block@-1", "block/-3", "block/x",
    "block@3/3", "block@@3", "window@0", "window@99999999999999999999", "local@2147483648",
    "bigbird@2,links=99999999999999999999", "bigbird@2,seed=-1", "bigbird@2,seed=1" + "0" * 30,
    "chacal,gamma=1", "chacal,gamma=nan", "chacal,gamma=-0.1", "chacal,gamma=inf", "chacal,gamma",
    "chacal,gamma=", "chacal,gamma=0.5,gamma=0.6", "chacal,top_k=0", "chacal,top_k=" + "9" * 30,
    "chacal,diagonal=x", "pattern,offsets=", "pattern,offsets=0", "pattern,offsets=-1",
    "pattern,offsets=+", "pattern,offsets=1+1", "pattern,offsets=" + "9" * 30, "dense,,dense",
    "routed@2,parts=0", "routed@2,routes=" + "9" * 30, "pooled@2,near=-1", "chacal@3", "CHACAL",
    "chacal chacal", "chacal;dense", "block/" + "9" * 5000, "chacal,γ=0.5", "chacal\n", "箱",
]  # fmt: skip

STORIES = [
    "", " ", ".", "Box", "The camera is in Box F.", "The camera is in Box F. Move the contents of "
    "Box F to Box B.", "Move the camera from Box A to Box A.", "The 箱 is in Box F.",
    "The camera is in Box Z.", "Remove the camera from Box F.", "The camera is in Box F. " * 300,
    "Put the camera into Box F", "Box F contains the camera and the camera.", "[red]",
]  # fmt: skip


@dataclass(frozen=True)
class Line:
    """A command line, and what lies in its standard input."""

    args: tuple[str, ...]
    stdin: bytes = b""


def commands() -> list[tuple[tuple[str, ...], click.Command]]:
    """Every command there is, with the words that name it."""
    found: list[tuple[tuple[str, ...], click.Command]] = []

    def walk(words: tuple[str, ...], command: click.Command) -> None:
        if isinstance(command, click.Group):
            for name, inner in command.commands.items():
                walk((*words, name), inner)
        else:
            found.append((words, command))

    walk((), cli)
    return found


def _value(parameter: click.Parameter) -> st.SearchStrategy[str]:
    """Values for a parameter: mostly of its kind, sometimes of any."""
    name, kind = parameter.name or "", parameter.type
    anything = st.sampled_from([*WHOLE, *REAL, *TEXT, *WRONG]) | st.text(max_size=8).filter(
        lambda text: "\0" not in text
    )
    if name in ("operator", "operators"):
        own = st.sampled_from(OPERATORS) | st.sampled_from(WRONG)
        own |= st.lists(own, min_size=2, max_size=3).map(",".join)
    elif name == "settings":
        own = st.builds("{}={}".format, st.sampled_from(
            ["min_updates", "blocks", "name", "length", "updates", "", "__class__", "hops"]
        ), anything)  # fmt: skip
    elif name == "story":
        own = st.sampled_from(STORIES)
    elif name == "table":
        own = st.sampled_from(["tab:boxes", "tab:lm_all", "tab:scrolls", "tab:", ""])
    elif isinstance(kind, click.Choice):
        own = st.sampled_from([*map(str, kind.choices), "", "x"])
    elif isinstance(kind, click.Path) or name in ("data", "init") or "file" in name:
        own = st.sampled_from(PLACES)
    elif name == "threads":
        # each takes 72 MiB of addresses, which the child has little of, and hardly any memory
        return st.integers(-2, 4).map(str) | st.sampled_from(["1025", "9" * 20, "", "x"])
    elif "int" in kind.name:
        own = st.sampled_from(WHOLE) | st.integers(-5, 40).map(str)
    elif "float" in kind.name:
        own = st.sampled_from(REAL) | st.floats(0, 2).map(str)
    else:
        own = st.sampled_from([*TEXT, *PLACES])
    return st.integers(0, 9).flatmap(lambda i: own if i else anything)


@st.composite
def lines(draw: st.DrawFn) -> Line:
    """A command with small sizes and up to four more options."""
    words, command = draw(st.sampled_from(commands()))
    options = [p for p in command.params if isinstance(p, click.Option)]
    chosen = draw(st.lists(st.sampled_from(options), max_size=4)) if options else []
    args = list(words)
    for option in options:
        if option.name in SMALL and option not in chosen:
            args += [option.opts[-1], SMALL[option.name]]
    for option in chosen:
        flag = draw(st.sampled_from([*option.opts, *option.secondary_opts]))
        args.append(flag)
        if not option.is_flag:
            args.append(draw(_value(option)))
    if words == ("reproduce",) and draw(st.integers(0, 9)):
        args.append("--no-run")
    for argument in (p for p in command.params if isinstance(p, click.Argument)):
        few = st.integers(0, 2) if argument.nargs < 0 else st.sampled_from([1, 1, 1, 1, 0, 2])
        args += [draw(_value(argument)) for _ in range(draw(few))]
    if not draw(st.integers(0, 19)):
        args.append(draw(st.sampled_from([*TEXT, "--no-such-option", "-x", "--"])))
    stdin = draw(st.sampled_from(STORIES)).encode() if words == ("track",) else b""
    return Line(tuple(args), stdin)


def furnish(folder) -> None:
    """What `PLACES` names, in a folder that is the working one."""
    (folder / "empty").mkdir()
    (folder / "folder").mkdir()
    (folder / "folder" / "config.json").write_text("{}")
    (folder / "config").mkdir()
    (folder / "config" / "config.json").write_text("[" * 100_000)
    (folder / "file").write_bytes(b"\xff\xfe\x00 not text")
    (folder / "broken.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 40)
    (folder / "broken.json").write_text('{"model": {"type": "BPE"}}')
    (folder / "lines.jsonl").write_text('{"text": "a", "label": 1}\n5\n')
    (folder / "link").symlink_to("link")
