"""nanoGPT's program as a tape: sizes.py (model.py's shapes), loop.py (train.py), and how PyTorch runs the model."""
