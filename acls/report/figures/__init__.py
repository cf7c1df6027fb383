"""Figures: each file computes a figure's data (`prepare`) and draws it on given axes (`draw`)."""
