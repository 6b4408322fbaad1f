"""One function per table of the paper: it declares cells, and runs nothing.

The names are the paper's labels; `tab:regimes`, `fig:cost`, `fig:sparsity` and `fig:leak` are the
questions that its text leaves open. Those on text and code are in `text_tables.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from chacal.experiments.cells import Cell, Cost, Evaluation, Table
from chacal.experiments.scales import Scale
from chacal.experiments.text_tables import ON_TEXT
from chacal.report.paper import figures
from chacal.tasks import Boxes

DIVISORS = range(2, 9)
"""The paper's block sizes, n // 2 to n // 8."""

BORDERS = 8
"""Borders are counted of blocks of n // 8, the same for all rows."""

TOP_K = (1, 2, 3, 4, 8, 16)


def boxes(scale: Scale) -> Table:
    """tab:boxes: accuracy, exact match and evaluation time of every operator."""
    rows: dict[str, tuple[str, ...]] = {}
    for depth in (2, 5):
        for name, operator in (("Dense", "dense"), ("BigBird", "bigbird"), ("Local", "local")):
            rows[f"{name}, L={depth}"] = (operator,) * depth
    rows["ChaCAL, L=2"] = ("dense", "chacal")
    for divisor in DIVISORS:
        rows[f"Block-ChaCAL n//{divisor}, L=2"] = ("dense", f"block/{divisor}")
    for offsets in ("powers", "squares"):
        rows[f"Pattern of {offsets}, L=2"] = ("dense", f"pattern,offsets={offsets}")
    rows["Window resolvent, L=2"] = ("dense", "window@32")
    rows["Pooled resolvent, near=1, L=2"] = ("dense", "pooled,near=1")
    rows["Routed resolvent, L=2"] = ("dense", f"routed@{scale.tile},routes=4,parts=3,score=bound")
    return Table(
        name="tab:boxes",
        metrics=("accuracy", "exact_match", "seconds"),
        cells=tuple(
            _boxes_cell(scale, "tab:boxes", row, operators) for row, operators in rows.items()
        ),
        timed=True,
        seeds=scale.seeds or 3,
        note=scale.note,
    )


def ablation_branches(scale: Scale) -> Table:
    """tab:ablation_branches: what each branch of Algorithm 1 gives alone, at n // 3."""
    rows = {
        "Local branch only": "block/3,branches=local",
        "Residual branch only": "block/3,branches=residual",
        "Local + Residual branches": "block/3",
    }
    return Table(
        name="tab:ablation_branches",
        metrics=("exact_match", "accuracy"),
        cells=tuple(
            _boxes_cell(scale, "tab:ablation_branches", row, ("dense", operator))
            for row, operator in rows.items()
        ),
        seeds=scale.seeds or 5,
        note=scale.note,
    )


def op_topk(scale: Scale) -> Table:
    """tab:op-topk: top-k inside the operator, in training and test; every reading of where."""
    rows = {"T_raw, k=1": "dense,top_k=1", "T_raw, k=all": "dense"}
    for name, text, counts in (("T_post", "t_post", (1, 2, 3)), ("T_pre", "t_pre", (1,))):
        for k in counts:
            rows[f"{name}, k={k}"] = f"{text},top_k={k}"
            rows[f"{name}, k={k}, pruned outside the inverse"] = f"{text},top_k={k},prune=outside"
            rows[f"{name}, k={k}, pruned inside the inverse"] = f"{text},top_k={k},prune=inside"
        rows[f"{name}, k=all"] = text
    name = "tab:op-topk"
    cells = []
    for row, operator in rows.items():
        paper = figures(name, ", ".join(row.split(", ")[:2]))
        columns = {"chains, L=1": scale.on_chains(operator)}
        if "prune=" not in operator:  # the other readings are told apart on chains alone
            columns["boxes, L=2"] = scale.on_boxes("dense", operator)
        for column, run in columns.items():
            test = _test(scale, run.task)
            cells.append(Cell(row=row, column=column, run=run, evaluation=test, paper=paper))
    return Table(
        name=name,
        metrics=("accuracy", "exact_match"),
        cells=tuple(cells),
        seeds=scale.seeds or 3,
        note=scale.note,
    )


