"""Three sizes of the experiments on text and code, beside those of `scales.py`.

The paper's sizes are those it prints: GPT-2 of 12 layers, width 768, 12 heads and n = 1024 (batch
256, AdamW 3e-4, 25,000 steps), BART-base with inputs of 1024 and outputs of 256 tokens (AdamW 5e-5,
batches of 8, warm-up 0.1, one epoch). The cpu scale is what two cores finish.
"""

from __future__ import annotations

from dataclasses import dataclass

from chacal.tasks import Code
from chacal.training.config import ModelConfig, TrainConfig
from chacal.training.decoders import DecoderConfig

GPT2 = "openai-community/gpt2"


@dataclass(frozen=True, kw_only=True)
class TextScale:
    """How large everything on text and code is.

    Attributes:
        tile: keys of a window and of a tile, for the operators that have them.
        code: the programs.
        code_model: what reads them; its second layer is replaced.
        code_train: how they are learned.
        code_examples: of the test set.
        code_note: what the scale reduces.
    """

    tile: int
    code: Code
    code_model: ModelConfig | DecoderConfig
    code_train: TrainConfig
    code_examples: int
    code_note: str


SMOKE = TextScale(
    tile=8,
    code=Code(variables=2, updates=2),
    code_model=ModelConfig(operators=("dense", "dense"), width=16, heads=2),
    code_train=TrainConfig(
        steps=4, batch_size=4, eval_every=4, eval_examples=8, test_examples=8, checkpoint_every=4
    ),
    code_examples=32,
    code_note="SMOKE: a few steps of a tiny model. No figure means anything",
)

CPU = TextScale(
    tile=16,
    code=Code(variables=4, updates=8, curriculum_steps=120),
    code_model=ModelConfig(operators=("dense",) * 4, width=128, heads=4),
    code_train=TrainConfig(
        steps=1800, batch_size=32, warmup=50, schedule="linear", decay=0.3, eval_every=300,
        eval_examples=512, test_examples=64, checkpoint_every=300,
    ),
    code_examples=4096,
    code_note="cpu: a decoder of 4 layers, width 128, from new weights (the paper fine-tunes 12 "
    "pretrained layers); programs of our own, 4 variables and 1 to 8 updates, 1,800 steps of 32",
)  # fmt: skip

PAPER = TextScale(
    tile=64,
    code=Code(variables=6, updates=24, tokenizer=GPT2, max_tokens=1024),
    code_model=DecoderConfig(pretrained=GPT2, layers="paper:code"),
    code_train=TrainConfig(
        steps=25_000, batch_size=256, accumulate=16, lr=3e-4, warmup=500, schedule="linear",
        eval_every=1000, eval_examples=2048, test_examples=256, checkpoint_every=1000,
    ),
    code_examples=10_000,
    code_note="paper: GPT-2, fine-tuned, 25,000 steps of 256, AdamW 3e-4; programs of our own, 6 "
    "variables and 1 to 24 updates",
)  # fmt: skip

TEXT_SCALES: dict[str, TextScale] = {"smoke": SMOKE, "cpu": CPU, "paper": PAPER}
"""By the names of `scales.SCALES`."""
