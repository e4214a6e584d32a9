"""nanoGPT's model as PyTorch runs it without torch.compile: one operation after another."""
