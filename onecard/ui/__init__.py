"""The local page over runs and logs: a server that only reads, and the files of the page."""
