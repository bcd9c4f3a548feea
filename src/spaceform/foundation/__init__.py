"""What the rooms above the core share: sentences, frozen values, the care that other packages need."""
