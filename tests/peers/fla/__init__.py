"""Loads the package once without its warnings, which are about GPUs and old PyTorch functions."""

import warnings

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import fla  # noqa: F401
