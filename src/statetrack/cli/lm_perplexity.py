"""`statetrack lm perplexity`."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from statetrack.errors import UserError
from statetrack.terminal import make_console, write_result

if TYPE_CHECKING:
    from statetrack.lm.evaluation_data import EvaluationData


def lm_perplexity(
    checkpoints: tuple[Path, ...],
    *,
    data: tuple[Path, ...] = (),
    names: tuple[str, ...] = (),
    max_length: int = 16384,
    chunks: int = 16,
    out: Path | None = None,
    device: str = "auto",
    json: str | None = None,
) -> None:
    """Measure perplexity against position, past the training length, in bounded memory.

    Tokens are cut into chunks, which a model reads in segments of 1,024 with its state carried
    over. The perplexity at position t is that of a chunk's first t predictions, averaged over
    chunks; a second figure shows the perplexity of windows of positions.

    Args:
        checkpoints: folders of `lm train` or of any causal model of transformers.
        data: data folders of `lm data`, whose validation split is read, or text files, in UTF-8;
            each is a panel of the figure.
        names: of the models, one for each checkpoint; checkpoints of one name are seeds, whose mean
            and interval are shown.
        max_length: the greatest position, at most the number of tokens of each data set.
        chunks: how many chunks of each data set are read at most.
        out: folder for the page, tables and figures; new, or of an earlier report of this command.
    """
    from statetrack.lm.extra import require_lm

    require_lm()
    from statetrack.report.render import check_report_folder, publish_document

    if out is not None:
        check_report_folder(out, "perplexity")
    if not checkpoints:
        raise UserError("CHECKPOINTS is missing: give folders of language models")
    if names and len(names) != len(checkpoints):
        raise UserError(f"{len(names)} --names for {len(checkpoints)} checkpoints: give one each")
    from statetrack.devices import use_device
    from statetrack.lm.evaluation_data import distinct_names
    from statetrack.lm.load import load_language_model
    from statetrack.lm.perplexity import PerplexityCurve, make_reader, measure_perplexity
    from statetrack.lm.perplexity_report import figure_positions, perplexity_document

    use_device(device)  # raises if the device does not exist
    console = make_console(json)
    curves: list[PerplexityCurve] = []
    with console.status("loading") as status:
        labels = distinct_names(checkpoints)
        sources = [  # of all models, to find errors early
            _checked_sources(checkpoint, label, data, max_length, chunks)
            for checkpoint, label in zip(checkpoints, labels, strict=True)
        ]
        for number, (checkpoint, label) in enumerate(zip(checkpoints, labels, strict=True)):
            name = names[number] if names else label
            language = load_language_model(checkpoint, device=device)._replace(name=label)
            reader = make_reader(language)
            for source in sources[number]:
                curve = measure_perplexity(
                    language,
                    source,
                    max_length=max_length,
                    chunks=chunks,
                    name=name,
                    reader=reader,
                    on_progress=status.update,
                )
                curves.append(curve)
    words = ["statetrack", "lm", "perplexity", *map(str, checkpoints), "--data", *map(str, data)]
    words += ["--names", *names] if names else []
    words += ["--max-length", str(max_length), "--chunks", str(chunks)]
    document = perplexity_document(curves, shlex.join(words), device)
    publish_document(console, document, out)
    positions = figure_positions(max_length)
    write_result(json, {"results": [curve.to_dict(positions) for curve in curves]})


def _checked_sources(
    checkpoint: Path, label: str, data: Sequence[Path], max_length: int, chunks: int
) -> list[EvaluationData]:
    """Open the data as tokens of a model, whose memory is released on return."""
    from statetrack.lm.evaluation_data import open_all
    from statetrack.lm.load import load_language_model

    language = load_language_model(checkpoint)._replace(name=label)
    sources = open_all(data, language, chunks * max_length + 1)
    for source in sources:
        source.count_chunks(max_length, chunks)  # raises if there is no chunk
    return sources
