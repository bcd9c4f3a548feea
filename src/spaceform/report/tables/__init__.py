"""Tables: `table` for those of results, one file for each other, and `typeset` to write them."""
