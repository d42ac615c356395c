"""The page of `language-models`: losses, paired differences, perplexity, audit, harness."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import exp, log
from typing import TYPE_CHECKING, Any

import numpy as np

from statetrack.lm.harness.published import ERRORS
from statetrack.lm.transition_kinds import KEEPS, KINDS, REFLECTS
from statetrack.recipes.recipe import Results, Settings, facts
from statetrack.recipes.selection import has_failed
from statetrack.report.document import Cell, Document, Figure, Series, Table
from statetrack.report.spread import Spread

if TYPE_CHECKING:
    from statetrack.lm.pretraining_job import PretrainingJob

Found = Mapping[str, Any]  # a result
NATS = ".4f"


def make_document(
    title: str,
    settings: Settings,
    jobs: Sequence[PretrainingJob],
    results: Results,
    notes: list[str],
) -> Document:
    """Make the page from the runs that are done.

    Args:
        title: of the page.
        settings: of the reproduction.
        jobs: all runs.
        results: of the runs that are done.
        notes: what differs from the paper.
    """
    ended = results.of(jobs)
    done = [r for r in ended if not has_failed(r)]
    failed = [r["name"].rpartition(" seed ")[0] for r in ended if has_failed(r)]
    groups: dict[str, list[Found]] = {}
    for result in done:
        groups.setdefault(result["name"].rpartition(" seed ")[0], []).append(result)
    differences = _differences(groups, failed, jobs[0].config.context_length)
    return Document(
        name="language-models",
        title=title,
        summary=_summary(differences) or [_no_pairs(failed)],
        tables=[
            _losses(groups, failed),
            _difference_table(differences),
            _audit(groups),
            *_harness(groups),
        ]
        if done
        else [],
        figures=[_learning(groups), *_positions(groups, jobs)] if done else [],
        notes=notes,
        facts=facts("language-models", settings, jobs, results),
        configs={job.name: job.config.to_json() for job in jobs},
    )


def _no_pairs(failed: Sequence[str]) -> str:
    return (
        f"No pair of runs is done: {len(failed)} failed."
        if failed
        else ("No pair of runs is done yet.")
    )


def _last(result: Found) -> float:
    return float(result["validation"][-1]["loss"])


def _losses(groups: Mapping[str, Sequence[Found]], failed: Sequence[str]) -> Table:
    rows: list[list[Cell]] = []
    for title, done in groups.items():
        spread = Spread(tuple(map(_last, done)))
        low, high = spread.interval or (None, None)
        mean = f"{spread.mean:{NATS}}"
        ends = None if low is None else f"{low:{NATS}} to {high:{NATS}}"
        minutes = sum(r["cpu_seconds"] for r in done) / 60 / len(done)
        size = f"{done[0]['parameters'] / 1e6:.2f}"
        tokens = f"{done[0]['tokens'] / 1e6:.1f}"
        seeds = _count(len(done), failed.count(title))
        row: list[Cell] = [title, size, tokens, seeds, mean, ends, f"{exp(spread.mean):.2f}"]
        rows.append([*row, f"{minutes:.1f}"])
    heads = ["model", "million parameters", "million tokens", "seeds", "loss", "95 % interval"]
    note = "Cross-entropy of the held-out text at the training length, in nats per token."
    columns = [*heads, "perplexity", "CPU minutes a run"]
    return Table("Validation at the last step", columns, rows, note, name="losses")


def _differences(
    groups: Mapping[str, Sequence[Found]], failed: Sequence[str], trained: int
) -> dict[tuple[str, str], Spread]:
    """Return log perplexity in [-1,1] minus that in [0,1] of each pair, by mixer and measure.

    `failed` are the models of the runs that failed, of either range.
    """
    found: dict[tuple[str, str], Spread] = {}
    for title, wide in groups.items():
        narrow = {r["seed"]: r for r in groups.get(title.replace("[-1,1]", "[0,1]"), ())}
        pairs = [(r, narrow[r["seed"]]) for r in wide if r["seed"] in narrow]
        if "[-1,1]" not in title or not pairs:
            continue
        mixer = title.replace(" [-1,1]", "")
        num_failed = failed.count(title) + failed.count(title.replace("[-1,1]", "[0,1]"))
        losses = tuple(_last(a) - _last(b) for a, b in pairs)
        found[mixer, "validation"] = Spread(losses, num_failed)
        for i, curve in enumerate(pairs[0][0]["perplexity"]):
            for position in _doubled(trained, curve["positions"]):
                at = curve["positions"].index(position)
                values = tuple(_log_at(a, i, at) - _log_at(b, i, at) for a, b in pairs)
                found[mixer, f"{curve['data']}, {position:,} tokens"] = Spread(values, num_failed)
    return found


def _log_at(result: Found, data: int, at: int) -> float:
    return log(result["perplexity"][data]["running_perplexity"]["value"][at])


def _doubled(trained: int, positions: Sequence[int]) -> list[int]:
    """Return those of 1, 2, 4, ... times the training length that were measured."""
    return [trained << i for i in range(positions[-1].bit_length()) if trained << i in positions]


def _count(done: int, failed: int) -> Cell:
    return f"{done}, {failed} failed" if failed else done


def _difference_table(differences: Mapping[tuple[str, str], Spread]) -> Table:
    rows: list[list[Cell]] = []
    for (mixer, measure), spread in differences.items():
        low, high = spread.interval or (None, None)
        ends = None if low is None else f"{low:+{NATS}} to {high:+{NATS}}"
        pairs = _count(len(spread.scores), spread.failed)
        rows.append([mixer, measure, pairs, f"{spread.mean:+{NATS}}", ends])
    note = (
        "Log perplexity in [-1,1] minus that in [0,1] with the same seed, in nats: below 0, [-1,1] "
        "is better. Intervals are of the mean over pairs."
    )
    columns = ["mixer", "measured on", "pairs", "difference", "95 % interval"]
    return Table("[-1,1] minus [0,1]", columns, rows, note, name="differences")


def _summary(differences: Mapping[tuple[str, str], Spread]) -> list[str]:
    """State each difference in validation loss; claim one only if its interval excludes 0.

    None is claimed if a run of the mixer failed.
    """
    sentences = []
    for (mixer, measure), spread in differences.items():
        if measure != "validation":
            continue
        ends = spread.interval
        text = f"{spread.mean:+{NATS}} nats per token"
        if ends is None:
            failures = f", {spread.failed} failed" if spread.failed else ""
            sentences.append(
                f"{mixer}: one pair of runs{failures}, [-1,1] minus [0,1]: {text}, no interval."
            )
            continue
        text += f" ({ends[0]:+{NATS}} to {ends[1]:+{NATS}}, {len(spread.scores)} pairs)"
        claim = "no difference is claimed between the ranges"
        if spread.failed:
            claim += f", because {spread.failed} run{'s' if spread.failed > 1 else ''} failed"
        claimed = spread.claim_interval
        if claimed and (claimed[1] < 0 or claimed[0] > 0):
            claim = f"[-1,1] is {'better' if claimed[1] < 0 else 'worse'} than [0,1]"
        sentences.append(f"{mixer}, validation loss: {claim}; [-1,1] minus [0,1] is {text}.")
    return sentences


def _audit(groups: Mapping[str, Sequence[Found]]) -> Table:
    rows: list[list[Cell]] = []
    for title, done in groups.items():
        shares = [float(np.mean([r["audit"][kind] for r in done])) for kind in KINDS]
        modulus = np.mean([layer["modulus"]["0.5"] for r in done for layer in r["audit"]["layers"]])
        rows.append([title, len(done), *shares, float(modulus)])
    note = (
        "Shares of all transitions on held-out text: they reflect with a real eigenvalue below "
        f"{REFLECTS}, rotate with one that is not real, keep with all moduli above {KEEPS}, else "
        "forget. The modulus is that of the eigenvalue farthest from 1."
    )
    columns = ["model", "seeds", *KINDS, "median modulus"]
    return Table("What the transitions do", columns, rows, note, name="audit")


def _harness(groups: Mapping[str, Sequence[Found]]) -> list[Table]:
    """Average the scores of each task over seeds; a table without rows if runs differ in tasks."""
    found: list[Any] = [r.get("harness") for done in groups.values() for r in done]
    if not any(found):
        return []
    title, columns = "lm-evaluation-harness", ["task", "metric", "documents", "chance", *groups]
    differ = "Left out: the runs were not all scored on the same tasks."
    if not all(found):
        return [Table(title, columns, [], differ, name="harness")]
    named = {title: [_by_metric(r["harness"]) for r in done] for title, done in groups.items()}
    first = next(iter(named.values()))[0]
    if any(run.keys() != first.keys() for runs in named.values() for run in runs):
        return [Table(title, columns, [], differ, name="harness")]
    rows: list[list[Cell]] = []
    for key, score in first.items():
        row: list[Cell] = [*key, score["documents"], _shown(key[1], score["chance"])]
        means = (
            _mean_score(key[1], [run[key]["value"] for run in runs]) for runs in named.values()
        )
        rows.append([*row, *means])
    above: list[Cell] = ["above chance (tasks x seeds)", None, None, None]
    for runs in named.values():
        judged = [s["above_chance"] for run in runs for s in run.values() if s["chance"]]
        above.append(f"{sum(judged)} of {len(judged)}")
    note = (
        "Accuracies in per cent, and perplexities: means over seeds, ± half the 95 % interval. "
        "Chance is the accuracy of guessing, or of the most frequent answer where that is higher. "
        f"The last row counts the tasks of all seeds that are more than {ERRORS} standard errors "
        "above it."
    )
    missing = dict.fromkeys(name for run in found for name in run["missing"])
    shortened = dict.fromkeys(name for run in found for name in run["shortened"])
    note += f" Without data: {', '.join(missing)}." if missing else ""
    note += f" Some requests lost their beginning: {', '.join(shortened)}." if shortened else ""
    return [Table(title, columns, [*rows, above], note, name="harness")]


def _by_metric(run: Mapping[str, Any]) -> dict[tuple[str, str], Mapping[str, Any]]:
    return {(score["task"], score["metric"]): score for score in run["scores"]}


def _shown(metric: str, value: float | None) -> str | None:
    """Format an accuracy in per cent, or a perplexity."""
    if value is None:
        return None
    if "perplexity" not in metric:
        return f"{100 * value:.1f}"
    return f"{value:.1f}" if value < 10_000 else f"{value:.2e}"


def _mean_score(metric: str, values: Sequence[float | None]) -> str | None:
    finite = tuple(value for value in values if value is not None)
    if len(finite) < len(values):
        return "not finite"
    spread = Spread(finite)
    text = _shown(metric, spread.mean)
    if spread.interval is None:
        return text
    return f"{text} ± {_shown(metric, spread.interval[1] - spread.mean)}"


def _learning(groups: Mapping[str, Sequence[Found]]) -> Figure:
    lines = [
        _line(title, [[(row["step"], row["loss"]) for row in r["validation"]] for r in done])
        for title, done in groups.items()
    ]
    note = "Mean over seeds; bands are 95 % intervals."
    return Figure("Validation loss against steps", "step", "nats per token", lines, note=note)


def _positions(
    groups: Mapping[str, Sequence[Found]], jobs: Sequence[PretrainingJob]
) -> list[Figure]:
    trained = jobs[0].config.context_length
    first = next(iter(groups.values()))[0]
    panels = []
    for i, data in enumerate(curve["data"] for curve in first["perplexity"]):
        lines = [
            _line(title, [_running(r["perplexity"][i]) for r in done])
            for title, done in groups.items()
        ]
        marks = [(float(trained), f"trained at {trained:,}")]
        panels.append(Figure(data, "position", "perplexity", lines, marks=marks))
    title = "Running perplexity against position (Figures 5 and 10)"
    note = "Mean over seeds; bands are 95 % intervals over seeds."
    return [
        Figure(title, "position", "perplexity", (), log_x=True, note=note, panels=panels,
               name="positions")
    ]  # fmt: skip


def _running(curve: Mapping[str, Any]) -> list[tuple[float, float]]:
    return list(zip(curve["positions"], curve["running_perplexity"]["value"], strict=True))


def _line(title: str, curves: Sequence[Sequence[tuple[float, float]]]) -> Series:
    """Average the curves of a model's seeds, which share their x."""
    x = [point[0] for point in curves[0]]
    spreads = [Spread(values) for values in zip(*([p[1] for p in c] for c in curves), strict=True)]
    ends = [spread.interval for spread in spreads]
    low = high = None
    if len(curves) > 1:
        low, high = ([end[i] for end in ends if end] for i in (0, 1))
    return Series(title, x, [spread.mean for spread in spreads], low, high)
