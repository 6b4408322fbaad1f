"""Every command is declared here: parse and call. What it prints is in the file of its name."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import click

from chacal._version import __version__
from chacal.commands.options import choose_operators, collect, options_of, refuse_options
from chacal.tasks import TASKS
from chacal.training.config import ModelConfig, RunConfig, TrainConfig, defaults

OPERATOR_HELP = (
    "dense, local, bigbird, chacal, block/DIVISOR, block@SIZE, window@SIZE, pooled[@SIZE], "
    "routed[@SIZE], pattern; options after commas, as in block/3,rows=mean"
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
            raise click.UsageError(f"task is {name!r}; expected one of {names}", ctx)
        return found


@cli.group(cls=Tasks)
def train() -> None:
    """Train a model on a task and write a run folder."""


def _train_command(name: str) -> click.Command:
    cls = TASKS[name]
    model, settings = defaults(name)

    def call(**values: Any) -> None:
        from chacal.commands.console import print_result
        from chacal.training.loop import train as train_run
        from chacal.training.runs import default_folder

        out, resume, force = (values.pop(k) for k in ("out", "resume", "force"))
        operator, layers = values.pop("operator"), values.pop("layers")
        data = values.pop("data", None) if name == "boxes" else None
        if data:
            refuse_options(cls, "they describe generated stories, and --data reads its own")
        kind = TASKS["boxes-files"] if data else cls
        task: Any = collect(kind, {**values, "data": data} if data else values)
        values["operators"] = choose_operators(
            values["operators"], operator, layers, model.operators
        )
        config = RunConfig(
            task=task, model=collect(ModelConfig, values), train=collect(TrainConfig, values)
        )
        out = out or default_folder(config)
        result = train_run(config, out, resume=resume, force=force)
        if result:
            print_result(result, out)

    command = click.Command(name, callback=call, help=(cls.__doc__ or "").split("\n\n")[0])
    command.params += [
        click.Option(["--operator"], help=f"Operator of every layer: {OPERATOR_HELP}."),
        click.Option(
            ["--layers"], type=click.IntRange(1), help="How many layers --operator fills."
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
    command.params += options_of(ModelConfig, model, skip=("operators",))
    command.params += options_of(TrainConfig, settings)
    return command


for _name in (name for name in TASKS if name != "scrolls"):  # which no model of chacal.nn reads
    train.add_command(_train_command(_name))


@cli.group()
def bench() -> None:
    """Measure speed and memory, always against ordinary attention in the same process."""


@bench.command("ops")
@click.argument("operators", nargs=-1)
@click.option("-n", "--length", "lengths", multiple=True, type=int, default=(1024, 2048, 4096),
              show_default=True, help="Sequence length; may be repeated.")  # fmt: skip
@click.option("--heads", default=8, show_default=True, help="Attention heads.")
@click.option("--width", default=64, show_default=True, help="Width of a head.")
@click.option("--batch", default=1, show_default=True, help="Sequences.")
@click.option("--rounds", default=7, show_default=True, help="Timed calls of each; medians count.")
@click.option("--runs", default=1, show_default=True, help="Measure so often, each time in a "
              "fresh process; medians count, and the range is told.")  # fmt: skip
@click.option("--threads", default=1, show_default=True, help="CPU threads.")
@click.option("--mode", type=click.Choice(["forward", "both", "all", "none"]), default="all",
              show_default=True, help="Forward; forward and backward together; the one, then the "
              "other; or no times.")  # fmt: skip
@click.option("--baseline/--no-baseline", default=True, show_default=True,
              help="Whether SDPA is timed too.")  # fmt: skip
@click.option("--memory", is_flag=True, help="Also peak memory, each in a fresh process.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def bench_ops(operators: tuple[str, ...], **options: Any) -> None:
    """Time OPERATORS (exact ChaCAL, Block-ChaCAL and the rest, unless named).

    "formed" stands for exact ChaCAL that forms A and solves.
    """
    from chacal.commands.bench import bench_operators

    bench_operators(operators, **options)


@bench.command("decode")
@click.argument("operators", nargs=-1)
@click.option("-n", "--context", "contexts", multiple=True, type=int, default=(1024, 4096, 16384),
              show_default=True, help="Tokens before the timed one; may be repeated.")  # fmt: skip
@click.option("--heads", default=8, show_default=True, help="Attention heads.")
@click.option("--width", default=64, show_default=True, help="Width of a head.")
@click.option("--batch", default=1, show_default=True, help="Sequences.")
@click.option("--rounds", default=9, show_default=True, help="Timed calls of each; medians count.")
@click.option("--runs", default=1, show_default=True, help="Measure so often, each time in a "
              "fresh process; medians count, and the range is told.")  # fmt: skip
@click.option("--threads", default=1, show_default=True, help="CPU threads.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def bench_decode(operators: tuple[str, ...], **options: Any) -> None:
    """Time one token of cached decoding with OPERATORS (one of each kind, unless named).

    "stock" stands for ordinary attention with a cache that is copied for every token.
    """
    from chacal.commands.bench import bench_decoding

    bench_decoding(operators, **options)


@bench.command("kernels")
@click.option("--target", default="sm_90", show_default=True,
              help="A card's architecture: sm_80, sm_90, sm_100 or gfx942.")  # fmt: skip
@click.option("--dtype", type=click.Choice(["bfloat16", "float16", "float32"]),
              default="bfloat16", show_default=True, help="Of the tensors.")  # fmt: skip
@click.option("--width", "widths", multiple=True, type=int, default=(64, 128), show_default=True,
              help="Width of a head, 64, 128 or 256; may be repeated.")  # fmt: skip
@click.option("-n", "--length", default=4096, show_default=True, help="Tokens, for the counts.")
@click.option("--heads", default=16, show_default=True, help="Attention heads, for the counts.")
@click.option("--batch", default=4, show_default=True, help="Sequences, for the counts.")
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def bench_kernels(**options: Any) -> None:
    """Compile the GPU kernels, on any machine; tell registers, spills, memory and work. No
    times."""
    from chacal.commands.bench import bench_kernels

    bench_kernels(**options)


@cli.command("eval")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--split", type=click.Choice(["train", "valid", "test"]), default="test",
              show_default=True, help="Which examples.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of the examples.")
@click.option("--examples", default=2048, show_default=True, help="How many (generated tasks).")
@click.option("--batch-size", default=64, show_default=True, help="Sequences at once.")
@click.option("--operator", help=f"Swap this operator into the last layer: {OPERATOR_HELP}.")
@click.option("--operators", help="Swap in an operator for each layer.")
@click.option("--top-k", type=int, help="Prune each row of A to its largest entries.")
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
@click.option("--out", type=click.Path(path_type=Path), default=Path("runs/demo"),
              show_default=True, help="Where the runs and the picture go.")  # fmt: skip
@click.option("--seed", default=0, show_default=True, help="Of weights and examples.")
def demo(out: Path, seed: int) -> None:
    """Watch one layer learn to follow chains of 15 hops, and ordinary attention fail to."""
    from chacal.commands.demo import show_demo

    show_demo(out, seed)


@cli.command("reproduce")
@click.argument("table", required=False)
@click.option("--scale", type=click.Choice(["smoke", "cpu", "paper"]), default="cpu",
              show_default=True, help="A few tiny steps; what two cores finish; the paper's "
              "sizes.")  # fmt: skip
@click.option("--seeds", type=int, help="Seeds 0 to N-1 of every cell [the scale's].")
@click.option("--jobs", default=1, show_default=True, help="Cells at once, one thread each.")
@click.option("--only", default="", help="Only rows with this in \"row, column\"; times of the "
              "evaluations wait for the whole table.")  # fmt: skip
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
@click.option("--data", help="tab:scrolls: folder in the layout of SCROLLS.")
def reproduce_table(table: str | None, **options: Any) -> None:
    """Make a TABLE of the paper, or go on with it; without TABLE, list them."""
    from chacal.commands.reproduce import list_tables, print_table
    from chacal.experiments.reproduce import reproduce
    from chacal.experiments.scales import Given

    given = Given(**{f.name: options.pop(f.name) for f in dataclasses.fields(Given)})
    if table is None:
        list_tables()
        return
    out = options.pop("out") or Path("results") / options["scale"]
    result = reproduce(table, given=given, out=out, **options)
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
        print(f"chacal: {error.format_message()}{hint}", file=sys.stderr)
        sys.exit(2)
    except (Interrupted, KeyboardInterrupt, click.Abort) as error:
        print(f"chacal: {str(error) or 'interrupted'}", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.exit(1)
    except (ValueError, OSError) as error:
        if debug:
            raise
        print(f"chacal: {error}", file=sys.stderr)
        sys.exit(2)
