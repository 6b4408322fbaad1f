"""The paper's figures, copied from its tables, in one place; no figure of ours.

Keys are a table's label in the paper and a row of it. Shares are in per cent as printed. `None`
stands where the paper prints a dash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Row = Mapping[str, float | None]


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper, or a question of ours that goes with it.

    Attributes:
        title: what it is about.
        caption: what the paper says of seeds and spread; empty where the table is ours.
        rows: row -> metric -> the printed figure.
        log: the heading of docs/findings.md that discusses it, as a link's anchor.
        why: why a figure of ours may differ, one sentence; by the start of a row's name, "" for
            all others.
        why_below: the same, for what explains a figure below the paper's and none above it.
    """

    title: str
    caption: str = ""
    rows: Mapping[str, Row] = field(default_factory=dict)
    log: str = "the-papers-tables"
    why: Mapping[str, str] = field(default_factory=dict)
    why_below: Mapping[str, str] = field(default_factory=dict)


def _boxes(accuracy: float, exact_match: float, seconds: float | None) -> Row:
    return {"accuracy": accuracy, "exact_match": exact_match, "seconds": seconds}


def _rouge(one: float, two: float, longest: float, mean: float) -> Row:
    return {"rouge1": one, "rouge2": two, "rougeL": longest, "rouge": mean}


SETUP = (
    "The paper's Boxes setup is not published; ours has other stories, and the scale named below."
)
WINDOWS = (
    "A window of 32 and three links reach most of a short story: the shorter the stories of a "
    "scale, the nearer BigBird and Local are to dense attention."
)
BORDERS = (
    "In Algorithm 1 a row sees earlier blocks only through one reduced row of each: a chain is cut "
    "at every border it crosses, and our stories have many that do (tab:regimes shows both cases)."
)
NO_GRADIENT = (
    "With k=1 a pruned, renormalised row is constant and has no gradient: the layer cannot learn "
    "where to look."
)

