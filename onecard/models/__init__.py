"""Models, passes and training steps, written once: torch executes them, paper measures them."""
