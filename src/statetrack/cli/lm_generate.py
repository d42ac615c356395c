"""`statetrack lm generate`."""

from __future__ import annotations

from pathlib import Path

from statetrack.lm.extra import require_lm
from statetrack.terminal import make_console, write_result

CONTROLS = {*map(chr, (*range(0x20), *range(0x7F, 0xA0)))} - {"\n", "\t"}
MARKS = (0x061C, 0x200E, 0x200F)
DIRECTIONS = {*map(chr, (*MARKS, *range(0x202A, 0x202F), *range(0x2066, 0x206A)))}
REPLACED = CONTROLS | DIRECTIONS


def lm_generate(
    checkpoint: Path,
    *,
    prompt: str = "",
    tokens: int = 100,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    device: str = "auto",
    json: str | None = None,
) -> None:
    """Continue a text with a language model; the text appears as it is generated.

    Args:
        checkpoint: a folder of save_pretrained, of any causal model of transformers, or of
            statetrack lm train; with a tokenizer.json.
        prompt: the text to continue; an empty one begins a document.
        tokens: at most so many new tokens; the end of a document ends the text.
        temperature: what logits are divided by before drawing; 0 takes the likeliest token.
        top_p: draw from the likeliest tokens with this probability together.
        seed: seed of the drawing.
    """
    require_lm()
    from statetrack.lm.generation import continue_text
    from statetrack.lm.load import load_language_model

    console = make_console(json)
    with console.status(f"loading {checkpoint}"):
        model = load_language_model(checkpoint, device=device)

    def show(text: str) -> None:
        console.print(printable(text), end="", soft_wrap=True)
        console.file.flush()

    made = continue_text(
        model, prompt, tokens=tokens, temperature=temperature, top_p=top_p, seed=seed, show=show
    )
    speed = f"{made.tokens_per_second:,.0f} tokens/s"
    console.print(f"\n\n{len(made.tokens)} tokens in {made.seconds:.1f} s, {speed}.")
    options = {"temperature": temperature, "top_p": top_p, "seed": seed}
    result = {**made._asdict(), "tokens_per_second": made.tokens_per_second}
    write_result(json, {"checkpoint": str(checkpoint), **options, **result})


def printable(text: str) -> str:
    """Replace control characters, except newline and tab, and those that change the direction."""
    return "".join("\ufffd" if c in REPLACED else c for c in text)
