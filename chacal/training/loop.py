"""The only training loop.

A step is a pure function of the weights, the optimiser's state, torch's random state and the
step's number: the batch is made from the number, not drawn from a stream. So a run that resumes
from a checkpoint goes on bit for bit, and a run on two processes takes the same steps as on one.
"""

from __future__ import annotations

import dataclasses
import gc
import math
import time
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NoReturn

import torch
from torch import nn

from chacal._plain import member
from chacal.tasks.base import IGNORE
from chacal.training.bfloat16 import ensure_bfloat16
from chacal.training.checkpoint import (
    Damaged,
    frozen_names,
    load_checkpoint,
    load_weights,
    save_checkpoint,
)
from chacal.training.config import RunConfig
from chacal.training.context import check_batch, check_context
from chacal.training.display import Display
from chacal.training.distributed import Group, chosen_device, start
from chacal.training.evaluate import (
    asked_places,
    compute_scores,
    evaluate,
    examples_of,
    token_losses,
)
from chacal.training.interrupts import Stopped, stop_gently, told_how_to_go_on
from chacal.training.lock import alone
from chacal.training.memory import check_training
from chacal.training.optimizer import learning_rate, make_optimizer
from chacal.training.replace import settle
from chacal.training.restore import (
    Progress,
    check_optimizer,
    own_random_state,
    random_state,
    read_progress,
    set_random_state,
    way_on,
)
from chacal.training.runs import Interrupted, RunFolder, keeping_the_old
from chacal.training.torchrun import rank, world_size


def train(
    config: RunConfig,
    out: str | Path,
    *,
    resume: bool = False,
    force: bool = False,
    label: str | None = None,
    quiet: bool = False,
    locked: bool = False,
) -> dict[str, Any]:
    """Train, and return what result.json holds.

    Args:
        config: the run.
        out: its folder.
        resume: go on from the folder's last checkpoint, if there is one.
        force: replace a run that is there.
        label: how progress names the run; the operators unless given.
        quiet: show no progress.
        locked: the caller holds the folder's lock already.

    Returns:
        the metrics of the best weights on the valid and the test split, steps, time, sizes.
    """
    check_context(config)
    check_training(config, chosen_device(config.train.device), world_size())
    with torch.device("meta"):
        model = config.build()  # sizes that do not fit are told before a folder is made
    make_optimizer(model, config.train)
    examples_of(config)
    if config.train.init is not None:
        load_weights(model.to_empty(device="cpu"), RunFolder.open(config.train.init).best)
    if config.train.threads:
        torch.set_num_threads(config.train.threads)
    run = RunFolder(out)
    # of torchrun's processes, the first speaks for all
    lock = nullcontext() if locked or rank() else alone(run.path, wait=False)
    with (
        lock,
        start(config.train.device, config.train.fsdp, config.train.context_parallel) as group,
        told_how_to_go_on(out),
    ):
        if config.train.bf16 and group.device.type == "cpu":
            ensure_bfloat16(quiet=not group.first)
        with keeping_the_old(run):
            _open_folder(config, run, resume, force, group)
            if resume and (run.path / "result.json").exists():
                return run.result() if group.first else {}
            return _train(config, run, group, resume=resume, label=label, quiet=quiet)


def _train(
    config: RunConfig, run: RunFolder, group: Group, *, resume: bool, label: str | None, quiet: bool
) -> dict[str, Any]:
    try:
        loop = _Loop(config, run, group)
        if resume:
            loop.restore()
    except Damaged as error:
        raise ValueError(f"{error}{way_on(run)}") from None
    name = label or " + ".join(config.model.operators)
    with (
        Display(
            name, config.train.steps, config.task.metric, visible=group.first and not quiet
        ) as show,
        stop_gently() as asked,
    ):
        if loop.step:
            show.note(f"{name}  resumed after step {loop.step}")
        stopped = loop.run_steps(show, asked)
        result = loop.finish(stopped, show, asked)
    # a DDP model that outlives its process group can hang in its destructor
    del loop
    gc.collect()
    group.barrier()
    return result


_PROGRESS = [field.name for field in dataclasses.fields(Progress)]


