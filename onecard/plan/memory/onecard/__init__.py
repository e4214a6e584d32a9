"""onecard's own trainer: its model, loss and update, as allocations and frees."""
