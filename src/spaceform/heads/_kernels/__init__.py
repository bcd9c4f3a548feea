"""Fused forward and backward passes of the heads."""
