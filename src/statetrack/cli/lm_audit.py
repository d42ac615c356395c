"""`statetrack lm audit`."""

from __future__ import annotations

import shlex
from pathlib import Path

from statetrack.terminal import make_console, write_result


def lm_audit(
    checkpoint: Path,
    *,
    data: tuple[Path, ...] = (),
    tokens: int = 16384,
    length: int = 1024,
    out: Path | None = None,
    device: str = "auto",
    json: str | None = None,
) -> None:
    """Find what a model's transitions do on real text: reflect, rotate, keep or forget.

    For each layer and head: the shares of these kinds, the moduli of eigenvalues, how many tokens a
    sign survives in bf16 and fp32, and which tokens reflect most. For models of this package, and
    for Mamba, Mamba2, OLMo-Hybrid, Qwen3-Next and Qwen3.5 of transformers.

    Args:
        checkpoint: a folder of `lm train` or of a model of transformers.
        data: data folders of `lm data`, whose validation split is read, or text files, in UTF-8.
        tokens: how many tokens of each data set are read at most.
        length: tokens of a sequence; each is read from an empty state.
        out: folder for the page, tables and figures; new, or of an earlier report of this command.
    """
    from statetrack.lm.extra import require_lm

    require_lm()
    from statetrack.report.render import check_report_folder, publish_document

    if out is not None:
        check_report_folder(out, "audit")
    from statetrack.lm.audit import audit
    from statetrack.lm.audit_report import audit_document
    from statetrack.lm.evaluation_data import open_all
    from statetrack.lm.load import load_language_model

    console = make_console(json)
    with console.status("loading") as status:
        language = load_language_model(checkpoint, device=device)
        audits = [
            audit(language, source, tokens=tokens, length=length, on_progress=status.update)
            for source in open_all(data, language, tokens)
        ]
    words = ["statetrack", "lm", "audit", str(checkpoint), "--data", *map(str, data)]
    words += ["--tokens", str(tokens), "--length", str(length)]
    document = audit_document(audits, shlex.join(words), device)
    publish_document(console, document, out)
    write_result(json, {"results": [found.to_dict() for found in audits]})
