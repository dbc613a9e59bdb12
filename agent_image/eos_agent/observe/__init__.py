"""One file per observability operation."""
