"""What a config will do on a card: a pure function of both."""
