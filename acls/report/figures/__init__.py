"""Figures. Each module has functions that compute the data of a figure (`prepare`) and draw it on axes (`draw`)."""
