"""Every command is declared here, those of `chacal bench` in a file beside: parse and call.

What a command prints is in the file of its name.
"""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any

import click

from chacal._echo import one_line, shown
from chacal._version import __version__
from chacal.commands.bench_group import bench
from chacal.commands.options import Examples, options_of
from chacal.commands.train import OF_PRETRAINED, is_text
from chacal.tasks import TASKS
from chacal.training.config import ModelConfig, TrainConfig, defaults
from chacal.training.transformers_model import TransformersConfig

OPERATOR_HELP = (
    "dense, local, bigbird, chacal, block/DIVISOR, block@SIZE, window@SIZE, pooled[@SIZE], "
    "routed[@SIZE], pattern, delta; options after commas, as in block/3,rows=mean"
)


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(__version__, prog_name="chacal")
@click.option("--debug", is_flag=True, expose_value=False, help="Show an error's traceback.")
def cli() -> None:
    """Resolvent attention for entity tracking: operators, tasks, training, benchmarks."""


class Tasks(click.Group):
    """A command for each task; an unknown one is answered with those that there are."""

    def get_command(self, ctx: click.Context, name: str) -> click.Command:
        """The command of a task."""
        found = super().get_command(ctx, name)
        if found is None:
            names = ", ".join(self.commands)
            raise click.UsageError(f"task is {shown(name)}; expected one of {names}", ctx)
        return found


@cli.group(cls=Tasks)
def train() -> None:
    """Train a model on a task and write a run folder."""


def _train_command(name: str) -> click.Command:
    cls = TASKS[name]
    model, settings = defaults(name)

    def call(**values: Any) -> None:
        from chacal.commands.console import print_result
        from chacal.commands.train import run_config
        from chacal.training.loop import train as train_run
        from chacal.training.runs import default_folder

        out, resume, force = (values.pop(k) for k in ("out", "resume", "force"))
        config = run_config(name, values)
        out = out or default_folder(config)
        result = train_run(config, out, resume=resume, force=force)
        if result:
            print_result(result, out)

    command = click.Command(name, callback=call, help=(cls.__doc__ or "").split("\n\n")[0])
    command.params += [
        click.Option(["--operator"], help=f"Operator of every layer: {OPERATOR_HELP}."),
        click.Option(
            ["--layers"], help="How many layers --operator fills; with --pretrained, which, from "
            "0, as in 10+14 [all].",
        ),
        click.Option(
            ["--operators"], show_default=",".join(model.operators),
            help="Operator of each layer, first to last, as in dense,chacal.",
        ),
        click.Option(["--out"], type=click.Path(path_type=Path), help="Run folder [runs/...]."),
        click.Option(["--resume"], is_flag=True, help="Go on from the folder's last checkpoint."),
        click.Option(["--force"], is_flag=True, help="Replace a run that is there."),
    ]  # fmt: skip
    if name == "boxes":
        command.params.append(
            click.Option(["--data"], help="Folder of Kim and Schuster's files to train on instead.")
        )
    command.params += options_of(cls)
    if is_text(name):
        command.params += options_of(TransformersConfig, only=("pretrained", *OF_PRETRAINED))
    command.params += options_of(ModelConfig, model, skip=("operators",))
    command.params += options_of(TrainConfig, settings, skip=("sampled",))
    return command


for _name in (name for name in TASKS if name != "scrolls"):  # which no model of chacal.nn reads
    train.add_command(_train_command(_name))


cli.add_command(bench)


@cli.command("eval")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--split", type=click.Choice(["train", "valid", "test"]), default="test",
              show_default=True, help="Which examples.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of the examples.")
@click.option("--examples", type=Examples(), help="How many; of a stored split a fixed sample, or "
              "all [2048; of a pretrained model as many as it was tested on].")  # fmt: skip
@click.option("--batch-size", type=int, help="Sequences at once [64; of a pretrained model those "
              "of its training].")  # fmt: skip
