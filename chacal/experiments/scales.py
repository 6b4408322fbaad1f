"""Three sizes of every experiment: a smoke test, what two CPU cores finish, and the paper's.

A scale says how large tasks, models and training are; a table says what is compared. The paper's
sizes are those it prints (width 512, 8 heads, feed-forward 2048, batch 256, AdamW 3e-4, 25,000
steps, up to 31 updates, chains of 16 blocks of 8); what it does not print is ours.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

from chacal.tasks import Boxes, Chains, Language, Noise, PaddedBoxes, Properties
from chacal.training.config import ModelConfig, RunConfig, TrainConfig


@dataclass(frozen=True, kw_only=True)
class Given:
    """Data and models of the user's own, for the tables on text; None for the scale's.

    Attributes:
        train_file: text to train on, or JSONL of texts and labels.
        valid_file: what to measure on.
        tokenizer: of the text, for models with new weights.
        pretrained: folder, GGUF file or hub name of a model to fine-tune.
        data: folder in the layout of SCROLLS, or of Kim and Schuster's data sets.
    """

    train_file: str | None = None
    valid_file: str | None = None
    tokenizer: str | None = None
    pretrained: str | None = None
    data: str | None = None

    def flags(self) -> list[str]:
        """What was given, as on the command line."""
        given = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return [
            word
            for name, value in given.items()
            if value is not None
            for word in (f"--{name.replace('_', '-')}", value)
        ]

    def refuse_but(self, table: str, *used: str) -> None:
        """Raise if something is given that a table has no use for."""
        for field in dataclasses.fields(self):
            if getattr(self, field.name) is not None and field.name not in used:
                flags = ", ".join(f"--{name.replace('_', '-')}" for name in used) or "none of them"
                raise ValueError(
                    f"--{field.name.replace('_', '-')} is given, and {table} has no use for it; "
                    f"expected {flags}"
                )


@dataclass(frozen=True, kw_only=True)
class Scale:
    """How large everything is.

    Attributes:
        name: as on the command line.
        note: what it reduces, for the report.
        seeds: of every cell; 0 for as many as the paper's table has.
        stories: the Boxes task.
        story_train: how it is learned.
        chains: the Toy task.
        chain_train: how it is learned.
        property_steps: twice what the passing cells need (they stop when they pass).
        noise: the canary.
        noise_train: how it is (not) learned.
        noise_width: width of its model.
        help_text: real text, for what a leak does to perplexity.
        help_train: how it is learned.
        width: of all other models.
        heads: of all models but where heads are the question.
        examples: of a test set.
        rounds: timed passes over it.
        lengths: n of the cost curves.
        block_lengths: n at which block sizes are swept.
        budget: seconds that one point of a cost curve may take.
        given: data and models of the user's own.
    """

    name: str
    note: str
    seeds: int
    stories: Boxes
    story_train: TrainConfig
    chains: Chains
    chain_train: TrainConfig
    property_steps: int
    noise: Noise
    noise_train: TrainConfig
    noise_width: int
    help_text: Language
    help_train: TrainConfig
    width: int
    heads: int
    examples: int
    rounds: int
    lengths: tuple[int, ...]
    block_lengths: tuple[int, ...]
    budget: float
    given: Given = Given()

    @property
    def tile(self) -> int:
        """Tiles of an eighth of the longest story, for the operators that route between tiles."""
        return max(2, self.stories.length // 8)

    def on_boxes(self, *operators: str, pad: int = 0) -> RunConfig:
        """A run on the stories, padded to `pad` tokens if asked."""
        task = self.stories
        if pad:
            own: dict[str, Any] = {f.name: getattr(task, f.name) for f in dataclasses.fields(task)}
            task = PaddedBoxes(**own, pad=pad)
        model = ModelConfig(operators=operators, width=self.width, heads=self.heads)
        return RunConfig(task=task, model=model, train=self.story_train)

    def on_chains(self, operator: str) -> RunConfig:
        """One layer on the Toy task."""
        model = ModelConfig(
            operators=(operator,), width=self.width, heads=self.heads, positions="factorised"
        )
        return RunConfig(task=self.chains, model=model, train=self.chain_train)

    def on_properties(self, properties: int, heads: int, layout: str = "stacked") -> RunConfig:
        """One ChaCAL layer on multi-property chains; it stops once it has learned them."""
        task = Properties(
            properties=properties,
            blocks=self.chains.blocks,
            block_size=self.chains.block_size,
            layout=layout,
        )
        model = ModelConfig(
            operators=("chacal",), width=self.width, heads=heads, positions="factorised"
        )
        train = dataclasses.replace(self.chain_train, steps=self.property_steps, target=0.9999)
        return RunConfig(task=task, model=model, train=train)

    def on_noise(self, operator: str) -> RunConfig:
        """Two layers of the operator on random tokens."""
        model = ModelConfig(
            operators=(operator, operator), width=self.noise_width, heads=self.heads
        )
        return RunConfig(task=self.noise, model=model, train=self.noise_train)

    def on_help(self, operator: str) -> RunConfig:
        """Two layers of the operator on real text: the paper swaps every layer of its models."""
        model = ModelConfig(
            operators=(operator, operator), width=self.width, heads=self.heads, qk_norm=None
        )
        return RunConfig(task=self.help_text, model=model, train=self.help_train)


SMOKE = Scale(
    name="smoke",
    note="SMOKE: a few steps of tiny models, to see that everything runs. No figure means anything",
    seeds=1,
    stories=Boxes(
        boxes=3, objects=10, updates=3, curriculum_hold=0, curriculum_steps=5
    ),
    story_train=TrainConfig(
        steps=20, batch_size=8, warmup=2, eval_every=20, eval_examples=16, test_examples=16,
        checkpoint_every=10,
    ),
    chains=Chains(blocks=4, block_size=4),
    chain_train=TrainConfig(
        steps=20, batch_size=8, eval_every=10, eval_examples=16, test_examples=16,
        checkpoint_every=10,
    ),
    property_steps=40,
    noise=Noise(window=16),
    noise_train=TrainConfig(
        steps=20, batch_size=8, eval_every=20, eval_examples=16, test_examples=16,
        checkpoint_every=10,
    ),
    noise_width=16,
    help_text=Language(test="help", window=4096),
    help_train=TrainConfig(steps=2, batch_size=1, eval_every=2, checkpoint_every=2),
    width=16,
    heads=2,
    examples=64,
    rounds=2,
    lengths=(64, 128, 256),
    block_lengths=(256,),
    budget=2.0,
)  # fmt: skip

CPU = Scale(
    name="cpu",
    note="cpu: 4 boxes, 40 objects, 0 to 10 updates (n <= 61), 1,400 steps of 32, width 128, 4 "
    "heads, AdamW 1e-3; chains of the paper's size, 300 steps of 32",
    seeds=3,
    stories=Boxes(
        boxes=4, objects=40, updates=10, curriculum_hold=150, curriculum_steps=45
    ),
    story_train=TrainConfig(
        steps=1400, batch_size=32, warmup=50, schedule="linear", decay=0.3, eval_every=700,
        eval_examples=256, test_examples=64, checkpoint_every=200,
    ),
    chains=Chains(),
    chain_train=TrainConfig(
        steps=300, batch_size=32, eval_every=50, eval_examples=256, test_examples=64,
        checkpoint_every=100,
    ),
    property_steps=1200,
    noise=Noise(),
    noise_train=TrainConfig(
        steps=400, batch_size=32, eval_every=200, eval_examples=256, test_examples=64,
        checkpoint_every=200,
    ),
    noise_width=64,
    help_text=Language(test="help", window=256),
    help_train=TrainConfig(
        steps=500, batch_size=16, warmup=50, schedule="cosine", eval_every=250,
        checkpoint_every=250,
    ),
    width=128,
    heads=4,
    examples=2048,
    rounds=5,
    lengths=(256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536),
    block_lengths=(1024, 4096),
    budget=20.0,
)  # fmt: skip

PAPER = Scale(
    name="paper",
    note="paper: 7 boxes, 100 objects, 0 to 31 updates, 25,000 steps of 256, width 512, 8 heads, "
    "AdamW 3e-4 (boxes, objects and the curriculum are ours: the paper does not print them)",
    seeds=0,
    stories=Boxes(updates=31, curriculum_hold=1000, curriculum_steps=300),
    story_train=TrainConfig(
        steps=25_000, batch_size=256, lr=3e-4, warmup=500, schedule="linear", decay=0.3,
        eval_every=1000, eval_examples=2048, test_examples=256, checkpoint_every=1000,
    ),
    chains=Chains(),
    chain_train=TrainConfig(
        steps=25_000, batch_size=256, lr=3e-4, eval_every=500, eval_examples=1024,
        test_examples=256, checkpoint_every=1000,
    ),
    property_steps=25_000,
    noise=Noise(),
    noise_train=TrainConfig(
        steps=25_000, batch_size=256, lr=3e-4, eval_every=1000, eval_examples=1024,
        test_examples=256, checkpoint_every=1000,
    ),
    noise_width=512,
    help_text=Language(test="help", window=1024),
    help_train=TrainConfig(
        steps=5000, batch_size=64, lr=3e-4, warmup=500, schedule="cosine", eval_every=500,
        checkpoint_every=500,
    ),
    width=512,
    heads=8,
    examples=10_000,
    rounds=5,
    lengths=(256, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536),
    block_lengths=(1024, 4096, 16384),
    budget=120.0,
)  # fmt: skip

SCALES: dict[str, Scale] = {scale.name: scale for scale in (SMOKE, CPU, PAPER)}
"""Every scale by its name."""
