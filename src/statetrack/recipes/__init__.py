"""Recipes and presets: what to train, and the report."""
