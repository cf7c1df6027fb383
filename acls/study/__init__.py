"""Many runs: methods and seeds of a recipe, measured, calibrated, stored and compared."""
