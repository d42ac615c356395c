"""`statetrack lm export`."""

from __future__ import annotations

from pathlib import Path

from statetrack.lm.extra import require_lm
from statetrack.terminal import make_console, write_result


def lm_export(
    checkpoint: Path,
    *,
    out: Path,
    like: Path | None = None,
    allow_neg_eigval: bool | None = None,
    json: str | None = None,
) -> None:
    """Write a language model in this package's format, or in that of transformers or fla.

    Checkpoints of other packages are converted on reading. A model that was converted, and perhaps
    trained further, can be written back: tensors that were not changed are equal to the original's,
    the norms of Qwen except for rounding.

    Args:
        checkpoint: a folder of save_pretrained, of statetrack lm train or of statetrack train.
        out: the new folder.
        like: a checkpoint whose format, options and dtypes are taken, such as the one that the
            model was converted from; this package's format if absent.
        allow_neg_eigval: the range of a converted model; the checkpoint's if absent.
    """
    require_lm()
    from statetrack.lm.export import export

    console = make_console(json)
    with console.status(f"exporting {checkpoint}"):
        made = export(checkpoint, out, like=like, allow_neg_eigval=allow_neg_eigval)
    console.print(
        f"{made.folder}: {made.title} as {made.model_type}, {made.parameters:,} parameters.",
        soft_wrap=True,
    )
    write_result(json, {**made._asdict(), "folder": str(made.folder)})
