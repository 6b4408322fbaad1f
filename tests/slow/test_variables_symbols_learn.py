"""Names are looked up and chains followed where embeddings begin large, and not where small."""

from chacal.tasks import VariableSymbols
from chacal.training.config import ModelConfig, RunConfig, TrainConfig
from chacal.training.loop import train


def learned(folder, hops, steps, embed_std):
    run = RunConfig(
        task=VariableSymbols(
            n=64, min_n=64, names=32, chains=8, questions=4, hops=hops, curriculum_steps=20
        ),
        model=ModelConfig(
            operators=("local@2", "chacal"), positions="none", width=64, heads=2,
            embed_std=embed_std,
        ),
        train=TrainConfig(
            steps=steps, batch_size=32, lr=2e-3, warmup=50, eval_every=100, eval_examples=128,
            test_examples=512, target=0.99,
        ),
    )  # fmt: skip
    return train(run, folder, quiet=True)["test"]


def test_large_embeddings_are_looked_up_and_chains_followed(tmp_path):
    assert learned(tmp_path, 2, 600, 1.0)["accuracy"] > 0.95


def test_small_embeddings_are_not_looked_up_in_as_many_steps(tmp_path):
    assert learned(tmp_path, 1, 300, 0.02)["accuracy"] < 0.5
