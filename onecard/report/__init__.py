"""Plans, cards, findings and errors as text and JSON: the only package that knows colours."""