@click.option("--operator", help=f"Swap this operator into the last layer: {OPERATOR_HELP}.")
@click.option("--operators", help="Swap in an operator for each layer.")
@click.option("--top-k", type=int, help="Prune each row of A to its largest entries.")
@click.option("--qk-norm", type=float, help="Another temperature of QK-norm, in all layers: longer "
              "texts than those of training need a higher one.")  # fmt: skip
@click.option("--set", "settings", multiple=True, metavar="FIELD=VALUE",
              help="Change a field of the task, as in min_updates=10; repeatable.")  # fmt: skip
@click.option("--borders", type=int, metavar="J", help="Count exact match also by how many borders "
              "of blocks of n // J the needed chains cross (Boxes).")  # fmt: skip
@click.option("--threads", default=1, show_default=True, help="CPU threads.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def evaluate_run(run: Path, as_json: bool, **options: Any) -> None:
    """Evaluate a trained RUN, if wanted with other operators or with top-k pruning."""
    from chacal.commands.console import print_metrics
    from chacal.training.evaluate_run import evaluate_run

    result = evaluate_run(run, **options)
    if as_json:
        click.echo(json.dumps(result, indent=2))
    else:
        print_metrics(result)


@cli.command("export")
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("out", type=click.Path(path_type=Path))
def export_run(run: Path, out: Path) -> None:
    """Write a fine-tuned RUN to the folder OUT, as transformers and lm_eval load it.

    Adapters are merged, and the tokenizer of the pretrained model is saved beside the weights.
    """
    from chacal.commands.console import print_export
    from chacal.training.export_run import export_run

    print_export(export_run(run, out))


@cli.command()
@click.argument("story", required=False)
@click.option("--file", type=click.Path(path_type=Path), help="Stories, one per line.")
@click.option("--run", type=click.Path(path_type=Path), help="A trained Boxes run [the bundled].")
@click.option("--json", "as_json", is_flag=True, help="One object per story.")
@click.option("--objects", is_flag=True, help="List the objects it knows.")
def track(story: str | None, **options: Any) -> None:
    """Read a STORY of boxes and print what the model says is in each.

    Without STORY or --file, sentences are read from the keyboard and answered one by one, or from
    a pipe, with an empty line between stories:

    \b
    chacal track "The camera is in Box F. Move the contents of Box F to Box B."
    """
    from chacal.commands.track import track_stories

    track_stories(story, **options)


@cli.command()
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen at; "
              "0.0.0.0 lets other machines in.")  # fmt: skip
@click.option("--port", type=click.IntRange(0, 65535), default=8765, show_default=True,
              help="Port; 0 for any that is free.")  # fmt: skip
@click.option("--browser/--no-browser", default=True, show_default=True,
              help="Open the page in a browser.")  # fmt: skip
@click.option("--export", type=click.Path(path_type=Path, dir_okay=False), metavar="FILE.html",
              help="Write one page with a few stories computed ahead, and serve none.")  # fmt: skip
def play(**options: Any) -> None:
    """Open a page on this machine: type a story, see the boxes, and how the model found out."""
    from chacal.commands.play import play_page

    play_page(**options)


@cli.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the pictures [RUN].")
@click.option("--seed", default=0, show_default=True, help="Of the example.")
@click.option("--examples", default=64, show_default=True, help="How many the figures average.")
@click.option("--json", "as_json", is_flag=True, help="Print the figures as JSON.")
def inspect(run: Path, **options: Any) -> None:
    """Draw the attention of a trained RUN: A, its resolvent, and where the mass lies."""
    from chacal.commands.inspect import inspect_run

    inspect_run(run, **options)


