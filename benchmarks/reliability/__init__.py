"""Reliability tests of run folders, kernels and inputs; each module is a command."""
