"""nanoGPT's model as torch.compile runs it: three graphs of fused kernels."""
