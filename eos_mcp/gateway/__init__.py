"""The one host process that holds state: listens, authenticates, routes to the manager or forwards to a sandbox's agent."""
