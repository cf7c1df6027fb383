"""Studies: train the methods and seeds of a recipe, and measure, calibrate, store and compare the runs."""
