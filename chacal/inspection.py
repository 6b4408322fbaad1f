"""`chacal inspect`: what a trained run attends to, as matrices, pictures and figures.

Every operator is linear in its values, so applied to V = I it returns the matrix that it stands
for. Nothing is computed a second way: A and S are those the model used.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from chacal.console import console
from chacal.nn import Transformer
from chacal.operators import BlockResolvent, Operator
from chacal.ops.inputs import Gamma
from chacal.ops.weights import attention_weights
from chacal.report import pictures
from chacal.tasks.base import IGNORE, Task
from chacal.training.evaluate import load_run
from chacal.training.runs import write_atomic

DIVISORS = (8, 4, 3, 2)
"""Blocks of n // j, as the paper takes them."""

TOP = (1, 2, 3, 4, 8, 16)
"""Keys of a row that are kept."""

HEADS_ACROSS = 4


@dataclass(frozen=True)
class LayerView:
    """One layer's attention in one example.

    Attributes:
        operator: the layer's.
        gamma: γ of each head; None for ordinary attention.
        A: (h, n, n) attention weights.
        S: (h, n, n) what the operator makes of them; None for ordinary attention.
    """

    operator: Operator
    gamma: list[float] | None
    A: Tensor
    S: Tensor | None


def inspect_run(
    run: str | Path,
    out: str | Path | None = None,
    seed: int = 0,
    examples: int = 64,
    as_json: bool = False,
) -> dict[str, Any]:
    """Draw and print the attention of a trained run on its task's test split.

    Args:
        run: its folder.
        out: folder for the pictures; the run's unless given.
        seed: of the examples; in a split of stored examples, the first one's number.
        examples: how many the figures average. The pictures show the first.
        as_json: print JSON instead of tables.

    Returns:
        the figures, and the files written.
    """
    result, curves, heads = look_at_run(run, out, seed, examples)
    if as_json:
        print(json.dumps(result, indent=2))
    else:
        _print(result, curves, heads)
    return result


def look_at_run(
    run: str | Path, out: str | Path | None, seed: int, examples: int
) -> tuple[dict[str, Any], list[pictures.Mass], list[list[pictures.Mass]]]:
    """As `inspect_run`, without a word; also the shares of layers and of heads, as values."""
    if examples < 1:
        raise ValueError(f"examples is {examples}; expected at least 1")
    pictures.require_matplotlib()
    model, folder = load_run(run)
    if not isinstance(model, Transformer):
        raise ValueError(f"{run} is of a transformers model; expected one of chacal.nn to draw")
    config = folder.config()
    task, threads = config.task, config.train.threads
    if threads:
        torch.set_num_threads(threads)
    to = Path(folder.path if out is None else out)
    if to.exists() and not to.is_dir():
        raise ValueError(f"{to} is a file; expected a folder for the pictures")
    to.mkdir(parents=True, exist_ok=True)

    shown = list(_examples(task, seed, examples))
    curves, heads = _measure(model, shown, task.length)
    lengths = [tokens.shape[1] for tokens in shown]
    views = view_layers(model, shown[0])
    names = task.show(shown[0][0].numpy())
    files = {
        f"attention-layer{i}.png": _attention_picture(i, views, names, task, seed)
        for i in range(1, len(views) + 1)
    }
    files["mass.png"] = pictures.draw_mass(
        curves,
        title=f"Where attention lies: {' + '.join(str(op) for op in model.operators)}",
        note=f"A's weights, means over heads and rows of {len(shown)} test examples "
        f"({task.describe()}). Grey: the same for equal weights on all keys so far. "
        f"n//j: at the mean length, n = {np.mean(lengths):.1f}.",
        length=float(np.mean(lengths)),
    )
    for name, data in files.items():
        write_atomic(to / name, data)

    result = {
        "run": str(folder.path),
        "task": task.describe(),
        "operators": [str(op) for op in model.operators],
        "causal": all(op.causal for op in model.operators),
        "split": "test",
        "seed": seed,
        "examples": len(shown),
        "mean_length": float(np.mean(lengths)),
        "example": {"length": lengths[0], "tokens": names},
        "gamma": [view.gamma for view in views],
        "mass": [asdict(curve) for curve in curves],
        "mass_by_head": [[asdict(curve) for curve in layer] for layer in heads],
        "files": [str(to / name) for name in files],
    }
    return result, curves, heads


