"""The paper's central result in minutes on a laptop: what [0,1] cannot learn and [-1,1] can."""

from __future__ import annotations

import platform
import statistics
import time
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from statetrack import __version__
from statetrack.files import read_json, write_json
from statetrack.recipes import paper, presets
from statetrack.sweep.pool import Event, Report, run_jobs
from statetrack.training import Progress, RunConfig, curve, train

SCHEMA = 1
SEEDS = 3  # per model on parity, as in the paper
PARITY_TEST = (40, 256)
PARITY_LONGEST = 1000
SWAP_LENGTHS = (32, 64, 128, 256)


@dataclass(frozen=True)
class Job:
    """One model to train and measure."""

    experiment: str  # "parity" or "swaps"
    config: RunConfig
    folder: Path
    longest: int  # how far the curve goes
    samples: int

    @property
    def title(self) -> str:
        """The model's name in tables."""
        return self.config.model.title


def plan(seed: int, folder: Path, *, smoke: bool = False) -> list[Job]:
    """What the demo trains. `seed` = s stands for the training seeds 3s, 3s + 1, 3s + 2.

    With `smoke` everything is there but too short to learn: for tests of the machinery.
    """
    seeds = [seed * SEEDS + i for i in range(1 if smoke else SEEDS)]
    jobs = []
    # the slowest first, so that no core is idle at the end
    for allow in (True, False):
        config = presets.demo_swaps(allow_neg_eigval=allow, seed=seeds[0])
        jobs.append(_job("swaps", config, folder, max(SWAP_LENGTHS), 512, smoke))
    for mixer in ("mamba", "delta_net"):
        for allow in (False, True):
            for s in seeds:
                config = presets.demo_parity(mixer, allow_neg_eigval=allow, seed=s)
                jobs.append(_job("parity", config, folder, PARITY_LONGEST, 256, smoke))
    return jobs


def _job(
    experiment: str, config: RunConfig, folder: Path, longest: int, samples: int, smoke: bool
) -> Job:
    training = replace(config.training, checkpoint_every=config.training.steps)
    if smoke:
        training = replace(training, steps=4, batch_size=8, checkpoint_every=4)
        samples = 8
    mixer = config.model.mixers[0]
    sign = "neg" if mixer.allow_neg_eigval else "pos"
    name = f"{experiment}-{mixer.name}-{sign}-seed{training.seed}"
    return Job(
        experiment, replace(config, training=training), folder / "runs" / name, longest, samples
    )


def work(job: Job, report: Report) -> dict[str, Any]:
    """Train one model, measure it, and leave both in its run folder."""
    torch.set_num_threads(1)
    began = last = time.perf_counter()

    def throttled(progress: Progress) -> None:
        nonlocal last
        if progress.step in (1, progress.steps) or time.perf_counter() - last > 0.2:
            last = time.perf_counter()
            report(progress)

    run = train(job.config, job.folder, on_progress=throttled)
    measured = curve(
        run.model(),
        job.config.task,
        job.longest,
        samples=job.samples,
        data_seed=job.config.training.data_seed,
    )
    values = measured.scaled if job.experiment == "parity" else measured.sequence_accuracy
    result = {
        "experiment": job.experiment,
        "model": job.title,
        "seed": job.config.training.seed,
        "run": f"runs/{job.folder.name}",
        "parameters": run.model().num_parameters(),
        "samples": job.samples,
        "lengths": measured.lengths.tolist(),
        "values": [round(float(v), 6) for v in values],
        "score": round(_score(job.experiment, measured.lengths, values), 6),
        "seconds": round(time.perf_counter() - began, 2),
    }
    write_json(job.folder / "evaluation.json", {"schema": SCHEMA, **result})
    return result


def _score(experiment: str, lengths: np.ndarray, values: np.ndarray) -> float:
    """Parity: mean over lengths 40..256. Swaps: at length 128."""
    if experiment == "parity":
        low, high = PARITY_TEST
        return float(values[(lengths >= low) & (lengths <= high)].mean())
    return float(values[lengths == 128][0])


@dataclass
class Demo:
    """A demo as it runs and when it is done: jobs, and results in order of completion."""

    seed: int
    folder: Path
    smoke: bool
    jobs: list[Job]
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def start(cls, seed: int, folder: Path, *, smoke: bool = False) -> Demo:
        """A demo that will run into `folder`."""
        return cls(seed, folder, smoke, plan(seed, folder, smoke=smoke))

    def run(self, workers: int | None = None) -> Iterator[Event]:
        """Train and measure everything; yields the events for a display."""
        began = time.perf_counter()
        with closing(run_jobs(work, self.jobs, workers)) as events:  # type: ignore[type-var]
            for event in events:
                self.seconds = time.perf_counter() - began
                if event.kind == "done":
                    self.results[event.job] = event.value
                yield event

    @property
    def complete(self) -> bool:
        """Whether every job is done."""
        return len(self.results) == len(self.jobs)

    def summary(self) -> dict[str, Any]:
        """Everything that was measured, as plain values."""
        order = [self.results[i] for i in sorted(self.results)]
        parity, swaps = [], []
        for title in paper.PARITY_BEST:
            runs = [r for r in order if r["experiment"] == "parity" and r["model"] == title]
            if runs:
                parity.append(_parity_row(title, runs))
        for title in paper.SWAPS:
            runs = [r for r in order if r["experiment"] == "swaps" and r["model"] == title]
            swaps += [_swaps_row(title, run) for run in runs]
        return {
            "schema": SCHEMA,
            "complete": self.complete,
            "smoke": self.smoke,
            "seed": self.seed,
            "seconds": round(self.seconds, 1),
            "versions": {
                "statetrack": __version__,
                "torch": torch.__version__,
                "python": platform.python_version(),
                "machine": platform.machine(),
            },
            "parity": parity,
            "swaps": swaps,
            "configs": {r["run"]: read_json(self.folder / r["run"] / "config.json") for r in order},
            "runs": order,
        }


def _parity_row(title: str, runs: list[dict[str, Any]]) -> dict[str, Any]:
    scores = {str(r["seed"]): r["score"] for r in runs}
    return {
        "model": title,
        "scores": scores,
        "best": max(scores.values()),
        "median": statistics.median(scores.values()),
        "paper_best": paper.PARITY_BEST[title],
        "paper_median": paper.PARITY_MEDIAN[title],
    }


def _swaps_row(title: str, run: dict[str, Any]) -> dict[str, Any]:
    at = dict(zip(run["lengths"], run["values"], strict=True))
    return {
        "model": title,
        "seed": run["seed"],
        "sequence_accuracy": {str(n): at[n] for n in SWAP_LENGTHS},
        "paper": paper.SWAPS[title],
    }
