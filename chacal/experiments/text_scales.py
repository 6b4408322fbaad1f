"""Three sizes of the experiments on text and code, beside those of `scales.py`.

The paper's sizes are those it prints: GPT-2 of 12 layers, width 768, 12 heads and n = 1024 (batch
256, AdamW 3e-4, 25,000 steps), BART-base with inputs of 1024 and outputs of 256 tokens (AdamW 5e-5,
batches of 8, warm-up 0.1, one epoch). The cpu scale is what two cores finish.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from chacal.tasks import Code, Language, Scrolls, Variables
from chacal.training.config import ModelConfig, TrainConfig, fine_tuning
from chacal.training.transformers_model import TransformersConfig

GPT2 = "openai-community/gpt2"
SMOLLM = "HuggingFaceTB/SmolLM2-135M"
WIKITEXT = "hub:Salesforce/wikitext@wikitext-103-raw-v1"
OPENWEBTEXT = "hub:Skylion007/openwebtext"


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
        text: what is modelled from scratch.
        text_model: by what, every layer replaced.
        text_train: how it is learned.
        tuned_text: what a pretrained model is fine-tuned on; its tokenizer is the model's.
        tuned_model: the pretrained model.
        tuned_train: how it is fine-tuned.
        tuned_gamma: γ of resolvents in a pretrained model.
        text_seeds: of every cell on text.
        text_note: what the scale reduces.
        hops: chains of assignments; their tokenizer is the model's.
        hops_model: the pretrained model that follows them.
        hops_depth: how many layers it has.
        hops_train: how it is fine-tuned.
        hops_examples: texts of the test.
        hops_longer: statements of the longer texts that it is tested on as well.
        hops_note: what the scale reduces.
        scrolls: sizes of inputs, outputs and validation; which data set is the table's matter.
        scrolls_model: the encoder-decoder.
        scrolls_train: how it is fine-tuned, but for the steps of an epoch.
        scrolls_steps: most steps of it.
        scrolls_new: how a model with new weights is trained in its place.
        scrolls_note: what the scale reduces.
    """

    tile: int
    code: Code
    code_model: ModelConfig | TransformersConfig
    code_train: TrainConfig
    code_examples: int
    code_note: str
    text: Language
    text_model: TransformersConfig
    text_train: TrainConfig
    tuned_text: Language
    tuned_model: TransformersConfig
    tuned_train: TrainConfig
    tuned_gamma: float
    text_seeds: int
    text_note: str
    hops: Variables
    hops_model: TransformersConfig
    hops_depth: int
    hops_train: TrainConfig
    hops_examples: int
    hops_longer: int
    hops_note: str
    scrolls: Scrolls
    scrolls_model: TransformersConfig
    scrolls_train: TrainConfig
    scrolls_steps: int | None
    scrolls_new: TrainConfig
    scrolls_note: str


_EPOCH = TrainConfig(
    batch_size=8, accumulate=8, lr=5e-5, schedule="linear", eval_every=500, checkpoint_every=500
)
"""The paper's fine-tuning of BART: one sequence at a time, eight to a step."""

_SPELL = TrainConfig(
    steps=200, batch_size=8, lr=1e-3, warmup=20, schedule="linear", eval_every=100,
    checkpoint_every=100,
)  # fmt: skip
"""For new weights, which have to learn to spell first: an epoch at 5e-5 teaches them nothing."""

BART = "facebook/bart-base"

_FEW = TrainConfig(
    steps=2, batch_size=2, eval_every=2, eval_examples=4, test_examples=4, checkpoint_every=2
)

SMOKE = TextScale(
    tile=8,
    code=Code(variables=2, updates=2, curriculum_hold=0, curriculum_steps=1),
    code_model=ModelConfig(operators=("dense", "dense"), width=16, heads=2),
    code_train=_FEW,
    code_examples=32,
    code_note="SMOKE: a few steps of a tiny model. No figure means anything",
    text=Language(window=32, eval_tokens=128),
    text_model=TransformersConfig(width=16, heads=2, depth=2),
    text_train=_FEW,
    tuned_text=Language(window=32, eval_tokens=128),
    tuned_model=TransformersConfig(width=16, heads=2, depth=2),
    tuned_train=_FEW,
    tuned_gamma=0.5,
    text_seeds=1,
    text_note="SMOKE: a few steps of tiny models, none of them pretrained. No figure means "
    "anything",
    hops=Variables(statements=6, min_statements=4, questions=2, pool=40),
    hops_model=TransformersConfig(width=16, heads=2, depth=2, positions=128),
    hops_depth=5,
    hops_train=_FEW,
    hops_examples=8,
    hops_longer=9,
    hops_note="SMOKE: a few steps of tiny models, none of them pretrained. No figure means "
    "anything",
    scrolls=Scrolls(data="help", input_tokens=24, output_tokens=8, limit=4),
    scrolls_model=TransformersConfig(architecture="bart", width=16, heads=2, depth=2),
    scrolls_train=_FEW,
    scrolls_steps=2,
    scrolls_new=_FEW,
    scrolls_note="SMOKE: a few steps of a tiny model that is not pretrained, on paragraphs of "
    "help(). No figure means anything",
)