@cli.command()
@click.option(
    "--out",
    type=click.Path(path_type=Path),
    help="Where the runs and the picture go [runs/demo, runs/demo-pretrained].",
)
@click.option("--seed", default=0, show_default=True, help="Of weights and examples.")
@click.option(
    "--pretrained",
    help="Compare a pretrained model with and without, fine-tuned on "
    "chains of assignments: folder, GGUF file or hub name.",
)
@click.option("--steps", type=click.IntRange(1), help="Of fine-tuning [240].")
def demo(out: Path | None, **options: Any) -> None:
    """Watch one layer learn to follow chains of 15 hops, and ordinary attention fail to.

    With --pretrained, the same of a model that you have: 240 steps with its own attention, and as
    many with a learned γ in four of its layers.
    """
    from chacal.commands.demo import show_demo

    name = "demo-pretrained" if options["pretrained"] else "demo"
    show_demo(out or Path("runs") / name, **options)


def _ruler_command() -> click.Command:
    cls = TASKS["variables-ruler"]
    hidden = ("min_hops", "curriculum_steps", "valid_file", "test_file")

    def call(file: Path, examples: int, seed: int, split: str, **values: Any) -> None:
        from chacal.tasks import Ruler

        task = Ruler(min_hops=0, **values)
        task.write(str(file), split, seed, examples)
        click.echo(f"{examples} questions of {task.describe()} written to {file}")

    command = click.Command(
        "ruler", callback=call,
        help="Write variable tracking in RULER's format to FILE, one JSON object per line.",
    )  # fmt: skip
    command.params += [
        click.Argument(["file"], type=click.Path(path_type=Path)),
        click.Option(["--examples"], type=click.IntRange(1), default=500, show_default=True,
                     help="How many."),
        click.Option(["--seed"], default=0, show_default=True, help="Of the texts."),
        click.Option(["--split"], type=click.Choice(["train", "valid", "test"]), default="test",
                     show_default=True, help="Splits never share a text."),
        *options_of(cls, skip=hidden),
    ]  # fmt: skip
    return command


cli.add_command(_ruler_command())


@cli.command("eval-tasks")
def eval_tasks() -> None:
    """Print the folder of task files for lm_eval --include_path."""
    from chacal.eval import tasks_path

    click.echo(tasks_path())


@cli.command("reproduce")
@click.argument("table", required=False)
@click.option("--scale", type=click.Choice(["smoke", "cpu", "paper"]), default="cpu",
              show_default=True, help="A few tiny steps; what two cores finish; the paper's "
              "sizes.")  # fmt: skip
@click.option("--seeds", type=int, help="Seeds 0 to N-1 of every cell [the scale's].")
@click.option("--jobs", default=1, show_default=True, help="Cells at once, one thread each.")
@click.option("--engine", type=click.Choice(["local", "ray"]), default="local", show_default=True,
              help="This machine, or a Ray cluster whose nodes share the folder.")  # fmt: skip
@click.option("--address", default="", help="ray: HOST:PORT of the cluster's head [RAY_ADDRESS; or "
              "the one on this machine, or a new one].")  # fmt: skip
@click.option("--cpus", type=int, help="ray: cores of a cell, and its threads [1].")
@click.option("--gpus", type=float, help="ray: cards of a cell, or a part of one [0].")
@click.option("--only", default="", help="Only rows with this in \"row, column\", or with one of "
              "several between |; times of evaluations wait for the whole table, or "
              "--times.")  # fmt: skip
@click.option("--times", is_flag=True, help="With --only: time the evaluations of these rows, in "
              "turns; earlier times of others are dropped.")  # fmt: skip
@click.option("--run/--no-run", default=True, help="Whether to run what is missing, or only to "
              "write the table from what lies in the folder.")  # fmt: skip
@click.option("--out", type=click.Path(path_type=Path), help="Folder [results/SCALE].")
@click.option("--train-file", help="Tables on text: text, or JSONL of text and label, to train on.")
@click.option("--valid-file", help="What they are measured on.")
@click.option(
    "--tokenizer", help="File, folder or hub name, or bpe:SIZE to make one [the scale's]."
)
@click.option("--pretrained", help="Model to fine-tune: folder, GGUF file or hub name; none, for "
              "tab:scrolls: a small one with new weights.")  # fmt: skip
