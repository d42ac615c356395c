"""Upper limits on the sizes of languages, cascades, networks and proofs."""

MAX_CASCADE_IMAGES = 4_096  # sets of states that the holonomy method looks at: a second's work
MAX_CASCADE_RULES = 200_000  # update rules of all levels: a few seconds' work
MAX_CASCADE_LEVELS = 256  # each becomes a layer
MAX_REVERSED_STATES = 1_000  # of the reversed language, if an error is to recommend that
MAX_TABLE_CELLS = 100_000_000  # numbers in one table of a network's layer
MAX_MODEL_WEIGHTS = 100_000_000
MAX_PROOF_STATES = 100_000  # of the network or model, in a proof that visits each
MAX_MODULUS = 5_000  # of the rotations in `theorems`, whose tables have m^2 numbers
MAX_EXPLAINED_TRANSITIONS = 1_000_000  # of a DFA that `explain` analyses: some ten seconds' work
