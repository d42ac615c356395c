"""`python -m benchmarks layers`: training steps and decoding of layers, beside others."""
