"""The commands of `chacal bench`, declared as those of `cli.py` are: parse and call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click


def on_device(command: Any) -> Any:
    """The options of a command that can run on a card."""
    device = click.option(
        "--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True,
        help="Where; on a card its own clock counts.",
    )  # fmt: skip
    dtype = click.option(
        "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32",
        show_default=True, help="Of the tensors.",
    )  # fmt: skip
    return device(dtype(command))


def over_lengths(command: Any) -> Any:
    """The options of a command that compares lengths, which takes long on a busy machine."""
    growth = click.option(
        "--growth", is_flag=True,
        help="All lengths take turns; tell time per token over that at the shortest.",
    )  # fmt: skip
    clock = click.option(
        "--clock", type=click.Choice(["wall", "cpu"]), default="wall", show_default=True,
        help="The time that passes, or that the processor works for us: steadier beside others.",
    )  # fmt: skip
    return growth(clock(command))


@click.group()
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
@click.option("--budget", type=float, default=600.0, show_default=True,
              help="Seconds for SDPA at one length; where it would take longer it is left out, and "
              "that is told.")  # fmt: skip
@over_lengths
@click.option("--memory", is_flag=True, help="Also peak memory, each in a fresh process: of the "
              "forward pass with --mode forward, else of both.")  # fmt: skip
@on_device
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def bench_ops(operators: tuple[str, ...], **options: Any) -> None:
    """Time OPERATORS (exact ChaCAL, Block-ChaCAL and the rest, unless named).

    "formed" stands for exact ChaCAL that forms A and solves, "guard" for what each operator pays
    for its look at bad values.
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
@over_lengths
@on_device
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def bench_decode(operators: tuple[str, ...], **options: Any) -> None:
    """Time one token of cached decoding with OPERATORS (one of each kind, unless named).

    "stock" stands for ordinary attention with a cache that is copied for every token.
    """
    from chacal.commands.bench import bench_decoding

    bench_decoding(operators, **options)


@bench.command("context")
@click.argument("operators", nargs=-1)
@click.option("--processes", default=2, show_default=True,
              help="Processes that share the text, on this machine.")  # fmt: skip
@click.option("-n", "--length", default=4096, show_default=True, help="Tokens of the whole text.")
@click.option("--heads", default=8, show_default=True, help="Attention heads.")
@click.option("--width", default=64, show_default=True, help="Width of a head.")
@click.option("--batch", default=1, show_default=True, help="Sequences.")
@click.option("--rounds", default=5, show_default=True, help="Timed calls of each; medians count.")
@click.option("--threads", default=1, show_default=True, help="CPU threads of each process.")
@click.option("--model", "models", multiple=True, type=int, default=(8, 64), show_default=True,
              help="Processes to model, with as many tokens each; may be repeated.")  # fmt: skip
@click.option("--bandwidth", default=10.0, show_default=True,
              help="Of the modelled line between two processes, GB/s.")  # fmt: skip
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def bench_context(operators: tuple[str, ...], **options: Any) -> None:
    """Time OPERATORS (chacal, window@64 and routed@64, unless named) on one text over several
    processes, forward and backward: bytes sent, time over one process, the share of waiting."""
    from chacal.commands.bench_context import bench_context

    bench_context(operators, **options)


@bench.command("play")
@click.option("--pages", "pages", multiple=True, type=click.IntRange(1, 100), default=(1, 10),
              show_default=True, help="Pages open at once; may be repeated.")  # fmt: skip
@click.option("--rounds", type=click.IntRange(1), default=3, show_default=True,
              help="Stories that each types.")  # fmt: skip
@click.option("--json", "json_file", type=click.Path(path_type=Path), help="Write figures here.")
def bench_play(**options: Any) -> None:
    """Time the page of `chacal play`, from a sentence typed to the boxes of two models."""
    from chacal.commands.bench import bench_page

    bench_page(**options)


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
