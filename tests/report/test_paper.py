"""The paper's figures as printed, and that every table of ours knows them."""

import re
from pathlib import Path

import pytest

from chacal.report.paper import TABLES, figures

LOG = Path(__file__).parents[2] / "docs" / "findings.md"


@pytest.mark.parametrize(
    ("table", "row", "expected"),
    [
        ("tab:boxes", "Dense, L=2", {"accuracy": 97.20, "exact_match": 58.8, "seconds": 1.84}),
        ("tab:boxes", "Local, L=5", {"accuracy": 96.97, "exact_match": 71.67}),
        ("tab:boxes", "ChaCAL, L=2", {"accuracy": 99.99, "exact_match": 100.0, "seconds": 2.5}),
        ("tab:boxes", "Block-ChaCAL n//6, L=2",
         {"accuracy": 99.85, "exact_match": 94.71, "seconds": 1.77}),
        ("tab:boxes", "Block-ChaCAL n//8, L=2",
         {"accuracy": 99.90, "exact_match": 96.60, "seconds": 1.95}),
        ("tab:ablation_branches", "Residual branch only", {"accuracy": 88.0, "exact_match": 6.52}),
        ("tab:op-topk", "T_pre, k=1", {"accuracy": 35.0}),
        ("tab:boxes-topk", "k=2", {"accuracy": 99.01, "exact_match": 75.12}),
        ("tab:heads-props", "h=4, p=8", {"accuracy": 61.3}),
        ("tab:boxes", "Window resolvent, L=2", {}),
        ("tab:lm_all", "Pretrained, as it is", {"perplexity": 23.78}),
        ("tab:lm_all", "Fine-tuned, all layers: Block-ChaCAL n//3", {"perplexity": 22.08}),
        ("tab:lm_all", "From scratch: Block-ChaCAL n//4", {"perplexity": 15.18}),
        ("tab:lm_length_sweep", "Block-ChaCAL n//3, trained at N/4, tested at N",
         {"perplexity": 51.42}),
        ("tab:copilot_results", "ChaCAL", {}),
        ("tab:scrolls", "GovReport: FT (modified)",
         {"rouge1": 38.46, "rouge2": 11.52, "rougeL": 20.12, "rouge": 20.43}),
        ("tab:scrolls", "NarrativeQA: zero-shot", {"f1": 2.39}),
        ("tab:scrolls", "ContractNLI: FT (standard)", {"em": 59.38}),
    ],
)  # fmt: skip
def test_figures_as_printed(table, row, expected):
    assert figures(table, row) == expected


def test_rows_of_the_paper_are_counted():
    counts = {name: len(table.rows) for name, table in TABLES.items() if table.rows}
    assert counts == {
        "tab:boxes": 14,
        "tab:ablation_branches": 3,
        "tab:op-topk": 5,
        "tab:boxes-topk": 3,
        "tab:heads-props": 5,
        "tab:lm_all": 11,
        "tab:lm_length_sweep": 6,
        "tab:scrolls": 9,
    }


def test_every_table_has_a_heading_in_the_log():
    headings = re.findall(r"^#+ (.+)$", LOG.read_text(encoding="utf-8"), re.MULTILINE)
    # as GitHub makes links of headings
    anchors = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
    assert {table.log for table in TABLES.values()} <= anchors
