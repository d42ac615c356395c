"""Pairs of runs that differ in the range alone: their configurations and their report."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from statetrack.errors import UserError
from statetrack.lm.data import TokenData
from statetrack.lm.pretraining.checkpoint import PretrainingRun
from statetrack.lm.pretraining.config import PretrainingConfig
from statetrack.report.document import Cell, Document, Figure, Series, Table
from statetrack.report.runs import versions
from statetrack.report.spread import Spread

RANGES = {"narrow": False, "wide": True}  # the folders of a pair, and the switch


def pair_configs(config: PretrainingConfig) -> dict[str, PretrainingConfig]:
    """Return the configurations of both ranges, which differ in nothing else, by folder.

    Raises:
        UserError: no layer of the model has the switch.
    """
    if all(mixer.no_switch for mixer in config.model.pattern):
        raise UserError(f"{config.model.title} has one range only: no layer has allow_neg_eigval")
    models = {name: config.model.with_range(switch) for name, switch in RANGES.items()}
    return {name: replace(config, model=model) for name, model in models.items()}


class Pair(NamedTuple):
    """Two finished runs that differ in the range alone."""

    narrow: PretrainingRun
    wide: PretrainingRun

    @classmethod
    def open(cls, folder: Path) -> Pair:
        """Open the folder of `lm train --pair`.

        Raises:
            UserError: one of its runs is missing or not finished, or they differ otherwise.
        """
        pair = cls(*(PretrainingRun.open(Path(folder) / name) for name in RANGES))
        for run in pair:
            if not run.finished:
                raise UserError(f"{run.folder} is not finished: run the same command again")
        configs = pair_configs(pair.narrow.config)
        for run, config in zip(pair, configs.values(), strict=True):
            run.check_same(config)
        return pair

    @property
    def difference(self) -> float:
        """Validation loss of [-1, 1] minus that of [0, 1], in nats per token."""
        return final_loss(self.wide) - final_loss(self.narrow)

    @property
    def same_start(self) -> bool:
        """Whether both had the same initial weights."""
        first = [run.metrics()[0].get("weights_sha256") for run in self]
        return first[0] is not None and first[0] == first[1]


def final_loss(run: PretrainingRun) -> float:
    """Return the last validation loss of a finished run."""
    return float(_rows(run, "validation")[-1]["loss"])


def pair_document(folders: Sequence[Path]) -> Document:
    """Return the report of one or more pairs of the same models, e.g. with several seeds.

    Args:
        folders: what `lm train --pair` wrote.

    Returns:
        Learning curves of all runs in one figure, their last losses, and the differences.

    Raises:
        UserError: a pair is not finished.
    """
    pairs = [Pair.open(folder) for folder in folders]
    runs = [run for pair in pairs for run in pair]
    seconds = sum(run.metrics()[-1]["cpu_seconds"] for run in runs)
    facts: dict[str, Any] = {"report made with": versions(), "CPU seconds of training": seconds}
    if devices := list(dict.fromkeys(device for run in runs for device in run.devices)):
        facts["trained on"] = devices
    return Document(
        "language-model-pairs",
        "Language models in both ranges",
        [_verdict(pairs)],
        [_runs_table(runs), _differences_table(pairs)],
        [
            _figure("Validation loss", runs, "validation"),
            _figure("Training loss", runs, "train"),
        ],
        _shared_settings(pairs),
        facts,
        {_label(run, runs): run.config.to_json() for run in runs},
    )


def _verdict(pairs: list[Pair]) -> str:
    """Say which range has the lower loss, and by how much."""
    spread = Spread(tuple(pair.difference for pair in pairs))
    narrow, wide = (run.config.model.title for run in pairs[0])
    relation = "below" if spread.mean < 0 else "above"
    tokens = pairs[0].wide.config.steps * pairs[0].wide.config.tokens_per_step
    verdict = (
        f"After {tokens:,} tokens the validation loss of {wide} is {abs(spread.mean):.4f} nats "
        f"{relation} that of {narrow}"
    )
    if spread.interval is None:
        remedy = "train pairs with other seeds before you draw a conclusion"
        return f"{verdict}. One seed does not tell how much seeds differ: {remedy}."
    low, high = spread.interval
    return f"{verdict} ({len(pairs)} seeds, 95 % interval {low:+.4f} to {high:+.4f})."


def _runs_table(runs: list[PretrainingRun]) -> Table:
    rows: list[list[Cell]] = []
    for run in runs:
        loss, metrics = final_loss(run), run.metrics()
        rows.append(
            [
                run.config.model.title,
                run.config.seed,
                metrics[0].get("parameters"),
                run.config.steps * run.config.tokens_per_step,
                f"{_rows(run, 'train')[-1]['loss']:.4f}",
                f"{loss:.4f}",
                f"{math.exp(loss):.3f}",
                round(metrics[-1]["cpu_seconds"]),
            ]
        )
    columns = ["model", "seed", "parameters", "tokens", "training loss"]
    columns += ["validation loss", "perplexity", "CPU seconds"]
    note = "Losses are in nats per token; the training loss is that of the last row of metrics."
    return Table("Runs", columns, rows, note, name="runs")


def _differences_table(pairs: list[Pair]) -> Table:
    rows: list[list[Cell]] = [
        [pair.wide.config.seed, f"{pair.difference:+.4f}", "yes" if pair.same_start else "no"]
        for pair in pairs
    ]
    columns = ["seed", "difference in nats", "same initial weights"]
    return Table("Validation loss of [-1,1] minus [0,1]", columns, rows, name="differences")


def _figure(title: str, runs: list[PretrainingRun], kind: str) -> Figure:
    lines = []
    for run in runs:
        rows, title_of = _rows(run, kind), run.config.model.title
        tokens = [row["step"] * run.config.tokens_per_step for row in rows]
        losses = [row["loss"] for row in rows]
        lines.append(Series(_label(run, runs), tokens, losses, group=title_of))
    return Figure(title, "tokens", "nats per token", lines, name=title.lower().replace(" ", "-"))


def _label(run: PretrainingRun, runs: list[PretrainingRun]) -> str:
    """Name a run by its model, and by its seed if there are several."""
    several = len({other.config.seed for other in runs}) > 1
    return (
        f"{run.config.model.title}, seed {run.config.seed}" if several else run.config.model.title
    )


def _shared_settings(pairs: list[Pair]) -> list[str]:
    """State the data, the order and the weight decay that both runs of a pair share."""
    config = pairs[0].narrow.config
    bos = TokenData.open(config.data_folder).description.bos
    return [
        "Both runs of a pair read the same windows in the same order: data "
        f"{config.data_fingerprint[:12]}, {config.batch_size} sequences of {config.context_length} "
        "tokens per step, ordered by the seed.",
        f"Documents {'begin with BOS' if bos else 'have no BOS before them'} and end with EOS.",
        "Weight decay does not act on embeddings, biases, norms, A_log, D and dt_bias.",
    ]


def _rows(run: PretrainingRun, kind: str) -> list[dict[str, Any]]:
    return [row for row in run.metrics() if row["kind"] == kind]
