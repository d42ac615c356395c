"""`statetrack lm data`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from statetrack.cli.parser import Option, config_options
from statetrack.terminal import make_console, print_table, write_result

if TYPE_CHECKING:
    from statetrack.lm.data.build import DataProgress

SHOWN = 5  # files that are named as left out
NEEDED_BY = {
    "train": "`lm train`",
    "validation": "`lm train`, `lm perplexity` and `lm audit`",
}


def lm_data(*, out: Path, json: str | None = None, **options: Any) -> None:
    """Tokenise text into a data folder, once, for training and evaluation.

    Args:
        out: the data folder; if it was made with the same options, nothing is done.
    """
    from statetrack.lm.extra import require_lm

    require_lm()
    from statetrack.lm.data.build import build_data
    from statetrack.lm.data.config import DataConfig
    from statetrack.lm.data.shards import SPLITS
    from statetrack.lm.data.writer import complete

    config = DataConfig(**options)
    console = make_console(json)
    there = complete(out)
    with console.status("reading") as status:
        made = build_data(config, out, lambda progress: status.update(_text(progress)))
    if there:
        console.print(
            f"{out} was made with these options before; the sources were not read again.",
            soft_wrap=True,
        )
    columns = ["split", "documents", "tokens", "files"]
    splits = {split: getattr(made, split) for split in SPLITS}
    rows = [
        [split, f"{one.documents:,}", f"{one.tokens:,}", str(len(one.shards))]
        for split, one in splits.items()
    ]
    print_table(console, f"{out}: {made.vocab_size:,} tokens in the vocabulary", columns, rows)
    for split, commands in NEEDED_BY.items():
        if not splits[split].tokens:
            note = f"{out} has no {split} tokens: {commands} cannot use it."
            console.print(note, soft_wrap=True)
    if skipped := made.options["skipped"]:
        names = ", ".join(skipped[:SHOWN]) + (", ..." if len(skipped) > SHOWN else "")
        console.print(f"Left out, not UTF-8: {len(skipped)} files ({names})", soft_wrap=True)
    write_result(json, {"data": str(out), "there_before": there, **made.to_json()})


def data_options(first: dict[str, Any]) -> list[Option]:
    """List the fields of `DataConfig`."""
    from statetrack.lm.data.config import DataConfig

    return list(config_options(DataConfig()))


def _text(progress: DataProgress) -> str:
    rate = progress.characters / max(progress.seconds, 1e-9) / 1e6
    read = f"{progress.documents:,} documents, {progress.characters / 1e6:,.0f} M characters"
    tokens = f", {progress.tokens:,} tokens" if progress.tokens else ""
    return f"{progress.doing}: {read}{tokens}, {rate:.1f} M characters/s"
