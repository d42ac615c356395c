"""flash-linear-attention warns at its import that there is no GPU: here that is what is wanted."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import fla.layers  # noqa: F401
