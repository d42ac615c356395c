"""Let a language model continue a text."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import TextStreamer

from statetrack.config import MAX_WHOLE, at_least, within
from statetrack.errors import UserError
from statetrack.lm.load import LanguageModel


class Continuation(NamedTuple):
    """A prompt and the text that a model generated after it."""

    prompt: str
    text: str
    tokens: list[int]
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """The speed, reading the prompt included."""
        return len(self.tokens) / self.seconds


@torch.no_grad()
def continue_text(
    language_model: LanguageModel,
    prompt: str,
    *,
    tokens: int = 100,
    temperature: float = 1.0,
    top_p: float = 1.0,
    seed: int = 0,
    show: Callable[[str], None] | None = None,
) -> Continuation:
    """Continue a text until the end of a document or for a number of tokens.

    Args:
        language_model: what `load_language_model` returned; it needs a tokenizer.
        prompt: the text; an empty one begins a document.
        tokens: generate at most so many new tokens.
        temperature: logits are divided by it before sampling; 0 takes the likeliest token.
        top_p: sample from the fewest likeliest tokens whose probabilities sum to this.
        seed: seed of the sampling.
        show: called with the prompt, and with each piece of new text as soon as it is complete.

    Returns:
        The new text and tokens, without the prompt and the end of the document.

    Raises:
        UserError: there is no tokenizer, no token to begin an empty prompt with, or the prompt is
            not valid text.
    """
    within("tokens", tokens, 1, MAX_WHOLE)
    within("seed", seed, 0, MAX_WHOLE)
    within("top_p", top_p, 0, 1)
    at_least("temperature", temperature, 0)
    if temperature > 0:  # logits divided by less would be infinite
        within("a temperature other than 0", temperature, 1e-4, 1e4)
    model, tokenizer = language_model.model, language_model.tokenizer
    if tokenizer is None:
        raise UserError(f"{language_model.name} has no tokenizer.json: it cannot read text")
    try:
        prompt.encode()
    except UnicodeEncodeError:  # as in an argument of a command that is not UTF-8
        raise UserError("the prompt is not text in UTF-8") from None
    ids = tokenizer(prompt).input_ids
    end = tokenizer.eos_token_id
    if not ids:
        first = end if tokenizer.bos_token_id is None else tokenizer.bos_token_id
        if first is None:
            raise UserError("an empty prompt needs a tokenizer with a token that begins documents")
        ids = [first]
    chosen: dict[str, Any] = {"do_sample": False}
    if temperature > 0:
        chosen = {"do_sample": True, "temperature": temperature, "top_p": top_p, "top_k": 0}
    given = torch.tensor([ids], device=model.device)
    if show:
        show(prompt)
    start = time.perf_counter()
    gpus = [model.device] if model.device.type == "cuda" else []
    with torch.random.fork_rng(devices=gpus):
        torch.manual_seed(seed)
        try:
            made = model.generate(
                given,
                attention_mask=torch.ones_like(given),
                max_new_tokens=tokens,
                eos_token_id=end,
                pad_token_id=0 if end is None else end,  # one sequence has no padding
                streamer=_Pieces(tokenizer, show) if show else None,
                **chosen,
            )
        except IndexError:  # of an embedding, of tokens or of positions
            length = f"{len(ids):,} tokens of the prompt and {tokens:,} more"
            raise UserError(f"{language_model.name} cannot read {length}") from None
    seconds = time.perf_counter() - start
    new = made[0, len(ids) :].tolist()
    new = new[:-1] if new and new[-1] == end else new
    return Continuation(prompt, tokenizer.decode(new), new, seconds)


class _Pieces(TextStreamer):
    """Passes on the new text in complete words."""

    def __init__(self, tokenizer: Any, show: Callable[[str], None]) -> None:
        super().__init__(tokenizer, skip_prompt=True)
        self.show = show

    def put(self, value: Tensor) -> None:
        """Take the prompt, then token after token."""
        if self.next_tokens_are_prompt or value.item() != self.tokenizer.eos_token_id:
            super().put(value)

    def on_finalized_text(self, text: str, stream_end: bool = False) -> None:
        """Show a piece."""
        if text:
            self.show(text)
