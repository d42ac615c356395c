"""How often hardening makes a trained model exact.

    python -m benchmarks harden --seeds 6000 --log runs/harden.jsonl

Trains fresh seeds of sixteen models on short sequences: parity with a plain DeltaNet (sigmoid beta,
none of the measures of docs/length-generalisation.md, 600 steps, since with the demo's 300 one in
four does not learn parity at all), parity with the demo's Mamba, the demo's S5 swaps, the same with
Gated DeltaNet, S3 with Gated DeltaProduct and Z3 with DeltaProduct (lengths 3-32, 800 steps); S5
swaps with DeltaNet and parity with DeltaNet, Mamba (1,000 steps: it learns more slowly) and GLA
(600) with convolutions of width 4; and six of these with two layers. Hardens each, measures both at
long lengths, and prints markdown. One row of JSON per finished model goes to --log, the trained
runs beside it; what is there already is not done again.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from statetrack.hardening import harden
from statetrack.hardening.runs import compare, compare_automata, validation_batch
from statetrack.layers import (
    DeltaProductConfig,
    GatedDeltaNetConfig,
    GatedDeltaProductConfig,
    GLAConfig,
)
from statetrack.recipes import presets
from statetrack.tasks import make_task
from statetrack.training import RunConfig, train

SAMPLES = {500: 256, 10_000: 16, 100_000: 4}  # sequences by length
TWO = ", two layers"
RUNS = {
    "S5 swaps, DeltaNet": 5,
    "parity, DeltaNet": 8,
    "parity, Mamba": 8,
    "S5 swaps, Gated DeltaNet": 2,
    "S3, Gated DeltaProduct": 3,
    "Z3, DeltaProduct": 3,
    "S5 swaps, DeltaNet with convolution": 2,
    "parity, DeltaNet with convolution": 4,
    "parity, Mamba with convolution": 4,
    "parity, GLA with convolution": 3,
    "parity, DeltaNet, two layers": 4,
    "parity, Mamba, two layers": 4,
    "S5 swaps, DeltaNet, two layers": 3,
    "S5 swaps, Gated DeltaNet, two layers": 2,
    "parity, DeltaNet with convolution, two layers": 3,
    "parity, Mamba with convolution, two layers": 3,
}


def config(name: str, seed: int) -> RunConfig:
    """The run of one of RUNS with a seed."""
    if name.endswith(TWO):
        run = config(name.removesuffix(TWO), seed)
        return replace(run, model=replace(run.model, num_layers=2))
    if name == "S5 swaps, DeltaNet":
        return presets.demo_swaps(allow_neg_eigval=True, seed=seed)
    if name == "parity, Mamba":
        return presets.demo_parity("mamba", allow_neg_eigval=True, seed=seed)
    if name == "S5 swaps, Gated DeltaNet":
        run = presets.demo_swaps(allow_neg_eigval=True, seed=seed)
        gated = GatedDeltaNetConfig(allow_neg_eigval=True, conv_size=0)
        return replace(run, model=replace(run.model, mixer=gated))
    if name in ("S3, Gated DeltaProduct", "Z3, DeltaProduct"):
        run = presets.demo_swaps(allow_neg_eigval=True, seed=seed)
        task = make_task(name[:2])
        product = DeltaProductConfig if name == "Z3, DeltaProduct" else GatedDeltaProductConfig
        mixer = product(allow_neg_eigval=True, num_heads=4, conv_size=0)
        model = replace(run.model, vocab_size=len(task.vocab), mixer=mixer)
        # with sequences of length 32 alone hardly any seed learns these
        training = replace(run.training, min_length=3, steps=800)
        return replace(run, task=task, model=model, training=training)
    if name == "parity, Mamba with convolution":
        run = config("parity, Mamba", seed)
        return replace(_convolved(run), training=replace(run.training, steps=1000))
    if name in ("S5 swaps, DeltaNet with convolution", "parity, DeltaNet with convolution"):
        return _convolved(config(name.removesuffix(" with convolution"), seed))
    robust = presets.demo_parity("delta_net", allow_neg_eigval=True, seed=seed)
    if name == "parity, GLA with convolution":
        gla = GLAConfig(allow_neg_eigval=True, num_heads=2, conv_size=4)
        training = replace(robust.training, saturation=0.0, steps=600)
        return replace(robust, model=replace(robust.model, mixer=gla), training=training)
    plain = replace(robust.model.mixers[0], beta_stretch=0.0, output_norm_eps=1e-6)  # type: ignore[call-arg]
    return replace(
        robust,
        model=replace(robust.model, mixer=plain),
        training=replace(robust.training, saturation=0.0, steps=600),
    )


def _convolved(run: RunConfig) -> RunConfig:
    mixer = replace(run.model.mixers[0], conv_size=4)  # type: ignore[call-arg]
    return replace(run, model=replace(run.model, mixer=mixer))


def measure(name: str, seed: int, runs: Path) -> dict[str, Any]:
    """Train, harden and evaluate one model, whose run is kept in the folder `runs`."""
    wanted = config(name, seed)
    folder = runs / f"{name.replace(', ', '-').replace(' ', '_')}-{seed}"
    model = train(wanted, folder, resume=folder.exists()).model()
    result = harden(model, validation_batch(wanted))
    accuracy = [
        row
        for length, samples in SAMPLES.items()
        for row in compare(wanted, model, result.model, [length], samples)
    ]
    automata = compare_automata(result, wanted)
    automaton = "none"
    if automata.reading:
        whose = "the task's" if automata.is_the_tasks else "another"
        automaton = f"{whose}, {automata.reading.dfa.states} states"
    return {
        "name": name,
        "seed": seed,
        "before": [row.before for row in accuracy],
        "after": [row.after for row in accuracy],
        "automaton": automaton,
        **result.to_dict(),
    }


def main(*, seeds: int = 6000, log: Path = Path("runs/harden.jsonl")) -> None:
    """Measure every model of seeds `seeds`, `seeds` + 1, ... and print the tables."""
    torch.set_num_threads(1)
    log.parent.mkdir(parents=True, exist_ok=True)
    rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
    known = {(row["name"], row["seed"]) for row in rows}
    for name, count in RUNS.items():
        for seed in range(seeds, seeds + count):
            if (name, seed) in known:
                continue
            rows.append(measure(name, seed, log.parent))
            with log.open("a") as file:
                file.write(json.dumps(rows[-1]) + "\n")
            print(name, seed, rows[-1]["before"], rows[-1]["after"], file=sys.stderr, flush=True)
    for name in RUNS:
        report(name, sorted((r for r in rows if r["name"] == name), key=lambda r: r["seed"]))


def report(name: str, rows: list[dict[str, Any]]) -> None:
    """A table of one kind of model."""
    lengths = list(SAMPLES)
    heads = [f"{length:,} {when}" for length in lengths for when in ("before", "after")]
    print(f"\n## {name}\n\n| seed | loss before | after | {' | '.join(heads)} | automaton |")
    print("|---" * (len(heads) + 4) + "|")
    for row in rows:
        told = [v for pair in zip(row["before"], row["after"], strict=True) for v in pair]
        losses = f"{row['loss']['before']:.1e} | {row['loss']['after']:.1e}"
        shares = " | ".join(f"{v:.3f}" for v in told)
        print(f"| {row['seed']} | {losses} | {shares} | {row['automaton']} |")
    right = [sum(row["after"][i] == 1 for row in rows) for i in range(len(lengths))]
    good = [sum(row["before"][i] == 1 for row in rows) for i in range(len(lengths))]
    counts = ", ".join(
        f"{a} of {len(rows)} at {length:,} (before: {b})"
        for length, a, b in zip(lengths, right, good, strict=True)
    )
    print(f"\nEvery position of every sequence right: {counts}.")
