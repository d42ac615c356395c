"""How the demo's presets were chosen and confirmed.

    python -m benchmarks demo-choose 100-109
    python -m benchmarks demo-confirm 1000-1009

`choose` trains candidates for the demo's models on some training seeds and scores them on
validation data of lengths (parity: 257-512, swaps: 192) that the demo does not report. `confirm`
runs the demo itself with other seeds and reports what it shows. Both print markdown, append one
row of JSON per finished run to --log, and skip what is in the log already.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from statetrack.recipes import presets
from statetrack.sweep.pool import Report, run_all
from statetrack.training import RunConfig, evaluate, train

# not the lengths that the demo reports
VALIDATION = {"parity": (257, 512), "S5_only_swaps": (192, 192)}


def candidates(seed: int) -> dict[str, RunConfig]:
    """Return the candidates by name; of each mixer the demo's own comes first."""
    mamba = presets.demo_parity("mamba", allow_neg_eigval=True, seed=seed)
    delta = presets.demo_parity("delta_net", allow_neg_eigval=True, seed=seed)
    swaps = presets.demo_swaps(allow_neg_eigval=True, seed=seed)
    robust = _training(_mixer(swaps, beta_stretch=0.1, output_norm_eps=1e-3), saturation=0.03)
    return {
        "Mamba (demo)": mamba,
        "Mamba, no final norm": _model(mamba, final_norm=False),
        "Mamba, no final norm, dt 0.01-1": _model(
            _mixer(mamba, dt_min=0.01, dt_max=1.0), final_norm=False
        ),
        "Mamba, 300 steps": _training(mamba, steps=300),
        "DeltaNet (demo)": delta,
        "DeltaNet, plain": _training(
            _mixer(delta, beta_stretch=0.0, output_norm_eps=1e-6), saturation=0.0
        ),
        "DeltaNet, no stretch": _mixer(delta, beta_stretch=0.0),
        "DeltaNet, no penalty": _training(delta, saturation=0.0),
        "DeltaNet, output-norm eps 1e-6": _mixer(delta, output_norm_eps=1e-6),
        "Mamba [0,1] (demo)": _mixer(mamba, allow_neg_eigval=False),
        "DeltaNet [0,1] (demo)": _mixer(delta, allow_neg_eigval=False),
        "swaps, plain, 400 steps": _training(swaps, steps=400),
        "swaps, plain, 600 steps": _training(swaps, steps=600),
        "swaps, stretch and penalty, 400 steps": _training(robust, steps=400),
        "swaps, stretch and penalty, 600 steps": _training(robust, steps=600),
    }


def _model(config: RunConfig, **changes: Any) -> RunConfig:
    return replace(config, model=replace(config.model, **changes))


def _mixer(config: RunConfig, **changes: Any) -> RunConfig:
    return _model(config, mixer=replace(config.model.mixers[0], **changes))


def _training(config: RunConfig, **changes: Any) -> RunConfig:
    return replace(config, training=replace(config.training, **changes))


def work(job: tuple[str, RunConfig], report: Report) -> dict[str, Any]:
    """Train one candidate and score it on the validation lengths."""
    name, config = job
    with tempfile.TemporaryDirectory() as folder:
        model = train(config, Path(folder) / "run").model()
    seed = config.training.data_seed
    lengths = VALIDATION[config.task.name]
    result = evaluate(model, config.task, lengths, samples=512, split="validation", data_seed=seed)
    score = result.scaled if result.metric == "answer" else result.score
    return {"name": name, "seed": seed, "score": score}


def choose(seeds: str = "100-111", *, log: Path = Path("runs/choose.jsonl")) -> None:
    """Score every candidate on training seeds, e.g. 100-111."""
    rows = _read(log)
    known = {(row["name"], row["seed"]) for row in rows}
    jobs = [
        (name, config)
        for seed in _range(seeds)
        for name, config in candidates(seed).items()
        if (name, seed) not in known
    ]
    for event in run_all(work, jobs):
        if event.kind == "done":
            rows.append(event.value)
            _append(log, event.value)
            print(len(rows), event.value, file=sys.stderr, flush=True)
    print("| candidate | runs | score >= 0.99 | worst | scores |\n|---|---|---|---|---|")
    for name in candidates(0):
        scores = [row["score"] for row in rows if row["name"] == name]
        good = sum(score >= 0.99 for score in scores)
        listed = " ".join(f"{score:.3f}" for score in scores)
        print(f"| {name} | {len(scores)} | {good} | {min(scores):.3f} | {listed} |")


def confirm(seeds: str = "1000-1009", *, log: Path = Path("runs/confirm.jsonl")) -> None:
    """Run the demo with these values of --seed and tell what it shows."""
    rows = _read(log)
    known = {row["seed"] for row in rows}
    for seed in _range(seeds):
        if seed in known:
            continue
        with tempfile.TemporaryDirectory() as folder:
            command = ["demo", "--seed", str(seed), "--out", f"{folder}/demo", "--json", "-"]
            done = subprocess.run(
                [sys.executable, "-m", "statetrack", *command], check=True, stdout=-1
            )
        (document,) = json.loads(done.stdout)["documents"].values()
        tables = {table["name"]: table["rows"] for table in document["tables"]}
        row = {"seed": seed, "cpu_seconds": document["facts"]["CPU seconds"], **tables}
        rows.append(row)
        _append(log, row)
    parity = [f"{row[0]} {which}" for row in rows[0]["parity"] for which in ("best", "median")]
    swaps = ["swaps [0,1] at 128", "swaps [-1,1] at 128", "at 256"]
    columns = ["--seed", "CPU seconds", *parity, *swaps, "no mistake at 100,000, hardened"]
    print("| " + " | ".join(columns) + " |")
    print("|---" * len(columns) + "|")
    for row in rows:
        at = {model: values for model, *values in row["swaps"]}
        cells = [score for _, best, median, *_ in row["parity"] for score in (best, median)]
        cells += [at["DeltaNet [0,1]"][2], *at["DeltaNet [-1,1]"][2:4]]
        listed = " | ".join(f"{cell:.3f}" for cell in cells)
        exact = ", ".join(f"{task} {who}: {count}" for task, who, *_, count in row["long"] if count)
        print(f"| {row['seed']} | {row['cpu_seconds']:.0f} | {listed} | {exact} |")


def _range(text: str) -> range:
    low, _, high = text.partition("-")
    return range(int(low), int(high or low) + 1)


def _read(log: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []


def _append(log: Path, row: dict[str, Any]) -> None:
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        file.write(json.dumps(row) + "\n")
