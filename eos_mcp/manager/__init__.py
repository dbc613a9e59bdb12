"""The eight operations over sandboxes: records, workspace bases, export to the host."""