def boxes_topk(scale: Scale) -> Table:
    """tab:boxes-topk: trained densely, pruned at test only, until it recovers."""
    columns: dict[str, tuple[tuple[str, ...], int]] = {
        "dense, L=2, every layer": (("dense", "dense"), 0),
        "dense, L=5, every layer": (("dense",) * 5, 0),
        "ChaCAL, L=2, every layer": (("dense", "chacal"), 0),
        "ChaCAL, L=2, its layer": (("dense", "chacal"), 1),
    }
    name = "tab:boxes-topk"
    cells = []
    for column, (operators, first) in columns.items():
        run = scale.on_boxes(*operators)
        for k in (*TOP_K, None):
            pruned = tuple(
                f"{text},top_k={k}" if k and i >= first else text
                for i, text in enumerate(operators)
            )
            row = f"k={k}" if k else "k=all"
            paper = figures(name, row) if operators[-1] == "dense" else {}
            test = _test(scale, run.task, operators=pruned)
            cells.append(Cell(row=row, column=column, run=run, evaluation=test, paper=paper))
    return Table(
        name=name,
        metrics=("accuracy", "exact_match"),
        cells=tuple(cells),
        seeds=scale.seeds or 3,
        note=scale.note,
    )


def heads_props(scale: Scale) -> Table:
    """tab:heads-props: 1, 2 and 4 heads against 1, 2, 4 and 8 properties.

    The control gives every property a position of its own, and so its own row of A: if one head
    follows two chains there, heads are not what it lacks.
    """
    name = "tab:heads-props"
    runs = {
        f"h={heads}, p={properties}": scale.on_properties(properties, heads)
        for heads in (1, 2, 4)
        for properties in (1, 2, 4, 8)
    }
    runs["h=1, p=2, a position for each property"] = scale.on_properties(2, 1, "interleaved")
    cells = [
        Cell(row=row, run=run, evaluation=_test(scale, run.task), paper=figures(name, row))
        for row, run in runs.items()
    ]
    return Table(
        name=name,
        metrics=("accuracy", "steps"),
        cells=tuple(cells),
        seeds=scale.seeds or 3,
        note=f"{scale.note}; here at most {scale.property_steps:,} steps, fewer once 99.99 % of "
        "the valid split is right",
    )


def regimes(scale: Scale) -> Table:
    """tab:regimes: the same stories at their own length, and at three times as many tokens.

    Only blocks of n // j change with n; dense attention and ChaCAL never see the padding.
    """
    rows = {"Dense, L=2": "dense", "ChaCAL, L=2": "chacal"}
    rows |= {f"Block-ChaCAL n//{j}, L=2": f"block/{j}" for j in (3, 4, 6, 8)}
    long = 3 * scale.stories.length
    cells = []
    for row, operator in rows.items():
        paper = {k: v for k, v in figures("tab:boxes", row).items() if k != "seconds"}
        columns = {"chains cross borders": 0}
        if operator.startswith("block"):
            columns[f"stories fit in n//3 (n = {long})"] = long
        for column, pad in columns.items():
            run = scale.on_boxes("dense", operator, pad=pad)
            test = _test(scale, run.task)
            cells.append(Cell(row=row, column=column, run=run, evaluation=test, paper=paper))
    return Table(
        name="tab:regimes",
        metrics=("accuracy", "exact_match"),
        cells=tuple(cells),
        seeds=scale.seeds or 3,
        note=scale.note,
    )


def sparsity(scale: Scale) -> Table:
    """fig:sparsity: mass in diagonal blocks and in a window, and maps, of trained operators."""
    rows: dict[str, tuple[str, ...]] = {
        "Dense, L=2": ("dense", "dense"),
        "Dense, L=5": ("dense",) * 5,
        "ChaCAL, L=2": ("dense", "chacal"),
        "Block-ChaCAL n//3, L=2": ("dense", "block/3"),
        "Window resolvent, L=2": ("dense", "window@32"),
    }
    return Table(
        name="fig:sparsity",
        metrics=("exact_match",),
        cells=tuple(
            Cell(
                row=row,
                run=scale.on_boxes(*operators),
                evaluation=_test(scale, scale.stories, look=True),
            )
            for row, operators in rows.items()
        ),
        seeds=1,
        note=scale.note,
    )