CPU = TextScale(
    tile=16,
    code=Code(variables=4, updates=6),
    code_model=ModelConfig(operators=("dense",) * 4, width=128, heads=4),
    code_train=TrainConfig(
        steps=1500, batch_size=32, warmup=50, schedule="linear", decay=0.3, eval_every=300,
        eval_examples=512, test_examples=64, checkpoint_every=300,
    ),
    code_examples=4096,
    code_note="cpu: a decoder of 4 layers, width 128, from new weights (the paper fine-tunes 12 "
    "pretrained layers); programs of our own, 4 variables and 1 to 6 updates, 1,500 steps of 32",
    text=Language(window=256, tokenizer="bpe:2048"),
    text_model=TransformersConfig(width=128, heads=4, depth=4),
    text_train=TrainConfig(
        steps=600, batch_size=8, warmup=50, schedule="cosine", eval_every=300,
        checkpoint_every=300,
    ),
    tuned_text=Language(window=256, eval_tokens=8192),
    tuned_model=TransformersConfig(pretrained=SMOLLM),
    tuned_train=TrainConfig(
        steps=40, batch_size=2, lr=1e-4, warmup=4, schedule="linear", eval_every=40,
        checkpoint_every=40, log_every=5,
    ),
    tuned_gamma=0.5,
    text_seeds=1,
    text_note="cpu: from scratch, GPT-2 of 4 layers, width 128, n = 256, 600 steps of 8; "
    "fine-tuned, 40 steps of 2 windows of 256, AdamW 1e-4, γ = 0.5 unless said, measured on the "
    "first 8,192 tokens",
    hops=Variables(),
    hops_model=TransformersConfig(pretrained=SMOLLM),
    hops_depth=30,
    hops_train=dataclasses.replace(
        fine_tuning(), bf16=True, eval_every=120, eval_examples=24, test_examples=24,
        checkpoint_every=60,
    ),
    hops_examples=96,
    hops_longer=96,
    hops_note="cpu: 240 steps of 4 texts of 5 to 36 assignments in 3 chains, AdamW 2e-4 (γ 1e-2), "
    "bfloat16, unless a row says another rate; 96 texts of 36 assignments, or 96 in the longer "
    "ones, 8 questions each",
    scrolls=Scrolls(tokenizer=BART, input_tokens=256, output_tokens=32, limit=48),
    scrolls_model=TransformersConfig(pretrained=BART),
    scrolls_train=_EPOCH,
    scrolls_steps=40,
    scrolls_new=_SPELL,
    scrolls_note="cpu: the first 256 tokens of an input, answers of at most 32, at most 40 steps "
    "of 8 (of one epoch), the first 48 questions of the validation",
)  # fmt: skip

PAPER = TextScale(
    tile=64,
    code=Code(variables=6, updates=24, tokenizer=GPT2, max_tokens=1024),
    code_model=TransformersConfig(pretrained=GPT2, layers="paper:code"),
    code_train=TrainConfig(
        steps=25_000, batch_size=256, accumulate=16, lr=3e-4, warmup=500, schedule="linear",
        eval_every=1000, eval_examples=2048, test_examples=256, checkpoint_every=1000,
    ),
    code_examples=10_000,
    code_note="paper: GPT-2, fine-tuned, 25,000 steps of 256, AdamW 3e-4; programs of our own, 6 "
    "variables and 1 to 24 updates",
    text=Language(
        train=f"{WIKITEXT}:train", valid=f"{WIKITEXT}:validation", tokenizer=GPT2, window=1024
    ),
    text_model=TransformersConfig(width=768, heads=12, depth=12, dropout=0.1),
    text_train=TrainConfig(
        steps=25_000, batch_size=256, accumulate=32, lr=3e-4, warmup=500, schedule="cosine",
        eval_every=1000, checkpoint_every=1000,
    ),
    # its only split is cut: the first 20 MB are measured, and never trained on
    tuned_text=Language(
        train=f"{OPENWEBTEXT}:train:20-8000", valid=f"{OPENWEBTEXT}:train:0-20", tokenizer=GPT2,
        window=1024, eval_tokens=500_000,
    ),
    tuned_model=TransformersConfig(pretrained=GPT2),
    tuned_train=TrainConfig(
        steps=25_000, batch_size=256, accumulate=32, lr=3e-4, warmup=500, schedule="cosine",
        eval_every=1000, checkpoint_every=1000,
    ),
    tuned_gamma=0.9,
    text_seeds=1,
    text_note="paper: GPT-2 of 12 layers, n = 1024, 25,000 steps of 256, AdamW 3e-4; from scratch "
    "on WikiText-103, fine-tuned on OpenWebText's first 8 GB (warm-up, schedule and γ = 0.9 are "
    "ours: the paper does not print them)",
    hops=Variables(statements=96),
    hops_model=TransformersConfig(pretrained=SMOLLM),
    hops_depth=30,
    hops_train=dataclasses.replace(fine_tuning(), steps=2000, batch_size=32, eval_every=500),
    hops_examples=1000,
    hops_longer=288,
    hops_note="paper: 2,000 steps of 32 texts of 5 to 96 assignments in 3 chains, AdamW 2e-4 "
    "(γ 1e-2)",
    scrolls=Scrolls(tokenizer=BART),
    scrolls_model=TransformersConfig(pretrained=BART),
    scrolls_train=_EPOCH,
    scrolls_steps=None,
    scrolls_new=_SPELL,
    scrolls_note="paper: BART-base, 1024 tokens in, answers of at most 256, greedy, one epoch of "
    "steps of 8, AdamW 5e-5, warm-up 0.1, measured every 500 steps, the best kept",
)  # fmt: skip

TEXT_SCALES: dict[str, TextScale] = {"smoke": SMOKE, "cpu": CPU, "paper": PAPER}
"""By the names of `scales.SCALES`."""
