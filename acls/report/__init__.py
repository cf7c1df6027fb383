"""Tables, figures and pages about predictions and runs."""
