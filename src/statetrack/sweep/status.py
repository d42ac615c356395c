"""Read the status of a sweep's jobs from its folder."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from statetrack.errors import UserError
from statetrack.files import read_json, writer
from statetrack.sweep.engine import JOB
from statetrack.sweep.work import RESULT, read_result
from statetrack.training.run_folder import RunFolder

STATUSES = ("running", "failed", "waiting", "done")


@dataclass(frozen=True)
class JobStatus:
    """The status and progress of a job."""

    name: str
    folder: str
    status: str  # one of STATUSES
    step: int  # of training
    steps: int
    loss: float | None
    accuracy: float | None
    text: str  # the scores, the error or the process

    def to_json(self) -> dict[str, Any]:
        """Return plain values."""
        return asdict(self)


def read_status(folder: Path) -> list[JobStatus]:
    """Return the status of every job of a sweep, running ones first."""
    if not (folder / "jobs").is_dir():
        raise UserError(f"{folder} is not a sweep: it has no folder jobs")
    found = [_job_status(path.parent) for path in sorted((folder / "jobs").glob(f"*/{JOB}"))]
    return sorted(found, key=lambda job: STATUSES.index(job.status))


def _job_status(folder: Path) -> JobStatus:
    job = read_json(folder / JOB)
    try:
        config = job["config"]
        name, steps = job["name"], config.get("training", config)["steps"]
    except (KeyError, TypeError):
        raise UserError(f"{folder / JOB} is not a job") from None
    if (folder / RESULT).exists():
        result = read_result(folder)
        last = (result["steps"] or 0, steps, result["train_loss"], result["train_accuracy"])
        return JobStatus(name, folder.name, result["status"], *last, result_text(result))
    step, loss, accuracy = _progress(folder / "run")
    process = writer(folder)
    status = "waiting" if process is None else "running"
    text = process or ("interrupted" if step else "")
    return JobStatus(name, folder.name, status, step, steps, loss, accuracy, text)


def _progress(run: Path) -> tuple[int, float | None, float | None]:
    """Return step, loss and accuracy of the last row of training."""
    rows = [row for row in RunFolder(run, None).metrics() if row.get("kind") == "train"]
    last = rows[-1] if rows else {"step": 0}
    return last["step"], last.get("loss"), last.get("accuracy")


def result_text(result: dict[str, Any]) -> str:
    """Return the scores of a job, or the error that it ended with, in one line."""
    if result["status"] == "failed":
        return str(result["error"]).strip().splitlines()[-1]
    if "summary" in result:
        return str(result["summary"])
    scores = _scores(result["trained"])
    if result["harden"] is not None:
        hardened = result["hardened"]
        scores += ["not hardened"] if hardened is None else ["hardened", *_scores(hardened)]
    stopped = [f"stopped: {result['stopped']}"] if result["stopped"] else []
    return ", ".join([*scores, *stopped]) or "done"


def _scores(measured: dict[str, Any]) -> list[str]:
    """Return the score at each of the lengths, or at the first one if they are many."""
    found = [f"{e['score']:.3f} at {text}" for text, e in measured["evaluations"].items()]
    return found if len(found) <= 3 else found[:1]
