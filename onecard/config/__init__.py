"""Text and flags in, a checked RunConfig out."""
