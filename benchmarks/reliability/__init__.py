"""Attacks on the package: what they find is a defect."""
