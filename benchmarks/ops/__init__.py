"""Our recurrences against those of other packages: `python -m benchmarks ops`."""
