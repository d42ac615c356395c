"""Recipes: what to train, how to run many, what to make of the results."""
