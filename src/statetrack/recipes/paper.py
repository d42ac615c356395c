"""What the paper reports, to stand beside what was measured.

"Unlocking State-Tracking in Linear RNNs Through Negative Eigenvalues" (ICLR 2025): Table 3 (best
of three seeds) and Table 5 (median), scaled accuracy on lengths 40-256; Figure 4 for the groups,
of which only curves are published.
"""

PARITY_BEST = {
    "Mamba [0,1]": 0.000,
    "Mamba [-1,1]": 1.000,
    "DeltaNet [0,1]": 0.017,
    "DeltaNet [-1,1]": 1.000,
}
PARITY_MEDIAN = {
    "Mamba [0,1]": 0.000,
    "Mamba [-1,1]": 1.000,
    "DeltaNet [0,1]": 0.010,
    "DeltaNet [-1,1]": 0.999,
}
SWAPS = {
    "DeltaNet [0,1]": "5 layers: only slightly past 32",
    "DeltaNet [-1,1]": "1 layer: solved to 500",
}
