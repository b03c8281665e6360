"""Several algorithms on the same data and seeds: plan, runs, results, table, page."""
