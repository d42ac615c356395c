"""Language models: Hugging Face classes, text data, pretraining and evaluation.

Everything here but `extra` needs the extra `lm`: pip install "statetrack[lm]".
"""
