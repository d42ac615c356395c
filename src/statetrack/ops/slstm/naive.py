"""The definition of sLSTM's recurrence, token by token."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def slstm_naive(
    x: Tensor, R: Tensor, state: Tensor, lengths: Tensor | None
) -> tuple[Tensor, Tensor]:
    """h [B, T, H, D] and the final state [4, B, H, D]; see `slstm`.

    x: [B, T, H, 4, D]; R: [H, 4, D, D]; state: [4, B, H, D], h, c, n and m; lengths: [B], how many
    tokens of a row exist.
    """
    if lengths is not None:
        valid = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
        x = x.masked_fill(~valid[:, :, None, None, None], 0.0)  # not even NaN passes
    h, c, n, m = state
    outputs = []
    for t, x_t in enumerate(x.unbind(1)):
        i, f, z, o = (x_t + torch.einsum("hgoi,bhi->bhgo", R, h)).unbind(2)
        kept = F.logsigmoid(f) + m
        kept = torch.where(n == 0, -torch.inf, kept)  # nothing has been read: nothing to keep
        m_t = torch.maximum(kept, i)
        i, f = torch.exp(i - m_t), torch.exp(kept - m_t)
        c_t = f * c + i * torch.tanh(z)
        n_t = f * n + i
        h_t = torch.sigmoid(o) * c_t / n_t
        if lengths is None:
            outputs.append(h_t)
            h, c, n, m = h_t, c_t, n_t, m_t
        else:
            exists = (t < lengths)[:, None, None]
            outputs.append(h_t.where(exists, 0.0))
            h, c, n, m = (
                new.where(exists, old)
                for new, old in zip((h_t, c_t, n_t, m_t), (h, c, n, m), strict=True)
            )
    return torch.stack(outputs, 1), torch.stack([h, c, n, m])
