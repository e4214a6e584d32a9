"""The run folder: the one format that training writes and everything else reads. Standard library only."""
