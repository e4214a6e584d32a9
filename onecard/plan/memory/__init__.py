"""What is allocated, reserved and shown by the driver, from a config alone."""