@torch.no_grad()
def view_layers(model: Transformer, tokens: Tensor, *, resolvents: bool = True) -> list[LayerView]:
    """A and S of every layer and head as the model reads one example.

    Args:
        model: in evaluation mode.
        tokens: (1, n), or (1, n, symbols).
        resolvents: whether S is wanted too.
    """
    views = []

    def look(module: Any, inputs: tuple[Any, ...]) -> None:
        q, k, _ = module.project(inputs[0])
        A, S = matrices(module.operator, q, k, module.gamma, resolvents=resolvents)
        gamma = None
        if module.operator.has_gamma:
            own = [module.operator.gamma] * module.heads
            gamma = own if module.gamma is None else module.gamma.tolist()
        views.append(LayerView(module.operator, gamma, A[0], None if S is None else S[0]))

    hooks = [layer.attention.register_forward_pre_hook(look) for layer in model.blocks()]
    try:
        model(tokens)
    finally:
        for hook in hooks:
            hook.remove()
    return views


def matrices(
    operator: Operator,
    q: Tensor,
    k: Tensor,
    gamma: Gamma | None = None,
    *,
    resolvents: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """A, and S with Y = S V where the operator has a γ.

    Block-ChaCAL's A is the softmax that Algorithm 1 starts from, its S what comes of it.

    Args:
        operator: any.
        q: (..., n, d) queries.
        k: (..., n, d) keys.
        gamma: stands in for the operator's own γ.
        resolvents: whether S is wanted too.

    Returns:
        (..., n, n) A, and (..., n, n) S or None.
    """
    n = q.shape[-2]
    I = torch.eye(n, dtype=q.dtype, device=q.device).expand(*q.shape[:-2], n, n)
    if not operator.has_gamma:
        return operator(q, k, I), None
    # at γ = 0 every resolvent but Algorithm 1's is A V
    block = isinstance(operator, BlockResolvent)
    A = attention_weights(q, k) if block else operator(q, k, I, gamma=0.0)
    return A, operator(q, k, I, gamma=gamma) if resolvents else None


def block_mass(A: Tensor, size: int) -> Tensor:
    """Share of A's mass whose query and key lie in one block of `size` tokens; (..., n, n) -> (...)

    The blocks are Algorithm 1's: the first begins at token 0, the last may be short.
    """
    block = torch.arange(A.shape[-1], device=A.device) // size
    return _share(A, block[:, None] == block)


def window_mass(A: Tensor, size: int) -> Tensor:
    """Share of A's mass on keys t-size < s <= t of query t; (..., n, n) -> (...)."""
    t = torch.arange(A.shape[-1], device=A.device)
    back = t[:, None] - t
    return _share(A, (back >= 0) & (back < size))


def top_mass(A: Tensor, count: int) -> Tensor:
    """Share of A's mass on the `count` largest entries of each row; (..., n, n) -> (...)."""
    largest = A.topk(min(count, A.shape[-1]), dim=-1).values
    return largest.sum((-2, -1)) / A.sum((-2, -1))


def _share(A: Tensor, chosen: Tensor) -> Tensor:
    return (A * chosen).sum((-2, -1)) / A.sum((-2, -1))


def _examples(task: Task, seed: int, count: int) -> Iterator[Tensor]:
    """(1, n) or (1, n, symbols) tokens of test examples, one at a time and so without padding."""
    stored = task.batches("test", 1)
    for i in range(count if stored is None else min(count, stored)):
        if stored is None:
            batch = task.batch("test", seed, i, 1)
        else:
            batch = task.batch("test", 0, (seed + i) % stored, 1)
        # nothing is asked after an example's end, and its last token is always asked
        asked = (batch.targets[0] != IGNORE).reshape(batch.targets.shape[1], -1).any(1)
        yield torch.from_numpy(batch.tokens[:, : int(asked.nonzero()[0][-1]) + 1])


def _measure(
    model: Transformer, examples: list[Tensor], longest: int
) -> tuple[list[pictures.Mass], list[list[pictures.Mass]]]:
    """Mean shares of every layer, those of uniform attention last, and of every layer's heads."""
    powers = [1 << i for i in range(max(1, (longest - 1).bit_length()))]
    totals: dict[tuple[int, str, str], Tensor] = {}
    for tokens in examples:
        n = tokens.shape[1]
        sizes = {str(m): m for m in powers} | {f"n//{j}": max(1, n // j) for j in DIVISORS}
        equal = torch.ones(1, n, n).tril()
        equal /= equal.sum(-1, keepdim=True)
        views = view_layers(model, tokens, resolvents=False)
        for layer, A in enumerate([*(view.A for view in views), equal]):
            shares = {("blocks", name): block_mass(A, m) for name, m in sizes.items()}
            shares |= {("windows", name): window_mass(A, m) for name, m in sizes.items()}
            shares |= {("top", str(count)): top_mass(A, count) for count in TOP}
            for (kind, name), share in shares.items():
                key = (layer, kind, name)
                totals[key] = totals.get(key, 0) + share.double() / len(examples)

    def mass(label: str, layer: int, heads: slice) -> pictures.Mass:
        kinds: dict[str, dict[str, float]] = {"blocks": {}, "windows": {}, "top": {}}
        for (at, kind, name), total in totals.items():
            if at == layer:
                kinds[kind][name] = float(total[heads].mean())
        return pictures.Mass(label, **kinds)

    every = slice(None)
    labels = [f"layer {i}: {op}" for i, op in enumerate(model.operators, 1)]
    means = [mass(name, i, every) for i, name in enumerate([*labels, pictures.REFERENCE])]
    by_head = [
        [mass(f"head {h + 1}", i, slice(h, h + 1)) for h in range(layer.attention.heads)]
        for i, layer in enumerate(model.blocks())
    ]
    return means, by_head


def _attention_picture(
    number: int, views: list[LayerView], names: list[str], task: Task, seed: int
) -> bytes:
    view = views[number - 1]
    heads = len(view.A)
    one_gamma = view.gamma is not None and len(set(view.gamma)) == 1
    title = f"Layer {number} of {len(views)}: {view.operator}"
    if view.gamma is not None and one_gamma:
        title += f", γ = {view.gamma[0]:.3g}"
    elif view.gamma is not None:
        title += ", γ learned per head"
    stored = task.batches("test", 1)
    which = f"of seed {seed}" if stored is None else f"number {seed % stored}"
    note = f"Test example {which}, n = {len(names)} ({task.describe()}). A: attention"
    note += " weights." if view.S is None else f" weights, one hop. S: {_meaning(view.operator)}."
    if not view.operator.causal:
        note += " NOT CAUSAL: this operator sees later tokens."

    def panel(letter: str, matrix: Tensor, head: int) -> pictures.Panel:
        text = f"{letter}, head {head + 1}"
        if letter == "S" and view.gamma is not None and not one_gamma:
            text += f" (γ = {view.gamma[head]:.3g})"
        return pictures.Panel(text, matrix[head].numpy())

    kinds = [("A", view.A), *([] if view.S is None else [("S", view.S)])]
    # tokens that can be read need wide panels: a head per row, its A beside its S
    wide = pictures.FEW_LABELS < len(names) <= pictures.MOST_LABELS or heads == 1
    across = 2 if wide else HEADS_ACROSS
    if wide and view.S is not None:
        rows = [[panel(*kind, h) for kind in kinds] for h in range(heads)]
    else:
        rows = [
            [panel(*kind, h) for h in range(a, min(a + across, heads))]
            for a in range(0, heads, across)
            for kind in kinds
        ]
    return pictures.draw_attention(rows, title=title, note=note, tokens=names, period=task.period)


def _meaning(operator: Operator) -> str:
    if isinstance(operator, BlockResolvent):
        return "what Algorithm 1 makes of A, Y = S V"
    if getattr(operator, "diagonal", "keep") == "drop":
        return "all hops, (1-γ)A(I-γA')⁻¹ with A' = A without its diagonal"
    return "all hops, (1-γ)A(I-γA)⁻¹"


def _print(
    result: dict[str, Any], curves: list[pictures.Mass], heads: list[list[pictures.Mass]]
) -> None:
    out = console()
    out.print(
        f"{result['task']}\n% of attention mass, means over heads, rows and {result['examples']} "
        f"test examples (seed {result['seed']}, mean n = {result['mean_length']:.1f})\n"
    )
    for title, first, kind in (
        ("inside diagonal blocks", "block size", "blocks"),
        ("inside a sliding window", "window", "windows"),
        ("on the largest keys of each row", "keys", "top"),
    ):
        table = _table(title, first, [curve.name for curve in curves])
        shares = [getattr(curve, kind) for curve in curves]
        for name in shares[0]:
            table.add_row(name, *(f"{100 * share[name]:.1f}" for share in shares))
        out.print(table)
        out.print()
    chosen = [
        ("blocks", "n//4"),
        ("blocks", "n//2"),
        ("windows", "n//4"),
        ("top", "1"),
        ("top", "3"),
    ]
    named = {"blocks": "block", "windows": "window", "top": "top"}
    table = _table("by head", "", [f"{named[kind]} {name}" for kind, name in chosen])
    for number, layer in enumerate(heads, 1):
        for head in layer:
            shares = [getattr(head, kind)[name] for kind, name in chosen]
            table.add_row(f"layer {number}, {head.name}", *(f"{100 * s:.1f}" for s in shares))
    out.print(table)
    out.print()
    if not result["causal"]:
        out.print("NOT CAUSAL: an operator sees later tokens")
    for file in result["files"]:
        out.print(f"written: {file}", soft_wrap=True)


def _table(title: str, first: str, columns: list[str]) -> Table:
    table = Table(title=title, title_justify="left", box=None, pad_edge=False)
    table.add_column(first)
    for column in columns:
        table.add_column(column, justify="right")
    return table
