"""Sample texts from the model during training."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from tokenizers import Tokenizer

from statetrack.errors import UserError
from statetrack.lm.data import TokenData
from statetrack.lm.hf_model import StateTrackForCausalLM


class Prompts:
    """Texts that a model continues.

    Args:
        data: gives the tokenizer, and whether BOS stands before a text.
        prompts: the texts.
        length: tokens of a continuation.

    Raises:
        UserError: a prompt has no tokens.
    """

    def __init__(self, data: TokenData, prompts: Sequence[str], length: int) -> None:
        self.prompts, self.length, self.eos = prompts, length, data.description.eos
        bos = data.description.bos_id if data.description.bos else None
        before = [] if bos is None else [bos]
        if not prompts:
            return
        self.tokenizer = Tokenizer.from_file(str(data.tokenizer_file))
        coded = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in prompts]
        self.tokens = [torch.tensor([before + ids]) for ids in coded]
        for text, ids in zip(prompts, self.tokens, strict=True):
            if ids.numel() == 0:
                raise UserError(f"the sample prompt {text!r} has no tokens")

    def continued(self, model: StateTrackForCausalLM, seed: int) -> list[str]:
        """Sample a continuation of each prompt; equal seeds give equal texts."""
        torch.manual_seed(seed)
        texts = []
        for ids in self.tokens if self.prompts else ():
            start = ids.to(model.device)
            out = model.generate(
                start,
                attention_mask=torch.ones_like(start),
                max_new_tokens=self.length,
                do_sample=True,
                eos_token_id=self.eos,
                pad_token_id=self.eos,
            )
            texts.append(self.tokenizer.decode(out[0, ids.shape[1] :].tolist()))
        return texts
