"""Open a store after a crash: sweep, reopen, recover dead sessions, purge quarantined work.

Imports `export` and what is below it; only `layerstack.store` and `layerstack.recover_one` import it.
"""