def cost(scale: Scale) -> Table:
    """fig:cost: time and peak memory against n, and against block size at fixed n."""
    rows = {
        "SDPA": "sdpa",
        "Exact ChaCAL": "chacal",
        "ChaCAL with A formed": "formed",
        "Block-ChaCAL n//3": "block/3",
        "Block-ChaCAL n//8": "block/8",
        "Pooled resolvent": "pooled",
        "Window resolvent": "window@64",
        "Routed resolvent": "routed",
        "Routed resolvent, 3 routes, 3 parts, bound": "routed,routes=3,parts=3,score=bound",
        "Pattern of powers": "pattern,offsets=powers",
        "Pattern of squares": "pattern,offsets=squares",
        "Local window": "local@64",
        "BigBird": "bigbird@64",
    }
    # below a few MiB a peak is the allocator's
    memory_from = min(1024, scale.lengths[-1])
    common = {"rounds": scale.rounds, "budget": scale.budget, "memory_from": memory_from}
    # mypy takes the common values for one type
    costs = [
        Cost(row=row, column="n", operators=text, lengths=scale.lengths, **common)  # type: ignore[arg-type]
        for row, text in rows.items()
    ]
    for n in scale.block_lengths:
        sizes = tuple(2**i for i in range(2, n.bit_length()))
        for row, text in (("Block-ChaCAL", "block@{}"), ("Pooled resolvent", "pooled@{},near=0")):
            costs.append(
                Cost(row=f"{row}, n={n}", column="block size", operators=text, lengths=(n,),
                     blocks=sizes, **common)  # type: ignore[arg-type]
            )  # fmt: skip
    return Table(
        name="fig:cost",
        metrics=(),
        costs=tuple(costs),
        seeds=1,
        note=f"4 heads of width 64, one sequence, float32, one thread, medians of {scale.rounds} "
        f"rounds in turns with SDPA; a curve ends where a point would take {scale.budget:g} s",
    )


def leak(scale: Scale) -> Table:
    """fig:leak: every operator and pooling on random tokens; a leak on Boxes and on real text."""
    m = max(2, scale.noise.window // 8)
    poolings = tuple(
        f"block@{m},rows={rows},columns={columns}"
        for rows in ("first", "mean", "last")
        for columns in ("sum", "mean")
    )
    texts = (
        "dense", f"local@{m}", f"bigbird@{m}", "chacal", "chacal,diagonal=drop", f"window@{m}",
        f"pooled@{m},near=0", f"pooled@{m},near=1", f"routed@{m},routes=2",
        "pattern,offsets=powers", "pattern,offsets=squares", "t_post,top_k=3", "t_pre,top_k=3",
        *poolings, f"block@{m},branches=local",
    )  # fmt: skip
    cells = [
        Cell(
            row=text,
            column="random tokens",
            run=scale.on_noise(text),
            evaluation=Evaluation(examples=scale.examples),
        )
        for text in texts
    ]
    for text in ("dense", "chacal", "block/3", "block/3,rows=mean", "block/3,rows=last"):
        cells.append(_boxes_cell(scale, "fig:leak", text, ("dense", text), column="boxes, L=2"))
    # in small blocks a leak has fewer rows to hide among
    small = (f"block@{m}", f"block@{m},rows=mean")
    for text in ("dense", "chacal", "block/3", "block/3,rows=mean", "block/3,rows=last", *small):
        run = scale.on_manual(text)
        test = Evaluation(examples=scale.examples)
        cells.append(Cell(row=text, column="real text, L=2", run=run, evaluation=test))
    return Table(
        name="fig:leak",
        metrics=("loss", "below_floor", "exact_match", "perplexity"),
        cells=tuple(cells),
        seeds=min(scale.seeds or 3, 3),
        note=f"{scale.note}; random tokens: {scale.noise.describe()}, two layers of width "
        f"{scale.noise_width}, {scale.noise_train.steps:,} steps",
    )


TABLES: dict[str, Callable[[Scale], Table]] = {
    "tab:boxes": boxes,
    "tab:ablation_branches": ablation_branches,
    "tab:op-topk": op_topk,
    "tab:boxes-topk": boxes_topk,
    "tab:heads-props": heads_props,
    "tab:regimes": regimes,
    "fig:sparsity": sparsity,
    "fig:cost": cost,
    "fig:leak": leak,
    **ON_TEXT,
}
"""What `chacal reproduce` can make."""


def _test(
    scale: Scale, task: object, *, operators: tuple[str, ...] = (), look: bool = False
) -> Evaluation:
    divisor = BORDERS if isinstance(task, Boxes) else 0
    return Evaluation(examples=scale.examples, divisor=divisor, operators=operators, look=look)


def _boxes_cell(
    scale: Scale, table: str, row: str, operators: tuple[str, ...], column: str = ""
) -> Cell:
    return Cell(
        row=row,
        column=column,
        run=scale.on_boxes(*operators),
        evaluation=_test(scale, scale.stories),
        paper=figures(table, row),
    )
