"""The page: `report.html`, its advice, its viewer, and the files it is made of."""
