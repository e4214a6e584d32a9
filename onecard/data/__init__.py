"""Token files in, batches of windows out; numpy, never torch."""
