"""Tables: `results` for those of runs, one file for each other, and `typeset` to write them."""
