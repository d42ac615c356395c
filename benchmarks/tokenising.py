"""Time `statetrack lm data` beside the batch encoding of `tokenizers` on the same documents."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from benchmarks.processes import machine
from benchmarks.timing import WrongResultError, seconds
from statetrack.config import at_least
from statetrack.files import check_output, write_atomic
from statetrack.lm.extra import require_lm
from statetrack.report.document import Table
from statetrack.report.text import markdown_table
from statetrack.terminal import check_json, make_console, print_table, write_result

GOAL = 1.5  # times as long as `tokenizers` alone
BATCH = 256  # documents that `tokenizers` gets at a time


def main(
    *,
    source: str = "stdlib",
    max_documents: int = 500,
    vocab_size: int = 4096,
    rounds: int = 5,
    out: Path | None = None,
    json: str | None = None,
) -> None:
    """Time the making of a data folder, from files to shards, beside `encode_batch` alone.

    `encode_batch` gets the texts in memory and its tokens are thrown away; the data folder is made
    of the same files, read anew, split, tokenised, packed and written. Both take turns; the least
    time of all rounds counts.

    Args:
        source: a source of `statetrack lm data`.
        max_documents: how many of its documents.
        vocab_size: tokens of the BPE that is trained on them first.
        rounds: how often both are timed.
        out: a markdown file for the table.
    """
    require_lm()
    import tokenizers

    from statetrack.lm.data.build import build_data
    from statetrack.lm.data.config import DataConfig
    from statetrack.lm.data.sources import documents

    check_json(json)
    at_least("rounds", rounds, 1)
    if out is not None:
        check_output(out)
    console = make_console(json)
    config = DataConfig(source=(source,), max_documents=max_documents, vocab_size=vocab_size)
    with tempfile.TemporaryDirectory() as name, console.status("training the tokenizer") as status:
        folder = Path(name)
        made = build_data(config, folder / "tokenizer")
        config = replace(config, tokenizer=str(folder / "tokenizer"))
        alone = tokenizers.Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
        texts = [document.text for document in documents(config)]
        tokens = made.train.tokens + made.validation.tokens

        def encode() -> int:
            batches = (texts[start : start + BATCH] for start in range(0, len(texts), BATCH))
            return sum(len(one) for batch in batches for one in alone.encode_batch(batch))

        if encode() + len(texts) != tokens:  # EOS follows each document
            raise WrongResultError("tokenizers gives another number of tokens")
        least = {"tokenizers": float("inf"), "statetrack": float("inf")}
        for number in range(rounds):
            status.update(f"round {number + 1} of {rounds}")
            data = folder / str(number)
            least["tokenizers"] = min(least["tokenizers"], seconds(encode))
            taken = seconds(lambda data=data: build_data(config, data))
            least["statetrack"] = min(least["statetrack"], taken)
    ratio = least["statetrack"] / least["tokenizers"]
    title = f"{len(texts):,} documents, {tokens:,} tokens, tokenizers {tokenizers.__version__}"
    rows = [[who, f"{s:.2f}", f"{tokens / s / 1e6:.2f}"] for who, s in least.items()]
    columns = ["implementation", "seconds", "million tokens/s"]
    print_table(console, title, columns, rows)
    met = "met" if ratio <= GOAL else "missed"
    verdict = f"Ratio {ratio:.2f}; the goal, at most {GOAL}, is {met}."
    console.print(verdict)
    if out is not None:
        command = f"python -m benchmarks tokenising --source {source}"
        command += f" --max-documents {max_documents} --vocab-size {vocab_size} --rounds {rounds}"
        about = f"`{command}` on {machine()['processor']}, {machine()['cores']} cores."
        table = markdown_table(Table(title, columns, rows))
        page = f"# Tokenising and packing\n\n{about}\n\n{title}. {verdict}\n\n{table}\n"
        write_atomic(out, page)
    facts = {"documents": len(texts), "tokens": tokens, "seconds": least, "ratio": ratio}
    write_result(json, {"source": source, **facts, "goal": GOAL})
