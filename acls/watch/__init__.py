"""After deployment: `doctor` examines a file of predictions, `drift` new data, `shift` corrupted test images."""
