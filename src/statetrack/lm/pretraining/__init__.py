"""Pretraining of language models on accelerate: one process or several, in both ranges."""
