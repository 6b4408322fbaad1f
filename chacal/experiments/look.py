"""A trained run's attention: measured over test examples, and drawn for the first of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from chacal._memory import check_fits
from chacal.nn import Transformer
from chacal.nn.views import LayerView, block_mass, top_mass, view_layers, window_mass
from chacal.operators import BlockResolvent, Operator
from chacal.ops.inputs import check_count
from chacal.report import pictures
from chacal.tasks.base import IGNORE, Task
from chacal.training.evaluate import load_run
from chacal.training.runs import write_atomic

DIVISORS = (8, 4, 3, 2)
"""Blocks of n // j, as the paper takes them."""

TOP = (1, 2, 3, 4, 8, 16)
"""Keys of a row that are kept."""

HEADS_ACROSS = 4


def look_at_run(
    run: str | Path, out: str | Path | None, seed: int, examples: int
) -> tuple[dict[str, Any], list[pictures.Mass], list[list[pictures.Mass]]]:
    """Draw and measure the attention of a trained run on its task's test split.

    Args:
        run: its folder.
        out: folder for the pictures; the run's unless given.
        seed: of the examples; in a split of stored examples, the first one's number.
        examples: how many the figures average. The pictures show the first.

    Returns:
        the figures and the files written, and the shares of layers and of heads as values.
    """
    check_count("examples", examples)
    pictures.require_matplotlib()
    model, folder = load_run(run)
    if not isinstance(model, Transformer):
        raise ValueError(f"{run} is of a transformers model; expected one of chacal.nn to draw")
    config = folder.config()
    task, threads = config.task, config.train.threads
    if threads:
        torch.set_num_threads(threads)
    _check_memory(model, task, examples)
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


def _check_memory(model: Transformer, task: Task, examples: int) -> None:
    """Refuse what could not be held: the examples' tokens, and A and its resolvent of one."""
    n, heads = task.usual_length, sum(layer.attention.heads for layer in model.blocks())
    stored = task.batches("test", 1)
    count = examples if stored is None else min(examples, stored)
    check_fits(
        f"looking at {count} examples of {n} tokens through {heads} heads",
        8 * count * n * task.symbols + 2 * 4 * heads * n**2,
        "fewer examples, or a run on shorter ones",
    )


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
    if operator.has_beta:
        return "DeltaFormer, A(I+βA')⁻¹ with A' a softmax over the keys before"
    if getattr(operator, "diagonal", "keep") == "drop":
        return "all hops, (1-γ)A(I-γA')⁻¹ with A' = A without its diagonal"
    return "all hops, (1-γ)A(I-γA)⁻¹"
