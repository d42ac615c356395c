"""Checks for ops and layers, ours and yours."""
