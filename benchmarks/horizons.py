"""Compare the horizon that `statetrack diagnose` predicts with the one that `eval` measures.

    python -m benchmarks horizons --seeds 8000 --log runs/horizons/log.jsonl

Trains DeltaNet, Mamba and Gated DeltaNet on parity, S5 swaps and Z3, with eigenvalues in [-1,1] and
in [0,1], on lengths up to 40 (parity) or 32, without convolutions. Models have one layer, or two
where one cannot solve the task. Tasks that one layer can solve in [-1,1] get two seeds, and so does
DeltaProduct on Z3. Prints a table of predicted and measured horizons. Each model adds a line of
JSON to --log, and its run is saved beside it; models that are in the log are skipped.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks import harden
from statetrack.diagnosis.horizon import MAX_HORIZON, measure_horizon, predict_horizon
from statetrack.layers import GatedDeltaNetConfig, MambaConfig, MixerConfig
from statetrack.recipes import presets
from statetrack.tasks import make_task
from statetrack.training import RunConfig, train

TASKS = ("parity", "S5_only_swaps", "Z3")
MIXERS = ("delta_net", "mamba", "gated_delta_net")
ONE_LAYER = [
    *(("parity", mixer) for mixer in MIXERS),
    ("S5_only_swaps", "delta_net"),
    ("S5_only_swaps", "gated_delta_net"),
    ("Z3", "delta_product"),
]
LENGTHS = (256, 1024, 4096)  # up to which accuracy is measured, until it is below 0.99
SAMPLES = 1024


@dataclass(frozen=True)
class Case:
    """One model to train."""

    task: str
    mixer: str
    allow_neg_eigval: bool
    seed: int

    @property
    def folder(self) -> str:
        """The name of its run."""
        bounds = "neg" if self.allow_neg_eigval else "pos"
        return f"{self.task}-{self.mixer}-{bounds}-{self.seed}"

    @property
    def config(self) -> RunConfig:
        """The configuration of its training run."""
        if self.mixer == "delta_product":
            return harden.config("Z3, DeltaProduct", self.seed)
        if self.task == "parity":
            return self._with_mixer(harden.config("parity, DeltaNet", self.seed))
        run = presets.demo_swaps(allow_neg_eigval=True, seed=self.seed)
        layers = 1 if (self.task, self.mixer) in ONE_LAYER else 2
        task = make_task(self.task)
        model = replace(run.model, vocab_size=len(task.vocab), num_layers=layers)
        training = run.training
        if self.task == "Z3":  # with sequences of length 32 alone hardly any seed learns it
            training = replace(training, min_length=3)
        return self._with_mixer(replace(run, task=task, model=model, training=training))

    def _with_mixer(self, run: RunConfig) -> RunConfig:
        """The run with this mixer and range instead of DeltaNet's."""
        allow = self.allow_neg_eigval
        if self.mixer == "mamba" and self.task == "parity":
            return presets.demo_parity("mamba", allow_neg_eigval=allow, seed=self.seed)
        mixer: MixerConfig = replace(run.model.mixers[0], allow_neg_eigval=allow)
        if self.mixer == "mamba":
            mixer = MambaConfig(allow_neg_eigval=allow, conv_size=0)
        elif self.mixer == "gated_delta_net":
            heads = 2 if self.task == "parity" else 4
            mixer = GatedDeltaNetConfig(allow_neg_eigval=allow, conv_size=0, num_heads=heads)
        return replace(run, model=replace(run.model, mixer=mixer))


def cases(seeds: int) -> list[Case]:
    """Every model, with seeds from `seeds` on."""
    products = list(itertools.product(TASKS, MIXERS))
    return [
        *(Case(*product, allow, seeds) for allow in (True, False) for product in products),
        Case("Z3", "delta_product", True, seeds),
        *(Case(*product, True, seeds + 1) for product in ONE_LAYER),
    ]


def measure(case: Case, folder: Path) -> dict[str, Any]:
    """Train a model, predict its horizon and measure it."""
    config = case.config
    model = train(config, folder, resume=folder.exists()).model()
    prediction = predict_horizon(model, config)
    for length in LENGTHS:
        found = measure_horizon(model, config, length, SAMPLES)
        if found.horizon != length:
            break
    return {
        **asdict(case),
        "title": config.model.title,
        "layers": config.model.num_layers,
        "trained": config.training.max_length,
        "learned": prediction.learned,
        "predicted": round(prediction.horizon),
        "measured": found.horizon or 0,
    }


def main(*, seeds: int = 8000, log: Path = Path("runs/horizons/log.jsonl")) -> None:
    """Measure every model of seeds `seeds` and `seeds` + 1 and print the table."""
    torch.set_num_threads(1)
    log.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    known = {(row["task"], row["mixer"], row["allow_neg_eigval"], row["seed"]) for row in rows}
    for case in cases(seeds):
        if tuple(asdict(case).values()) in known:
            continue
        rows.append(measure(case, log.parent / case.folder))
        with log.open("a") as file:
            file.write(json.dumps(rows[-1]) + "\n")
    report(rows)


def agrees(row: dict[str, Any]) -> bool:
    """Whether the prediction is within a factor of 2; past the longest evaluation both must be."""
    predicted, measured = max(1, row["predicted"]), max(1, row["measured"])
    if measured == LENGTHS[-1]:
        return bool(predicted >= measured)
    return bool(measured / 2 <= predicted <= 2 * measured)


def report(rows: list[dict[str, Any]]) -> None:
    """Print the table and the counts."""
    print("| task | model | layers | seed | trained to | predicted | `eval` | ratio | within 2 |")
    print("|---" * 9 + "|")
    for row in rows:
        past = row["measured"] == LENGTHS[-1]
        measured = f"{'over ' if past else ''}{row['measured']:,}"
        predicted = f"{'over ' if row['predicted'] == MAX_HORIZON else ''}{row['predicted']:,}"
        ratio = "-" if past else f"{max(1, row['predicted']) / max(1, row['measured']):.2f}"
        within = "yes" if agrees(row) else "no"
        cells = [row["task"], row["title"], row["layers"], row["seed"], row["trained"]]
        print(f"| {' | '.join(map(str, [*cells, predicted, measured, ratio, within]))} |")
    for what, some in (
        ("All models", rows),
        (
            "Horizon within the training lengths, where it is read off",
            [r for r in rows if not r["learned"]],
        ),
        ("Horizon beyond them, extrapolated", [r for r in rows if r["learned"]]),
    ):
        print(f"\n{what}: {sum(map(agrees, some))} of {len(some)} within a factor of 2.")
