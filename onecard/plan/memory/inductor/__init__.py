"""TorchInductor's memory: the order of a graph's kernels, the reuse of dead buffers, the parts of a reduction."""
