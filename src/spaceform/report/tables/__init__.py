"""Tables: `results` holds those of runs, every other kind has its own file, and `typeset` writes them."""
