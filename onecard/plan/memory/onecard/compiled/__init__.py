"""onecard's block under torch.compile: one forward, one backward and one inference graph for all layers."""
