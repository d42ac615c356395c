"""The runs of `statetrack demo`: the paper's central result in minutes on a laptop."""

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
from statetrack.recipes import presets
from statetrack.sweep.pool import Event, Report, run_all
from statetrack.training import Progress, RunConfig, curve, train

DEMO_SCHEMA = 1
SEEDS = 3  # per model on parity, as in the paper
PARITY_TEST = (40, 256)
PARITY_LONGEST = 1000
SWAP_LENGTHS = (32, 64, 128, 256)

# What the paper reports: (best, median) of three seeds, scaled accuracy on lengths 40-256, from
# Tables 3 and 5; of the groups only curves are published (Figure 4).
PAPER_PARITY = {
    "Mamba [0,1]": (0.000, 0.000),
    "Mamba [-1,1]": (1.000, 1.000),
    "DeltaNet [0,1]": (0.017, 0.010),
    "DeltaNet [-1,1]": (1.000, 0.999),
}
PAPER_SWAPS = {
    "DeltaNet [0,1]": "5 layers: only slightly past 32",
    "DeltaNet [-1,1]": "1 layer: solved to 500",
}


@dataclass(frozen=True)
class Job:
    """One model to train and measure."""

    experiment: str  # "parity" or "swaps"
    config: RunConfig
    folder: Path
    longest: int  # greatest length that is measured
    samples: int

    @property
    def title(self) -> str:
        """The model's name, as in tables."""
        return self.config.model.title


def plan(seed: int, folder: Path, *, smoke: bool = False) -> list[Job]:
    """List what the demo trains; `seed` = s stands for the training seeds 3s, 3s + 1, 3s + 2.

    With `smoke` every run is too short to learn, for tests of the machinery.
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
    """Train one model, measure it, and write both to its run folder."""
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
    write_json(job.folder / "evaluation.json", {"schema": DEMO_SCHEMA, **result})
    return result


def _score(experiment: str, lengths: np.ndarray, values: np.ndarray) -> float:
    """Return the mean over lengths 40..256 (parity), or the value at length 128 (swaps)."""
    if experiment == "parity":
        low, high = PARITY_TEST
        return float(values[(lengths >= low) & (lengths <= high)].mean())
    return float(values[lengths == 128][0])


@dataclass
class Demo:
    """The jobs of a demo, and the results of those that are done."""

    seed: int
    folder: Path
    smoke: bool
    jobs: list[Job]
    results: dict[int, dict[str, Any]] = field(default_factory=dict)
    seconds: float = 0.0

    @classmethod
    def start(cls, seed: int, folder: Path, *, smoke: bool = False) -> Demo:
        """Plan a demo that writes to `folder`."""
        return cls(seed, folder, smoke, plan(seed, folder, smoke=smoke))

    def run(self, workers: int | None = None) -> Iterator[Event]:
        """Train and measure everything; yield the events for a display."""
        began = time.perf_counter()
        with closing(run_all(work, self.jobs, workers)) as events:  # type: ignore[type-var]
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
        """Return everything that was measured, as plain values."""
        order = [self.results[i] for i in sorted(self.results)]
        parity, swaps = [], []
        for title in PAPER_PARITY:
            runs = [r for r in order if r["experiment"] == "parity" and r["model"] == title]
            if runs:
                parity.append(_parity_row(title, runs))
        for title in PAPER_SWAPS:
            runs = [r for r in order if r["experiment"] == "swaps" and r["model"] == title]
            swaps += [_swaps_row(title, run) for run in runs]
        return {
            "schema": DEMO_SCHEMA,
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
    paper_best, paper_median = PAPER_PARITY[title]
    return {
        "model": title,
        "scores": scores,
        "best": max(scores.values()),
        "median": statistics.median(scores.values()),
        "paper_best": paper_best,
        "paper_median": paper_median,
    }


def _swaps_row(title: str, run: dict[str, Any]) -> dict[str, Any]:
    at = dict(zip(run["lengths"], run["values"], strict=True))
    return {
        "model": title,
        "seed": run["seed"],
        "sequence_accuracy": {str(n): at[n] for n in SWAP_LENGTHS},
        "paper": PAPER_SWAPS[title],
    }
