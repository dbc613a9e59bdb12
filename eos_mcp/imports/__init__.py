"""Changes of the workspace directory that go into a sandbox: `import_changes`.

Imports `export` and what is below it.
"""
