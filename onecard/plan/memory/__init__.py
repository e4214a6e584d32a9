"""From a config alone: what is allocated, what is reserved, and what the driver shows."""
