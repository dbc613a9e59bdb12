"""The agent: one process per sandbox that owns the store, the sessions and their commands."""
