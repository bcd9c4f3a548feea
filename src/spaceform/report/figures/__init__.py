"""Figures: one file for each kind, and `figure` for what they share."""
