"""Single faults put into the library on purpose, and the tests that notice each: `make mutants`."""
