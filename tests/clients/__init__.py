"""The lane `make clients`: other people's clients, each in its own environment, against a real server."""