@click.option("--allow-pickle", is_flag=True, help="Also read --pretrained weights that are a "
              "pickle (.bin), which can run code of whoever made them.")  # fmt: skip
@click.option("--data", help="tab:scrolls: folder in the layout of SCROLLS; tab:kim_schuster: "
              "folder of Kim and Schuster's data sets.")  # fmt: skip
def reproduce_table(table: str | None, **options: Any) -> None:
    """Make a TABLE of the paper, or go on with it; without TABLE, list them."""
    from chacal.commands.reproduce import engine_of, list_tables, print_table
    from chacal.experiments.reproduce import reproduce
    from chacal.experiments.scales import Given

    if options.pop("allow_pickle"):
        os.environ["CHACAL_ALLOW_PICKLE"] = "1"  # the jobs that are started read it too
    given = Given(**{f.name: options.pop(f.name) for f in dataclasses.fields(Given)})
    if table is None:
        list_tables()
        return
    out = options.pop("out") or Path("results") / options["scale"]
    names = ("jobs", "address", "cpus", "gpus")
    engine = engine_of(options.pop("engine"), **{name: options.pop(name) for name in names})
    result = reproduce(table, given=given, out=out, engine=engine, **options)
    if result is not None:
        print_table(result, out)
        sys.exit(1 if result.has_failures else 0)


@cli.command()
@click.argument("results", type=click.Path(path_type=Path), default=Path("results"))
@click.option("--out", type=click.Path(path_type=Path), help="Folder for the report [RESULTS].")
def report(results: Path, out: Path | None) -> None:
    """Write one HTML page and a Markdown file of all tables in RESULTS."""
    from chacal.experiments.gather import never_run
    from chacal.experiments.scales import SCALES
    from chacal.experiments.tables import TABLES
    from chacal.report.write import write_report

    empty = {name: never_run(table, SCALES["cpu"]) for name, table in TABLES.items()}
    for line in write_report(results, empty, out):
        click.echo(line)


def main() -> None:
    """The entry point: errors a user can mend are one line and exit code 2."""
    from chacal.training.runs import Interrupted

    debug = "--debug" in sys.argv
    try:
        sys.exit(cli(standalone_mode=False))
    except click.exceptions.NoArgsIsHelpError as error:
        error.show()
        sys.exit(2)
    except click.ClickException as error:
        where = getattr(error, "ctx", None)
        hint = f" (see {where.command_path} --help)" if where else ""
        _say(f"{error.format_message()}{hint}")
        sys.exit(2)
    except (Interrupted, KeyboardInterrupt, click.Abort) as error:
        # one more Ctrl-C waits for the message; after it, it ends us without another word
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        _say(str(error) or "interrupted")
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except (ValueError, OSError) as error:
        if debug:
            raise
        from chacal.training.distributed import LostProcess

        if not isinstance(error, LostProcess) or error.speaks:
            _say(str(error))
        if isinstance(error, LostProcess):
            sys.stdout.flush()
            os._exit(2)  # gloo may wait for the lost one for good while it is taken down
        sys.exit(2)
    except (MemoryError, OverflowError, RuntimeError) as error:
        if debug or not _is_of_size(error):
            raise
        _say(f"memory ran out: {str(error) or 'no more can be had'}; expected smaller sizes")
        sys.exit(2)


def _is_of_size(error: Exception) -> bool:
    """Whether something was too large to be held; torch's own errors tell it only in words."""
    words = ("allocate", "out of memory", "not enough memory", "overflow")
    return not isinstance(error, RuntimeError) or any(w in str(error).lower() for w in words)


def _say(text: str) -> None:
    print(f"chacal: {one_line(text)}", file=sys.stderr, flush=True)
