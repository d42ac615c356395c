"""A job of a sweep that pretrains a language model and measures it on text."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tokenizers import Tokenizer

from statetrack.config import changed, check_types, option, to_dict
from statetrack.files import LockedError
from statetrack.lm.audit import audit
from statetrack.lm.data.build import build_data
from statetrack.lm.data.config import DataConfig
from statetrack.lm.data.shards import TokenData
from statetrack.lm.evaluation_data import (
    check_path,
    check_tokenizer,
    distinct_names,
    open_all,
    open_data,
)
from statetrack.lm.load import LanguageModel, load_language_model
from statetrack.lm.perplexity import make_reader, measure_perplexity
from statetrack.lm.perplexity_report import figure_positions
from statetrack.lm.pretraining.config import PRETRAINING_SCHEMA, PretrainingConfig
from statetrack.lm.pretraining.loop import pretrain
from statetrack.models import count_parameters
from statetrack.sweep.job import JOB_SCHEMA, SweepJob
from statetrack.sweep.work import Stopwatch
from statetrack.training import Callback
from statetrack.training.trackers import Tracker

if TYPE_CHECKING:  # lm-eval takes seconds to import
    from statetrack.lm.harness.selection import Selection


@dataclass(frozen=True)
class PretrainingJob(SweepJob):
    """One pretraining run, and the measurements of its model: perplexity, audit, harness.

    The data folder is made in the sweep's folder, once for all jobs with the same data.
    """

    schemas = (JOB_SCHEMA, PRETRAINING_SCHEMA)

    name: str = option("", "what people read; need not be unique")
    config: PretrainingConfig = option(PretrainingConfig(), "the run, without its data")  # noqa: RUF009
    data: DataConfig = option(DataConfig(), "the text that it reads")  # noqa: RUF009
    texts: tuple[str, ...] = option((), "more text files, or data folders, for perplexity")
    max_length: int = option(4096, "greatest position of perplexity", low=2)
    chunks: int = option(16, "sequences of that length, per data set", low=1)
    audit_tokens: int = option(16384, "tokens of the audit", low=1)
    harness: tuple[str, ...] = option(
        (), "folders of `lm tasks`, all of whose tasks are scored, and of `lm fetch`: the paper's"
    )
    harness_limit: int | None = option(None, "documents per task, at most; None: all", low=1)
    seconds: float = option(60.0, "expected CPU seconds, for the plan", low=0)

    def __post_init__(self) -> None:
        check_types(self)

    @property
    def seed(self) -> int:
        return self.config.seed

    @property
    def device(self) -> str:
        return self.config.device

    def on(self, device: str) -> Self:
        return replace(self, config=replace(self.config, device=device))

    def to_json(self) -> dict[str, Any]:
        return {"schema": JOB_SCHEMA, **to_dict(self), "config": self.config.to_json()}

    def description(self) -> dict[str, Any]:
        model = self.config.model
        return {
            "task": "language modelling",
            "title": model.title,
            "mixer": model.mixer_names,
            "num_layers": model.num_layers,
            "allow_neg_eigval": model.pattern[0].allow_neg_eigval,
            "lr": self.config.lr,
            "seed": self.seed,
        }

    def measure(
        self, folder: Path, report: Callable[[Any], None], callbacks: Sequence[Callback]
    ) -> dict[str, Any]:
        texts = [Path(text) for text in self.texts]
        folders = [data for text in texts if (data := check_path(text)) is not None]
        distinct_names(texts)
        selection = select_all(self.harness)
        place = folder.parents[1] / "data" / data_name(self.data)
        shared_data(self.data, place)
        tokens = TokenData.open(place)
        tokenizer = Tokenizer.from_file(str(tokens.tokenizer_file))
        for data in folders:  # before the hours of training
            check_tokenizer(data, tokenizer, bos=tokens.description.bos, name=self.name)
        config = replace(
            self.config,
            model=replace(self.config.model, vocab_size=tokens.vocab_size),
            data_folder=str(place),
            data_fingerprint=tokens.fingerprint,
        )
        trackers = [callback for callback in callbacks if isinstance(callback, Tracker)]
        run = pretrain(config, folder / "run", trackers=trackers, on_progress=report)
        stopwatch = Stopwatch()  # of the measurements: the metrics have the time of training
        rows = run.metrics()
        steps = [row for row in rows if row["kind"] == "train"]
        validation = [row for row in rows if row["kind"] == "validation"]
        language = load_language_model(run.folder, device=config.device)
        needed = self.chunks * self.max_length + 1
        sets = [open_data(place, language, needed)._replace(name="held-out")]
        if texts:
            sets += open_all(texts, language, needed)
        reader = make_reader(language)
        doubled = {config.context_length << i for i in range(self.max_length.bit_length())}
        positions = sorted({*figure_positions(self.max_length), *doubled})
        positions = [position for position in positions if position <= self.max_length]
        perplexity = [
            measure_perplexity(
                language, data, max_length=self.max_length, chunks=self.chunks, reader=reader
            ).to_dict(positions)
            for data in sets
        ]
        audited = audit(language, sets[0], tokens=self.audit_tokens).to_dict()
        return {
            "parameters": count_parameters(config.model),
            "steps": config.steps,
            "train_loss": steps[-1]["loss"],
            "learning": {name: [row[name] for row in steps] for name in ("step", "loss")},
            "validation": [{name: row[name] for name in ("step", "loss")} for row in validation],
            "tokens": config.steps * config.tokens_per_step,
            "data_fingerprint": tokens.fingerprint,
            "perplexity": perplexity,
            "audit": audited,
            "harness": selection and harness_scores(language, selection, self.harness_limit),
            "summary": f"validation loss {validation[-1]['loss']:.4f}",
        } | {name: round(steps[-1][name] + spent, 2) for name, spent in stopwatch.elapsed().items()}


def select_all(folders: Sequence[str]) -> Selection | None:
    """Select the tasks of folders of `lm tasks` and `lm fetch`; None if there are no folders."""
    if not folders:
        return None
    from statetrack.lm.harness.folder import read_index
    from statetrack.lm.harness.selection import select_tasks

    paths = [Path(folder) for folder in folders]
    kinds = dict.fromkeys(read_index(path).kind for path in paths)
    return select_tasks(["pack" if kind == "pack" else "paper" for kind in kinds], paths)


def harness_scores(
    language: LanguageModel, selection: Selection, limit: int | None
) -> dict[str, Any]:
    """Return the main metrics of every task, the shortened requests and the missing tasks."""
    from statetrack.lm.harness.evaluation import evaluate_model

    found = evaluate_model(language, selection, limit)
    scores = [
        {**score._asdict(), "above_chance": score.above_chance}
        for score in found.scores
        if score.main
    ]
    return {"scores": scores, "shortened": found.shortened, "missing": list(selection.missing)}


def data_name(config: DataConfig) -> str:
    """Return the name of the data folder of a configuration: equal ones share a folder."""
    text = json.dumps(changed(config), sort_keys=True)
    return f"text-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def shared_data(config: DataConfig, folder: Path) -> None:
    """Make a data folder, or wait until another process of the sweep has made it."""
    while True:
        try:
            build_data(config, folder)
            return
        except LockedError:
            time.sleep(1)