TABLES: dict[str, PaperTable] = {
    "tab:boxes": PaperTable(
        title="Results on Boxes",
        caption="averaged over three random seeds (std. below 0.5 % for all entries)",
        rows={
            "Dense, L=2": _boxes(97.20, 58.8, 1.84),
            "BigBird, L=2": _boxes(94.49, 44.51, None),
            "Local, L=2": _boxes(89.49, 30.12, None),
            "Dense, L=5": _boxes(99.87, 97.0, 4.35),
            "BigBird, L=5": _boxes(99.37, 88.24, None),
            "Local, L=5": _boxes(96.97, 71.67, None),
            "ChaCAL, L=2": _boxes(99.99, 100.00, 2.50),
            "Block-ChaCAL n//2, L=2": _boxes(99.99, 100.00, 2.20),
            "Block-ChaCAL n//3, L=2": _boxes(99.98, 99.99, 1.90),
            "Block-ChaCAL n//4, L=2": _boxes(99.91, 97.40, 1.79),
            "Block-ChaCAL n//5, L=2": _boxes(99.92, 97.00, 1.78),
            "Block-ChaCAL n//6, L=2": _boxes(99.85, 94.71, 1.77),
            "Block-ChaCAL n//7, L=2": _boxes(99.85, 94.92, 1.89),
            "Block-ChaCAL n//8, L=2": _boxes(99.90, 96.60, 1.95),
        },
        log="tabboxes",
        why={"": SETUP, "BigBird": WINDOWS, "Local": WINDOWS},
        why_below={"Block-ChaCAL": BORDERS},
    ),
    "tab:ablation_branches": PaperTable(
        title="Branches of Algorithm 1 at n//3, on Boxes",
        caption="averaged over five random seeds (std. below 1.5 % for all entries)",
        rows={
            "Local branch only": {"exact_match": 96.68, "accuracy": 99.88},
            "Residual branch only": {"exact_match": 6.52, "accuracy": 88.00},
            "Local + Residual branches": {"exact_match": 99.99, "accuracy": 99.99},
        },
        log="tabablation_branches",
        why={"": SETUP},
        why_below={"": BORDERS},
    ),
    "tab:op-topk": PaperTable(
        title="Protocol A: top-k in training and test",
        caption="averaged over three random seeds (std. below 2 % for all entries)",
        rows={
            "T_raw, k=1": {"accuracy": 100.0},
            "T_post, k=1": {"accuracy": 61.0},
            "T_post, k=2": {"accuracy": 88.0},
            "T_post, k=3": {"accuracy": 91.0},
            "T_pre, k=1": {"accuracy": 35.0},
        },
        log="tabop-topk",
        why={
            "": "The paper says neither which A it prunes nor the task and how long it trains.",
            **{f"{name}, k=1": NO_GRADIENT for name in ("T_raw", "T_post", "T_pre")},
            **{
                f"{name}, k=1, pruned": "The paper does not say where it prunes; pruned in one "
                "place only, the other keeps its gradient."
                for name in ("T_post", "T_pre")
            },
        },
    ),
    "tab:boxes-topk": PaperTable(
        title="Protocol B: trained densely, pruned at test only",
        rows={
            "k=1": {"accuracy": 98.8, "exact_match": 68.41},
            "k=2": {"accuracy": 99.01, "exact_match": 75.12},
            "k=3": {"accuracy": 99.89, "exact_match": 96.74},
        },
        log="tabboxes-topk",
        why={
            "": "The paper does not say which model it prunes; its figures at k=3 are near those "
            "of its five dense layers."
        },
    ),
    "tab:heads-props": PaperTable(
        title="Heads against properties, on multi-property chains",
        caption="averaged over three random seeds (std. below 0.5 % for all entries)",
        rows={
            "h=1, p=1": {"accuracy": 100.0},
            "h=1, p=2": {"accuracy": 61.8},
            "h=2, p=2": {"accuracy": 100.0},
            "h=4, p=4": {"accuracy": 100.0},
            "h=4, p=8": {"accuracy": 61.3},
        },
        log="tabheads-props",
        why={
            "": "Steps, sizes and how properties share a position are not in the paper; ours "
            "share one, and train as long as the note below says."
        },
    ),
    "tab:regimes": PaperTable(
        title="The same stories, with chains that cross borders and in one block",
        log="tabregimes",
        why={
            "": SETUP,
            "Block-ChaCAL": "The figure beside ours is the paper's of tab:boxes, whose story and "
            "sequence lengths are not published.",
        },
    ),
    "fig:sparsity": PaperTable(
        title="Where the attention of trained models lies",
        log="figsparsity",
    ),
    "fig:cost": PaperTable(
        title="Time and memory against n, and against the block size",
        log="figcost",
    ),
    "fig:leak": PaperTable(
        title="A canary: random tokens, where no causal model gets below log V",
        log="figleak",
    ),
    "tab:lm_all": PaperTable(
        title="Language modelling, from scratch and fine-tuned, attention replaced",
        caption="perplexity per token of GPT-2's tokenizer at n = 1024, on OpenWebText "
        "(fine-tuned) and WikiText-103 (from scratch); no seeds or spread. Of another text or "
        "another tokenizer nothing can be compared with them",
        rows={
            "Pretrained, as it is": {"perplexity": 23.78},
            "Fine-tuned, all layers: dense": {"perplexity": 20.15},
            "Fine-tuned, all layers: ChaCAL": {"perplexity": 21.46},
            "Fine-tuned, all layers: Block-ChaCAL n//2": {"perplexity": 22.60},
            "Fine-tuned, all layers: Block-ChaCAL n//3": {"perplexity": 22.08},
            "Fine-tuned, all layers: Block-ChaCAL n//4": {"perplexity": 22.60},
            "From scratch: dense": {"perplexity": 16.46},
            "From scratch: ChaCAL": {"perplexity": 17.57},
            "From scratch: Block-ChaCAL n//2": {"perplexity": 15.96},
            "From scratch: Block-ChaCAL n//3": {"perplexity": 15.64},
            "From scratch: Block-ChaCAL n//4": {"perplexity": 15.18},
        },
        log="tablm_all",
    ),
    "tab:lm_length_sweep": PaperTable(
        title="Language modelling, trained and tested at different lengths",
        caption="Block-ChaCAL n//3 on WikiText-103, perplexity per token of GPT-2's tokenizer; "
        "N is its 1024. Of another text nothing can be compared with them",
        rows={
            "Block-ChaCAL n//3, trained at N, tested at N/4": {"perplexity": 21.98},
            "Block-ChaCAL n//3, trained at N, tested at N/2": {"perplexity": 17.99},
            "Block-ChaCAL n//3, trained at N, tested at N": {"perplexity": 15.64},
            "Block-ChaCAL n//3, trained at N/4, tested at N/4": {"perplexity": 13.33},
            "Block-ChaCAL n//3, trained at N/4, tested at N/2": {"perplexity": 28.79},
            "Block-ChaCAL n//3, trained at N/4, tested at N": {"perplexity": 51.42},
        },
        log="tablm_length_sweep",
    ),
    "tab:scrolls": PaperTable(
        title="SCROLLS with BART, the first decoder self-attention layer replaced",
        caption="BART-base, 1024 tokens in, the whole validation sets, n//3; no seeds or spread. "
        "Of shorter inputs, fewer rows or a smaller model nothing can be compared with them",
        rows={
            "GovReport: zero-shot": _rouge(29.68, 10.84, 16.32, 16.99),
            "GovReport: FT (standard)": _rouge(48.18, 23.55, 29.26, 31.64),
            "GovReport: FT (modified)": _rouge(38.46, 11.52, 20.12, 20.43),
            "NarrativeQA: zero-shot": {"f1": 2.39},
            "NarrativeQA: FT (standard)": {"f1": 11.63},
            "NarrativeQA: FT (modified)": {"f1": 7.86},
            "ContractNLI: zero-shot": {"em": 30.63},
            "ContractNLI: FT (standard)": {"em": 59.38},
            "ContractNLI: FT (modified)": {"em": 36.72},
        },
        log="tabscrolls",
    ),
    "tab:copilot_results": PaperTable(
        title="Code: the value of a variable at the end of a program, only layer 2 replaced",
        # its data set is not identified: no figure of it may stand beside ours
        caption="of a data set that it does not identify (no citation, labels or sizes); they "
        "are not of these programs, and are not shown",
        log="tabcopilot_results",
    ),
}
"""Every table that `chacal reproduce` knows, in the order of the report."""


def figures(table: str, row: str) -> dict[str, float]:
    """What the paper prints for a row of a table, without its dashes; empty where it has none."""
    printed = TABLES[table].rows.get(row, {})
    return {metric: value for metric, value in printed.items() if value is not None}
