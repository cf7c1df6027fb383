"""The pages that are generated from the code, so that they always agree with it."""