class _Loop:
    """What changes from step to step."""

    def __init__(self, config: RunConfig, run: RunFolder, group: Group) -> None:
        self.config, self.run, self.group = config, run, group
        self.task, self.settings = config.task, config.train
        check_batch(self.settings, group)
        torch.manual_seed(self.settings.seed)
        given = run.last.exists() or self.settings.init is not None
        plain = config.build(weights=not given).to(group.device)
        self.shapes = {name: p.shape for name, p in plain.named_parameters()}
        self.parameters = sum(p.numel() for p in plain.parameters())
        if run.last.exists():
            load_weights(plain, run.last)
        elif self.settings.init is not None:
            load_weights(plain, RunFolder.open(self.settings.init).best)
        self.frozen = frozen_names(plain)
        self.model: nn.Module = group.wrap(plain)
        self.optimizer, self.names, self.peaks = make_optimizer(self.model, self.settings)
        torch.manual_seed(self.settings.seed + 1000003 * (group.rank + 1))  # dropout, per rank
        self.step = 0
        self.best: float | None = None
        self.best_metrics: dict[str, float] = {}
        self.seconds = 0.0
        self.tokens = 0
        self.loss = math.nan
        self.stopped = ""
        # whether these weights are still to be evaluated; without steps, those that are given
        self.unmeasured = not self.settings.steps

    def run_steps(self, show: Display, asked: list[bool]) -> str:
        """Steps until the end, the target or an interruption; why it stopped."""
        settings = self.settings
        begun = time.monotonic() - self.seconds
        if self.stopped:  # resumed between the last step and the test
            return self.stopped
        while self.unmeasured or self.step < settings.steps:
            if not self.unmeasured:
                self.one_step()
                self.seconds = time.monotonic() - begun
                left = self.seconds / self.step * (settings.steps - self.step)
                show.step(self.step, self.loss, self.tokens / max(1e-9, self.seconds), left)
                last = self.step == settings.steps
                if self.step % settings.log_every == 0 or last:
                    self.log(loss=self.loss, lr=learning_rate(settings, self.step - 1))
                self.unmeasured = self.step % settings.eval_every == 0 or last
            reached = False
            interrupted = self.group.any(bool(asked))
            if self.unmeasured and not interrupted:
                try:
                    reached = self.evaluate(show, asked)
                    interrupted = self.group.any(bool(asked))
                except Stopped:
                    interrupted = True
            if reached:
                self.stopped = "target"
            last = self.step == settings.steps
            if self.step % settings.checkpoint_every == 0 or last or reached or interrupted:
                self.save()
            if reached:
                return self.stopped
            if interrupted and (not last or self.unmeasured):
                self.interrupt(f"after step {self.step} of {settings.steps}")
        return "steps"

    def interrupt(self, when: str) -> NoReturn:
        """Stop here; the last checkpoint has everything."""
        raise Interrupted(f"stopped {when}; go on with --resume --out {self.run.path}")

    def one_step(self) -> None:
        """One step of AdamW on the batch that belongs to it."""
        settings, group = self.settings, self.group
        batch = self.task.batch("train", settings.seed, self.step, settings.batch_size)
        asked = max(1, int((batch.targets != IGNORE).sum()))
        rows = range(group.data_rank, settings.batch_size, group.data_world)
        tokens, targets = (torch.from_numpy(x[rows]) for x in (batch.tokens, batch.targets))
        for parameters, peak in zip(self.optimizer.param_groups, self.peaks, strict=True):
            parameters["lr"] = learning_rate(settings, self.step, peak)
        self.optimizer.zero_grad(set_to_none=True)
        loss = torch.zeros((), device=group.device)
        pieces = (x.to(group.device).chunk(settings.accumulate) for x in (tokens, targets))
        parts = list(zip(*pieces, strict=True))
        for i, (some_tokens, some_targets) in enumerate(parts):
            with (
                group.sync(self.model, now=i == len(parts) - 1),
                group.share(some_tokens.shape[1]) as share,
            ):
                own = share.take(some_targets)
                places = asked_places(self.model, own != IGNORE)
                scores = compute_scores(self.model, share.take(some_tokens), settings.bf16, places)
                wanted = own if places is None else own[:, places]
                part = token_losses(scores, wanted).sum() / asked
                # DDP and FSDP average over ranks; the sum over ranks is what one process has
                (part * group.world).backward()
            loss += part.detach()
        if settings.clip:
            nn.utils.clip_grad_norm_(self.model.parameters(), settings.clip)
        self.optimizer.step()
        self.loss = group.total(loss)
        if not math.isfinite(self.loss):
            raise ValueError(
                f"the loss is {self.loss} at step {self.step + 1}; the last checkpoint is kept "
                f"(a smaller --lr, or --qk-norm, may help)"
            )
        self.step += 1
        self.tokens += batch.tokens.shape[0] * batch.tokens.shape[1]

    def evaluate(self, show: Display, asked: list[bool]) -> bool:
        """Metrics on the valid split; keep the best weights; whether the target is reached."""
        settings = self.settings
        shown = show.evaluation("valid")

        def report(done: int, total: int) -> None:
            shown(done, total)
            if done < total and self.group.any(bool(asked)):
                raise Stopped

        metrics = evaluate(
            self.model,
            self.task,
            split="valid",
            seed=settings.seed,
            examples=settings.eval_examples,
            batch_size=self.counted_at_once,
            group=self.group,
            bf16=settings.bf16,
            sampled=settings.sampled,
            report=report,
        )
        self.unmeasured = False
        self.log(split="valid", **metrics)
        value = metrics[self.task.metric]
        sign = 1 if self.task.maximise else -1
        better = self.best is None or sign * value > sign * self.best
        if better:
            self.best, self.best_metrics = value, metrics
            weights = self.weights()
            if self.group.first:
                save_checkpoint(self.run.best, weights, {"step": self.step, "metrics": metrics})
        show.evaluated(self.step, value, better)
        return settings.target is not None and sign * value >= sign * settings.target

    @property
    def counted_at_once(self) -> int:
        """Sequences of an evaluation's batch: of stored splits, as many as a part of a step has.

        Generated examples are those of a batch's number and size, so there the size stays.
        """
        stored = self.task.stored("valid") is not None
        return self.settings.batch_size // (self.settings.accumulate if stored else 1)

    def log(self, **values: Any) -> None:
        if self.group.first:
            self.run.log(
                step=self.step, **values, tokens=self.tokens, seconds=round(self.seconds, 3)
            )

    def weights(self) -> dict[str, torch.Tensor]:
        """What of the model a checkpoint holds: all but what does not learn."""
        whole = self.group.model_tensors(self.model)
        return {f"model.{name}": x for name, x in whole.items() if name not in self.frozen}

    def save(self) -> None:
        """Everything needed to go on from here."""
        group = self.group
        model = self.weights()
        optimizer = group.optimizer_tensors(self.model, self.optimizer, self.names)
        everyone = group.gather(random_state(group.device))
        if group.first:
            progress = {name: getattr(self, name) for name in _PROGRESS}
            states = {f"random.{rank}": state for rank, state in enumerate(everyone)}
            save_checkpoint(self.run.last, {**model, **optimizer, **states}, progress)
            settle(self.run.path)
        group.barrier()

    def restore(self) -> None:
        """Go on from the last checkpoint, if any; the weights are in the model already."""
        if not self.run.last.exists():
            if self.group.first:
                self.run.rewind(0)
            return
        tensors, progress = load_checkpoint(self.run.last)
        state = own_random_state(tensors, self.config, self.group, self.run.path)
        told = read_progress(progress, self.settings.steps, f"{self.run.last}: progress")
        for name in _PROGRESS:
            setattr(self, name, getattr(told, name))
        own = {
            k.removeprefix("optimizer."): v for k, v in tensors.items() if k[:10] == "optimizer."
        }
        check_optimizer(own, self.shapes, self.run.last)
        self.group.restore_optimizer(self.model, self.optimizer, self.names, own)
        if state is not None:
            where = f"{self.run.last}: random.{self.group.rank}"
            set_random_state(state, self.group.device, where)
        if self.group.first:
            self.run.rewind(self.step)
        self.group.barrier()

    def finish(self, stopped: str, show: Display, asked: list[bool]) -> dict[str, Any]:
        """Test the best weights and write the result."""
        result: dict[str, Any] = {}
        shown = show.evaluation("test")

        def report(done: int, total: int) -> None:
            shown(done, total)
            if done < total and asked:
                self.interrupt("in the test, after the last step")

        if self.group.rank < self.group.context:  # those that share the first one's texts
            model = self.config.build(weights=False).to(self.group.device)
            best = load_weights(model, self.run.best)
            best_step = member(best, "step", int, f"{self.run.best}: progress")
            test = None
            if "test" in self.task.splits:
                test = evaluate(
                    model,
                    self.task,
                    split="test",
                    seed=self.settings.seed,
                    examples=self.settings.test_examples,
                    batch_size=self.counted_at_once,
                    group=dataclasses.replace(self.group, rank=0, world=1, fsdp=False),
                    bf16=self.settings.bf16,
                    sampled=self.settings.sampled,
                    report=report,
                )
            result = {
                "task": self.task.describe(),
                "operators": list(self.config.model.operators),
                "causal": all(op.causal for op in model.operators),
                "metric": self.task.metric,
                "valid": self.best_metrics,
                "test": test,
                "examples": examples_of(self.config),
                "best_step": best_step,
                "steps": self.step,
                "stopped": stopped,
                "seconds": round(self.seconds, 3),
                "tokens": self.tokens,
                "parameters": self.parameters,
            }
            if self.group.first:
                self.run.write("result.json", result)
        self.group.barrier()
        return result if self.group.first else {}


def _open_folder(
    config: RunConfig, run: RunFolder, resume: bool, force: bool, group: Group
) -> None:
    if group.first:
        run.clear()
        if not (resume and (run.path / "config.json").exists()):
            run.begin(config, force=force, resume=resume)
        run.drop_temporary()
    group.barrier()
    RunFolder.open(run.path).ensure_same(config)
